"""The mesh in which an array is calculated with.

Where axes are explicit, JAX takes an operation only in the mesh of its operands' types. An equation
that carries arrays from one to another (at the borders of ``jax.sharding.auto_axes``) stands in
the mesh of its result, and so a cast of its operand needs a mesh of its own.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax


def in_mesh_of(array: Any) -> contextlib.AbstractContextManager[Any]:
    """Inside, operations on an array are bound in the mesh of its type; of none, in the present."""
    aval = getattr(array, "aval", None)
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    if mesh is None or mesh.empty or mesh == jax.sharding.get_abstract_mesh():
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(mesh)


__all__ = ["in_mesh_of"]
