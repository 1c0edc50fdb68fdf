"""Primitives that move data: shapes, slices, gather and scatter in all modes, copies, placement."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from tests.catalogue.case import NOT_DIFFERENTIABLE, Case, booleans, integers, limits, reals

X = reals(3, 4)
Y = reals(3, 4, seed=1)
_ROWS = np.array([[0], [2]], np.int32)
_ROWS_OUTSIDE = np.array([[0], [5]], np.int32)
_ROWS_TWICE = np.array([[1], [1]], np.int32)
_GATHER_ROWS = lax.GatherDimensionNumbers(
    offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,)
)
_SCATTER_ROWS = lax.ScatterDimensionNumbers(
    update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
)

_MOVES: list[tuple[str, str, Any]] = [
    ("broadcast_in_dim", "broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (1, 2))),
    ("broadcast_in_dim of size one", "broadcast_in_dim", lambda x: jnp.broadcast_to(x[:1], (3, 4))),
    ("copy", "copy", lambda x: jnp.array(x, copy=True)),
    ("concatenate", "concatenate", lambda x: jnp.concatenate([x, x[:1]], 0)),
    ("expand_dims", "broadcast_in_dim", lambda x: lax.expand_dims(x, (0, 3))),
    ("pad", "pad", lambda x: lax.pad(x, jnp.float32(0.5), [(1, 1, 0), (0, 2, 1)])),
    ("pad negative", "pad", lambda x: lax.pad(x, jnp.float32(0.5), [(-1, 1, 0), (0, -1, 0)])),
    ("reshape", "reshape", lambda x: lax.reshape(x, (2, 6))),
    ("reshape with dimensions", "reshape", lambda x: lax.reshape(x, (2, 6), (1, 0))),
    ("rev", "rev", lambda x: lax.rev(x, (0, 1))),
    ("slice", "slice", lambda x: lax.slice(x, (0, 1), (3, 4), (2, 1))),
    ("split", "split", lambda x: lax.split(x, (1, 3), 1)),
    ("squeeze", "squeeze", lambda x: lax.squeeze(x[:1], (0,))),
    ("tile", "tile", lambda x: lax.tile(x, (2, 1))),
    ("transpose", "transpose", lambda x: lax.transpose(x, (1, 0))),
    ("unstack", "unstack", lambda x: lax.unstack(x, axis=0)),
    ("stack", "stack", lambda x: lax.stack([x, x], axis=1)),
    ("optimization_barrier", "optimization_barrier", lambda x: lax.optimization_barrier((x, 1))[0]),
    ("device_put", "device_put", lambda x: jax.device_put(x)),
    ("device_put on a device", "device_put", lambda x: jax.device_put(x, jax.devices()[0])),
    ("checkpoint_name", "name", lambda x: checkpoint_name(jnp.sin(x), "sin")),
    ("dynamic_slice", "dynamic_slice", lambda x: lax.dynamic_slice(x, (1, 0), (2, 4))),
    (
        "dynamic_update_slice",
        "dynamic_update_slice",
        lambda x: lax.dynamic_update_slice(x, x[:1], (1, 0)),
    ),
    ("gather by indexing", "gather", lambda x: x[np.array([0, 2, 0])]),
    ("gather of negative index", "gather", lambda x: x[jnp.array([-1, 0])]),
    ("boolean where", "select_n", lambda x: jnp.where(booleans(3, 4), x, -3.0)),
    ("empty", "", lambda x: (x, 0 * lax.empty((2,), np.int32))),
    ("iota", "iota", lambda x: x + lax.broadcasted_iota(np.float32, (3, 4), 1)),
]


def _gather(mode: Any, indices: np.ndarray = _ROWS) -> Any:
    return lambda x: lax.gather(x, indices, _GATHER_ROWS, (1, 4), mode=mode)


def _scatter(function: Any, mode: Any = None, indices: np.ndarray = _ROWS) -> Any:
    return lambda x, y: function(x, indices, y[:2], _SCATTER_ROWS, mode=mode)


def _moves() -> list[Case]:
    return [
        Case(name=name, function=function, args=(X,), primitives=(primitive,) if primitive else ())
        for name, primitive, function in _MOVES
    ]


def _gathers() -> list[Case]:
    modes = [
        ("promise_in_bounds", _ROWS),
        ("clip", _ROWS_OUTSIDE),
        ("fill", _ROWS_OUTSIDE),
        ("fill", _ROWS),
    ]
    return [
        Case(
            name=f"gather {mode}{' outside' if indices is _ROWS_OUTSIDE else ''}",
            function=_gather(lax.GatherScatterMode.from_any(mode), indices),
            args=(X,),
            primitives=("gather",),
        )
        for mode, indices in modes
    ]


def _scatters() -> list[Case]:
    no_mul = limits(grad="JAX has no derivative of scatter_mul with repeated indices")
    no_grad = limits(grad=NOT_DIFFERENTIABLE)
    table: list[tuple[str, str, Any, dict[str, str]]] = [
        ("scatter", "scatter", _scatter(lax.scatter), {}),
        ("scatter clip", "scatter", _scatter(lax.scatter, "clip", _ROWS_OUTSIDE), {}),
        ("scatter drop", "scatter", _scatter(lax.scatter, "drop", _ROWS_OUTSIDE), {}),
        ("scatter_add", "scatter-add", _scatter(lax.scatter_add), {}),
        ("scatter_add twice", "scatter-add", _scatter(lax.scatter_add, None, _ROWS_TWICE), {}),
        ("scatter_sub", "scatter-sub", _scatter(lax.scatter_sub), {}),
        ("scatter_mul", "scatter-mul", _scatter(lax.scatter_mul), no_mul),
        ("scatter_min", "scatter-min", _scatter(lax.scatter_min), no_grad),
        ("scatter_max", "scatter-max", _scatter(lax.scatter_max), no_grad),
    ]
    cases = [
        Case(name=name, function=function, args=(X, Y), primitives=(primitive,), limits=limit)
        for name, primitive, function, limit in table
    ]
    cases += [
        Case(
            name="scatter_apply",
            function=lambda x: lax.scatter_apply(
                x, jnp.asarray(_ROWS), jnp.sin, _SCATTER_ROWS, update_shape=(2, 4)
            ),
            args=(X,),
            limits=limits(grad="JAX has no derivative of scatter_apply"),
        ),
        Case(name="at set", function=lambda x, y: x.at[1:].set(y[1:]), args=(X, Y)),
        Case(name="at add", function=lambda x, y: x.at[jnp.array([0, 0])].add(y[:2]), args=(X, Y)),
        Case(
            name="at apply", function=lambda x: x.at[0].apply(jnp.tanh), args=(X,), limits=no_grad
        ),
        Case(
            name="updates flow through the dot",
            function=lambda x, y: x.at[jnp.array([0, 2])].set(y[:2]),
            args=(X, Y),
            through=1,
            primitives=("scatter",),
        ),
        Case(
            name="dynamic_update_slice of a large operand",
            function=lambda x, y: lax.dynamic_update_slice(x, y[:1], (2, 0)),
            args=(reals(6, 4), Y),
            through=1,
            primitives=("dynamic_update_slice",),
        ),
        Case(
            name="dynamic_slice at a traced place",
            function=lambda x, i: lax.dynamic_slice(x, (i, 0 * i), (1, 4)),
            args=(X, np.int32(2)),
            primitives=("dynamic_slice",),
        ),
        Case(
            name="embedding",
            function=lambda table, ids: jnp.take(table, ids, axis=0),
            args=(reals(8, 4), integers(5, high=8)),
            primitives=("gather",),
        ),
        Case(
            name="pad with a traced value",
            all_operands=True,
            function=lambda x, y: lax.pad(x, y[0, 0], [(1, 0, 0), (0, 0, 0)]),
            args=(X, Y),
            primitives=("pad",),
        ),
        Case(
            name="concatenate of mixed sizes",
            all_operands=True,
            function=lambda x, y: jnp.concatenate([x, jnp.zeros((1, 4)), y], 0),
            args=(X, Y),
            primitives=("concatenate",),
        ),
        Case(
            name="copy_p by jnp.copy under jit",
            function=lambda x: jax.jit(jnp.copy)(x),
            args=(X,),
            primitives=("copy",),
        ),
    ]
    return cases


CASES = [*_moves(), *_gathers(), *_scatters()]
