"""Facts about operations: one table for each framework, one row for each operation.

:mod:`duotone.ops.traits` says what a rule may ask of an operation, :mod:`duotone.ops.entries` what
a row holds. ``jax.py`` and ``onnx.py`` are the tables. A rule never names an operation: it asks for
a trait, so a new operation is one row, and every rule then knows it.
"""
