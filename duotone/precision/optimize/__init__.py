"""Reforms: what is carried out in another form than it was written in, beside its colours.

::

    painted program ─ find_reforms ─► Reforms ─ jaxpr/rules/optimizations.py ─► equations
                      for each entry of the registry that the device has and the user left on:
                          for each node with one of the entry's operations:
                              match(node, view) ─► Reform, or None

A file here holds one identity: when it holds and pays (``match``), and what stands in the place of
the operation (:class:`~duotone.precision.optimize.optimization.Reform`): an expression of neutral
operations, carried out by one interpreter. Which devices gain is said in ``devices/table.py``, by
name; a policy switches off by name (``reforms_remove``); ``duotone.explain`` tells of each one in
effect.

Who extends this: a new identity is a file here with a ``match``, a row in ``registry.py`` and its
name with the devices that gain from it; no rewrite rule knows of it.
"""
