"""Turns a trace of JAX's profiler into tables of time.

::

    xplane.pb ─ read_trace ─► Trace ─ cut ─► Iterations ─ tabulate ─► ProfileRecord ─► files, views

Each stage is a file. ``wire`` cuts the trace into pieces that fit into memory. ``read_trace`` reads
them with ``jax.profiler.ProfileData``. ``programs`` reads the compiled programs in the trace, and
``tensor_cores`` classifies kernels by name. ``training_iterations`` cuts by a key operation,
``time_sums`` and ``profile_tables`` add up times, and ``profile_advice`` names problems.
``profile_record`` is the result, which ``profile_files`` writes.
"""
