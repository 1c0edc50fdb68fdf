"""The profiler's room: from a trace of JAX's profiler to tables of where the time goes.

::

    xplane.pb ─ read_trace ─► Trace ─ cut ─► Iterations ─ tabulate ─► ProfileRecord ─► files, views

One file a stage: ``wire`` cuts the file into pieces that fit into memory, ``reading`` reads them
with ``jax.profiler.ProfileData``, ``programs`` reads the compiled programs that stand in the trace,
``tensor_cores`` tells kernels by their names, ``iterations`` cuts by a key operation, ``sums`` and
``tables`` add up, ``advice`` says what stands out, ``record`` holds the result and ``files`` writes
it.
"""
