"""Vectorised and sharded programs: ``vmap``, ``shard_map`` on a mesh of one device, collectives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.catalogue.case import Case, cases_of, integers, limits, reals, units

X, W = reals(8, 8), units(8, 8, seed=1)
P = PartitionSpec
_SPLIT = P("d")
_SPECS = (_SPLIT, P())
_STRUCTURAL = limits(forced="not an operation: a nested program")


def _mesh(kind: AxisType = AxisType.Auto) -> jax.sharding.Mesh:
    return jax.make_mesh((1,), ("d",), axis_types=(kind,), devices=jax.devices()[:1])


_case = cases_of(X, W, limits=_STRUCTURAL)


def _network(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w) @ w


def _vmaps() -> list[Case]:
    def mapped(**options: Any) -> Any:
        return lambda x, w: jax.vmap(lambda r, w: _network(r, w), **options)(x, w)

    return [
        _case("vmap", mapped(in_axes=(0, None)), "vmap"),
        _case("vmap in_axes and out_axes", mapped(in_axes=(1, None), out_axes=1), "vmap"),
        _case("vmap of both", lambda x, w: jax.vmap(jnp.dot)(x, w), "vmap"),
        _case(
            "vmap in vmap",
            lambda x, w: jax.vmap(jax.vmap(lambda a, b: a * b, (None, 0)), (0, None))(x @ w, x[0]),
            "vmap",
        ),
        _case(
            "vmap axis_name",
            lambda x, w: jax.vmap(lambda r: jnp.tanh(r @ w - lax.pmean(r, "b")), axis_name="b")(x),
            "vmap axis_name",
        ),
        _case(
            "vmap spmd_axis_name",
            lambda x, w: jax.vmap(lambda r: r @ w, spmd_axis_name="d")(x),
            "vmap spmd_axis_name",
        ),
        _case(
            "vmap of scan",
            lambda x, w: jax.vmap(
                lambda r: lax.scan(lambda c, _: (jnp.tanh(c @ w), c), r, None, length=2)
            )(x),
            "vmap of scan",
        ),
        _case(
            "vmap of grad",
            lambda x, w: jax.vmap(jax.grad(lambda r: jnp.sum(_network(r, w) ** 2)))(x),
            "vmap of grad",
        ),
        _case(
            "jnp.vectorize",
            lambda x, w: jnp.vectorize(jnp.dot, signature="(n),(n)->()")(x, w),
            "vmap",
        ),
    ]


def _sharded(
    function: Any,
    *,
    kind: AxisType = AxisType.Auto,
    specs: Any = _SPECS,
    out: Any = _SPLIT,
    **options: Any,
) -> Any:
    def run(*args: Any) -> Any:
        return jax.shard_map(function, mesh=_mesh(kind), in_specs=specs, out_specs=out, **options)(
            *args
        )

    return run


def _shard_maps() -> list[Case]:
    def summed(x: Any, w: Any) -> Any:
        return lax.psum(x @ w, "d")

    def looped(x: Any, w: Any) -> Any:
        return lax.scan(lambda c, _: (jnp.tanh(c @ w), jnp.sum(c)), x, None, length=2)[0]

    def placed(x: Any, w: Any) -> Any:
        mesh = _mesh(AxisType.Explicit)
        x = jax.sharding.reshard(x, NamedSharding(mesh, P("d", None)))
        return jnp.tanh(x @ jax.sharding.reshard(w, NamedSharding(mesh, P(None, None))))

    explicit: dict[str, Any] = {"kind": AxisType.Explicit, "specs": (P(), P()), "out": P()}
    unchecked: dict[str, Any] = {"check_vma": False}
    shard = "shard_map"
    return [
        _case("shard_map", _sharded(_network), shard, primitives=("shard_map",)),
        _case("shard_map without check_vma", _sharded(_network, **unchecked), shard),
        _case("shard_map with explicit axes", _sharded(_network, **explicit), shard),
        _case(
            "shard_map with explicit axes, unchecked",
            _sharded(_network, **explicit, **unchecked),
            shard,
        ),
        _case(
            "shard_map with a replicated result",
            _sharded(summed, specs=(P("d"), P()), out=P()),
            shard,
        ),
        _case("shard_map with a scan", _sharded(looped), shard),
        _case("shard_map after a dot", lambda x, w: _sharded(_network)(x @ w, w), shard),
        _case(
            "shard_map in scan",
            lambda x, w: lax.scan(lambda c, _: (_sharded(_network)(c, w), None), x, None, length=2)[
                0
            ],
            "shard_map in scan",
        ),
        _case(
            "shard_map with grad inside",
            _sharded(lambda x, w: jax.grad(lambda x: jnp.sum(_network(x, w) ** 2))(x)),
            "shard_map",
        ),
        _case("shard_map with custom_jvp", _sharded(lambda x, w: jax.nn.silu(x @ w)), "shard_map"),
        _case(
            "shard_map with checkpoint",
            _sharded(lambda x, w: jax.checkpoint(_network)(x, w)),
            "shard_map",
        ),
        _case(
            "shard_map with a matrix product of shards",
            _sharded(
                lambda x, w: lax.psum(x @ w, "d"), specs=(P(None, "d"), P("d", None)), out=P()
            ),
            shard,
        ),
        _case(
            "shard_map of a captured array",
            lambda x, w: _sharded(lambda x: x @ w, specs=(P("d"),))(x),
            shard,
        ),
        _case(
            "explicit sharding",
            placed,
            "explicit sharding",
            limits=limits(
                forced="not an operation",
                grad="JAX asks for an out_sharding of the backward dot",
            ),
        ),
    ]


def _collective(name: str, function: Any, primitive: str, **fields: Any) -> Case:
    fields = {"out": P("d"), "limits": {}, **fields}
    out = fields.pop("out")
    sharded = _sharded(function, specs=(P("d"),), out=out, check_vma=False)
    opaque = () if primitive in _MOVES else (primitive,)
    return _case(name, sharded, "collectives", X, primitives=(primitive,), opaque=opaque, **fields)


_NEIGHBOURS = [(0, 0)]
_MOVES = ("all_gather", "all_to_all", "ppermute")
"""Collectives that compute nothing: they move half where their neighbours are half."""


def _collectives() -> list[Case]:
    return [
        _collective("psum", lambda x: lax.psum(x, "d"), "psum", out=P()),
        _collective("pmean", lambda x: lax.pmean(x, "d"), "psum", out=P()),
        _collective(
            "pmax",
            lambda x: lax.pmax(x, "d"),
            "pmax",
            out=P(),
            limits=limits(grad="JAX has no derivative of pmax"),
        ),
        _collective(
            "pmin",
            lambda x: lax.pmin(x, "d"),
            "pmin",
            out=P(),
            limits=limits(grad="JAX has no derivative of pmin"),
        ),
        _collective("all_gather", lambda x: lax.all_gather(x, "d"), "all_gather"),
        _collective("all_to_all", lambda x: lax.all_to_all(x, "d", 0, 0, tiled=True), "all_to_all"),
        _collective("ppermute", lambda x: lax.ppermute(x, "d", _NEIGHBOURS), "ppermute"),
        _collective(
            "psum_scatter", lambda x: lax.psum_scatter(x, "d", tiled=True), "reduce_scatter"
        ),
        _collective("axis_index", lambda x: x + lax.axis_index("d"), "axis_index"),
        _collective("pswapaxes", lambda x: lax.pswapaxes(x[None], "d", 0)[0], "all_to_all"),
        _case("pcast", _sharded(lambda x, w: x @ lax.pcast(w, "d", to="varying")), "collectives"),
        _case(
            "ragged_all_to_all",
            _sharded(_ragged, specs=(P("d"),), out=P("d"), check_vma=False),
            "collectives",
            X,
            primitives=("ragged_all_to_all",),
            opaque=("ragged_all_to_all",),
            limits=limits(
                grad="traced only", vmap="traced only", forced="traced only", sandwich="traced only"
            )
            | {"plain": "XLA has no ragged_all_to_all on CPU"},
        ),
        _case(
            "psum under vmap",
            lambda x, w: jax.vmap(lambda r: lax.psum(r @ w, "b"), axis_name="b")(x),
            "vmap axis_name",
        ),
        _case(
            "all_gather under vmap",
            lambda x, w: jax.vmap(lambda r: lax.all_gather(r @ w, "b") * r, axis_name="b")(x),
            "vmap axis_name",
        ),
        _case(
            "ppermute under vmap",
            lambda x, w: jax.vmap(
                lambda r: lax.ppermute(r @ w, "b", [(i, (i + 1) % 8) for i in range(8)]),
                axis_name="b",
            )(x),
            "vmap axis_name",
        ),
        _case(
            "pmax of integers",
            _sharded(
                lambda x, i: x + lax.pmax(i, "d"),
                specs=(P("d"), P("d")),
                out=P("d"),
                check_vma=False,
            ),
            "collectives",
            X,
            integers(8, 8),
            limits=limits(grad="JAX has no derivative of pmax", forced="not an operation"),
        ),
    ]


def _ragged(x: Any) -> Any:
    one = jnp.array([0], np.int32)
    size = jnp.array([4], np.int32)
    return lax.ragged_all_to_all(x, jnp.zeros_like(x), one, size, one, size, axis_name="d")


CASES = [*_vmaps(), *_shard_maps(), *_collectives()]
