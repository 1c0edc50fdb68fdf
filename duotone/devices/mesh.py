"""Programs on several devices: their mesh, and the same program on the devices of a target.

Shardings name a mesh, and a mesh names devices: virtual CPU devices, or none (an abstract mesh). To
compile a program for other devices, this replaces the mesh in the arguments' shardings and in the
shardings inside the program (``with_sharding_constraint``, ``shard_map``, options of ``jit``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from duotone import _jax
from duotone.errors import CompilationError

Axes = tuple[tuple[str, int], ...]
"""Names and sizes of the axes of a mesh, in order."""


def axes_of(values: Sequence[Any]) -> Axes:
    """Returns the axes of the mesh over which arrays or programs are sharded; empty for one device.

    Args:
        values: arrays, ``jax.ShapeDtypeStruct`` or jaxprs.

    Raises:
        CompilationError: there are two meshes, or a sharding over several devices without one.
    """
    found = {tuple(mesh.shape.items()): None for mesh in _meshes(values) if mesh.size > 1}
    if len(found) > 1:
        raise CompilationError(
            "the program is sharded over several meshes, "
            + " and ".join(str(dict(axes)) for axes in found)
            + "; it is compiled for the devices of one: shard all of it over the same mesh"
        )
    return next(iter(found), ())


def mesh_like(axes: Axes, devices: Sequence[Any], values: Sequence[Any]) -> Mesh:
    """Returns a mesh with these axes and axis types (automatic, explicit) over other devices."""
    sizes = [size for _, size in axes]
    types = next(m.axis_types for m in _meshes(values) if tuple(m.shape.items()) == axes)
    return Mesh(np.array(devices).reshape(sizes), [n for n, _ in axes], axis_types=types)


def placed(leaf: Any, mesh: Mesh) -> jax.ShapeDtypeStruct:
    """Returns the shape of an array, sharded over ``mesh`` as over its own; else replicated."""
    own = sharding_of(leaf)
    return shape_on(leaf, NamedSharding(mesh, PartitionSpec() if own is None else own.spec))


def sharding_of(leaf: Any) -> NamedSharding | None:
    """Returns the sharding of an array, if it is over a mesh."""
    sharding = getattr(leaf, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) else None


def shape_on(leaf: Any, sharding: jax.sharding.Sharding | None) -> jax.ShapeDtypeStruct:
    """Returns the shape of an array with a sharding."""
    weak = bool(getattr(leaf, "weak_type", False))
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak)


def over(jaxpr: Any, mesh: Mesh) -> Callable[..., list[Any]]:
    """Returns the function of a jaxpr, with its mesh replaced by another with the same axes.

    Args:
        jaxpr: the jaxpr with its constants.
        mesh: the new mesh.
    """
    run = _jax.jaxpr_as_fun(_moved(jaxpr, mesh))
    return lambda *arrays: run(*arrays)


def _meshes(value: Any) -> Iterator[Any]:
    """Yields all meshes in a value, concrete or abstract, except inside ``shard_map``."""
    if isinstance(value, NamedSharding):
        yield value.mesh
    elif isinstance(value, Mesh | AbstractMesh):
        yield value
    elif isinstance(value, jax.sharding.Sharding):
        if value.num_devices > 1:
            raise CompilationError(
                f"an array is sharded over {value.num_devices} devices by a "
                f"{type(value).__name__}, which names no mesh; give it a jax.sharding.NamedSharding"
            )
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _meshes(inner)
    elif _jax.holds_jaxpr(value):
        for eqn in _jax.open_jaxpr(value).eqns:
            manual = eqn.primitive.name == "shard_map"
            named = {**eqn.params, "jaxpr": None} if manual else eqn.params
            yield from _meshes(tuple(named.values()))
    elif not isinstance(value, np.ndarray):
        yield from _meshes(getattr(value, "sharding", None) or ())


def _moved(value: Any, mesh: Mesh) -> Any:
    """Returns a value with its mesh replaced."""
    if isinstance(value, NamedSharding):
        return NamedSharding(_moved(value.mesh, mesh), value.spec, memory_kind=value.memory_kind)
    if isinstance(value, Mesh):
        return mesh
    if type(value) in (tuple, list):  # not a PartitionSpec, which is a tuple of names
        return type(value)(_moved(inner, mesh) for inner in value)
    inner = _jax.open_jaxpr(value)
    if not hasattr(inner, "eqns"):
        return value
    if inner is not value:
        return value.replace(jaxpr=_moved(inner, mesh))
    return value.replace(eqns=[_moved_equation(eqn, mesh) for eqn in value.eqns])


def _moved_equation(eqn: Any, mesh: Mesh) -> Any:
    return eqn.replace(params={name: _moved(value, mesh) for name, value in eqn.params.items()})
