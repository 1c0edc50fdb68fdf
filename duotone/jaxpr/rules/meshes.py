"""The mesh in which operations on an array are bound.

With explicit axes, JAX accepts an operation only in the mesh of its operands' types. An equation
that moves an array from one mesh to another (at the borders of ``jax.sharding.auto_axes``) is bound
in the mesh of its result, so a cast of its operand needs the operand's mesh.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax


def in_mesh_of(array: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which JAX binds operations in the mesh of an array's type, if any."""
    aval = getattr(array, "aval", None)
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    if mesh is None or mesh.empty or mesh == jax.sharding.get_abstract_mesh():
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(mesh)


__all__ = ["in_mesh_of"]
