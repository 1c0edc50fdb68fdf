"""Reductions, cumulative and windowed operations, sorting and selection."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.catalogue.case import (
    NO_FLOAT,
    NOT_DIFFERENTIABLE,
    Case,
    booleans,
    integers,
    limits,
    positives,
    reals,
    units,
)

X = reals(3, 4)
_FLAT = limits(grad=NOT_DIFFERENTIABLE)
_NONE = limits(grad=NOT_DIFFERENTIABLE, sandwich=NO_FLOAT, forced=NO_FLOAT)
_WINDOW = ((2, 2), (1, 1), "VALID")
_REGION = "its region is built for float32 and JAX has no public way to build it again"


def _reductions() -> list[Case]:
    table: list[tuple[str, Any, dict[str, Any]]] = [
        ("reduce_sum", lambda x: lax.reduce_sum(x, (0,)), {}),
        ("reduce_max", lambda x: lax.reduce_max(x, (0,)), {}),
        ("reduce_min", lambda x: lax.reduce_min(x, (1,)), {}),
        ("reduce_prod", lambda x: lax.reduce_prod(x, (0,)), {}),
        ("argmax", lambda x: lax.argmax(x, 1, np.int32), {"limits": _FLAT}),
        ("argmin", lambda x: lax.argmin(x, 0, np.int32), {"limits": _FLAT}),
        ("cumsum", lambda x: lax.cumsum(x, 1), {}),
        ("cumprod", lambda x: lax.cumprod(x, 0, reverse=True), {}),
        ("cummax", lambda x: lax.cummax(x, 1), {}),
        ("cummin", lambda x: lax.cummin(x, 1, reverse=True), {}),
        ("cumlogsumexp", lambda x: lax.cumlogsumexp(x, 1), {}),
        ("sort", lambda x: lax.sort(x, dimension=1), {}),
    ]
    cases = [
        Case(name=name, function=function, args=(X,), primitives=(name,), **extra)
        for name, function, extra in table
    ]
    for name in ("reduce_and", "reduce_or", "reduce_xor"):
        cases.append(
            Case(
                name=name,
                function=lambda x, name=name: getattr(lax, name)(x, (0,)),
                args=(booleans(3, 4),),
                primitives=(name,),
                through=None,
                limits=_NONE,
            )
        )
    return cases


def _custom_regions() -> list[Case]:
    def average_of_two(a: Any, b: Any) -> Any:
        return a * 0.5 + b * 0.5

    no_grad = limits(grad="JAX has no derivative of a reduction with a region of its own")
    refused: dict[str, Any] = {"forced": "refused"}
    return [
        Case(
            name="reduce with a custom computation",
            function=lambda x: lax.reduce(x, np.float32(0), average_of_two, (0,)),
            args=(X,),
            primitives=("reduce",),
            limits=no_grad,
            opaque=("reduce",),
            **refused,
        ),
        Case(
            name="reduce of two operands",
            function=lambda x: lax.reduce(
                (x, lax.broadcasted_iota(np.int32, (3, 4), 1)),
                (np.float32(-9), np.int32(0)),
                lambda a, b: (lax.max(a[0], b[0]), lax.max(a[1], b[1])),
                (1,),
            ),
            args=(X,),
            primitives=("reduce",),
            limits=no_grad,
            opaque=("reduce",),
            **refused,
        ),
        Case(
            name="reduce_window with a custom computation",
            function=lambda x: lax.reduce_window(x, np.float32(0), average_of_two, *_WINDOW),
            args=(X,),
            primitives=("reduce_window",),
            limits=no_grad,
            opaque=("reduce_window",),
            **refused,
        ),
    ]


def _windows() -> list[Case]:
    def pool(init: float, operation: Any) -> Any:
        return lambda x: lax.reduce_window(x, np.float32(init), operation, *_WINDOW)

    pooled = Case(
        name="reduce_window_max",
        function=pool(-np.inf, lax.max),
        args=(X,),
        primitives=("reduce_window_max",),
    )
    return [
        pooled,
        Case(
            name="reduce_window_min",
            function=pool(np.inf, lax.min),
            args=(X,),
            primitives=("reduce_window_min",),
            limits=limits(grad="JAX has no derivative of reduce_window_min"),
        ),
        Case(
            name="reduce_window_sum",
            function=pool(0.0, lax.add),
            args=(X,),
            primitives=("reduce_window_sum",),
        ),
        Case(
            name="reduce_window strided, dilated, padded",
            function=lambda x: lax.reduce_window(
                x, -np.inf, lax.max, (2, 2), (2, 1), [(1, 0), (0, 1)], (1, 2), (1, 2)
            ),
            args=(X,),
            primitives=("reduce_window_max",),
            limits=limits(grad="JAX has no derivative of a dilated pooling"),
        ),
        Case(
            name="gradient of max pooling",
            function=jax.grad(lambda x: jnp.sum(pool(-np.inf, lax.max)(x) * 1.5)),
            args=(X,),
            primitives=("select_and_scatter_add",),
        ),
        Case(
            name="tangent of max pooling",
            function=lambda x, t: jax.jvp(pool(-np.inf, lax.max), (x,), (t,))[1],
            args=(X, reals(3, 4, seed=3)),
            primitives=("select_and_gather_add",),
            through=1,
        ),
        Case(
            name="select_and_scatter",
            function=lambda x: _select_and_scatter(x),
            args=(X,),
            primitives=("select_and_scatter",),
            limits=limits(
                grad="JAX has no derivative of select_and_scatter",
                vmap="JAX has no batching rule for select_and_scatter",
            ),
            opaque=("select_and_scatter",),
            forced="refused",
        ),
    ]


def _select_and_scatter(x: Any) -> Any:
    """The primitive with regions of its own; ``jax.lax`` exports it only as a primitive."""
    scalar = jax.ShapeDtypeStruct((), np.float32)
    select = jax.make_jaxpr(lax.ge)(scalar, scalar)
    scatter = jax.make_jaxpr(lambda a, b: a + b)(scalar, scalar)
    return lax.select_and_scatter_p.bind(
        x,
        jnp.ones((2, 3)) * x[0, 0],
        jnp.float32(0),
        select_jaxpr=getattr(select, "jaxpr", select),
        select_consts=(),
        scatter_jaxpr=getattr(scatter, "jaxpr", scatter),
        scatter_consts=(),
        window_dimensions=(2, 2),
        window_strides=(1, 1),
        padding=((0, 0), (0, 0)),
    )


def _selections() -> list[Case]:
    return [
        Case(
            name="sort of several operands",
            function=lambda x, y: lax.sort(
                (x, y, lax.iota(np.int32, 4)[None] + 0 * _int(x)), num_keys=1
            ),
            args=(X, reals(3, 4, seed=1)),
            primitives=("sort",),
        ),
        Case(
            name="sort_key_val of integer keys",
            function=lambda k, x: lax.sort_key_val(k, x)[1],
            args=(integers(3, 4, high=100), X),
            primitives=("sort",),
            through=1,
        ),
        Case(
            name="argsort",
            function=lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
            args=(X,),
            primitives=("sort", "gather"),
        ),
        Case(name="top_k", function=lambda x: lax.top_k(x, 2), args=(X,), primitives=("top_k",)),
        Case(
            name="approx_max_k",
            function=lambda x: lax.approx_max_k(x, 2),
            args=(X,),
            primitives=("approx_top_k",),
            forced="fixed",
        ),
        Case(
            name="softmax",
            function=lambda x: jax.nn.softmax(x),
            args=(X,),
            primitives=("exp", "reduce_sum", "reduce_max", "stop_gradient"),
            limits=limits(forced="half softmax is what the deny list is for; its parts are cases"),
        ),
        Case(name="logsumexp", function=lambda x: jax.nn.logsumexp(x, 1), args=(X,)),
        Case(name="mean and variance", function=lambda x: (x.mean(1), x.var(1)), args=(X,)),
        Case(name="norm", function=jnp.linalg.norm, args=(positives(3, 4),)),
        Case(name="median", function=lambda x: jnp.median(x, axis=1), args=(X,)),
        Case(name="prod over both axes", function=jnp.prod, args=(positives(2, 3),), grad_ulp=16.0),
        Case(name="cumulative sum of many", function=jnp.cumsum, args=(units(32),)),
        Case(
            name="searchsorted",
            function=lambda x: jnp.searchsorted(jnp.sort(x[0]), x[1]),
            args=(X,),
            limits=_FLAT,
        ),
        Case(
            name="histogram",
            function=lambda x: jnp.histogram(x, 4, (-2.03, 2.03))[0],
            args=(X,),
            limits=_FLAT,
        ),
    ]


def _int(x: Any) -> Any:
    return lax.convert_element_type(x, np.int32)


CASES = [*_reductions(), *_custom_regions(), *_windows(), *_selections()]
