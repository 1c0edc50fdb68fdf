"""Optimizations: what is carried out in another form than it was written in, beside its precision.

::

    painted program ─ find_optimizations ─► Optimizations ─ jaxpr/rules/ ─► equations
                      for each entry of the registry that the device has and the user left on:
                          for each node with one of the entry's operations:
                              match(node, view) ─► Optimization, or None

A file here holds one identity: when it holds and pays (``match``), and what stands in the place of
the operation (:class:`~duotone.precision.optimize.optimization.Optimization`): an expression of
neutral operations, carried out by one interpreter. Which devices gain is said in
``devices/table.py``, by name; a policy switches off by name (``optimizations_remove``);
``duotone.explain`` tells of each one in effect.

To add one: a file here with a ``match``, a row in ``optimizations.py``, and its name in the table
of devices; no rewrite rule knows of it.
"""
