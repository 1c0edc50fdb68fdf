"""Facts about operations: one table for each framework, one row for each operation.

:mod:`duotone.ops.traits` defines what a rule may ask of an operation, :mod:`duotone.ops.entries`
the content of a row. ``jax.py``, ``onnx.py`` and ``tensorflow.py`` are the tables. A rule never
names an operation. It asks for a trait, so a new operation is one row, and every rule knows it.
"""
