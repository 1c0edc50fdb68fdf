"""Optimizations: operations in another form than the user wrote, apart from their precision.

::

    painted program ─ find_optimizations ─► Optimizations ─ jaxpr/rules/ ─► equations
                      for each entry of the registry that the device has and the user left on:
                          for each node with the entry's trait:
                              match(node, view) ─► Optimization, or None

A file here holds one identity. Its ``match`` decides when the identity holds and pays, and returns
an :class:`~duotone.precision.optimize.optimization.Optimization`: an expression of neutral
operations that replaces the operation. One interpreter applies them all. ``devices/table.py`` names
the optimizations from which each device gains. A policy switches them off by name
(``optimizations_remove``), and ``duotone.explain`` lists each one in effect.

To add one, write a file with a ``match``, a row in ``optimizations.py``, and its name in the
table of devices. No rewrite rule knows about it.
"""
