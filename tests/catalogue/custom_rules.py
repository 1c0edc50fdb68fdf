"""Functions with rules of their own: custom_jvp, custom_vjp and what is built on them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.catalogue.case import (
    Case,
    cases_of,
    integers,
    limits,
    matrix,
    positives,
    reals,
    symmetric,
    units,
)

X, W = reals(8, 8), units(8, 8, seed=1)
_STRUCTURAL = limits(forced="not an operation: a nested program")


_case = cases_of(X, W)


def _scanned(block: Any, x: Any, w: Any) -> Any:
    return lax.scan(lambda x, _: (block(x, w), jnp.sum(x)), x, None, length=3)


@jax.custom_jvp
def _softplus(x: Any) -> Any:
    return jnp.log1p(jnp.exp(x))


@_softplus.defjvp
def _softplus_rule(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return _softplus(x), t * jax.nn.sigmoid(x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _applied(function: Any, x: Any) -> Any:
    return function(x) @ W


@_applied.defjvp
def _applied_rule(function: Any, primals: Any, tangents: Any) -> Any:
    return jax.jvp(lambda x: function(x) @ W, primals, tangents)


@jax.custom_jvp
def _two_results(x: Any, i: Any) -> Any:
    return x @ W, x[i]


@_two_results.defjvp
def _two_results_rule(primals: Any, tangents: Any) -> Any:
    x, i = primals
    t = tangents[0]
    return _two_results(x, i), (t @ W, t[i])


@jax.custom_vjp
def _clipped_gradient(x: Any) -> Any:
    return x


_clipped_gradient.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1, 1),))


@jax.custom_vjp
def _dense(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def _dense_forward(x: Any, w: Any) -> Any:
    y = jnp.tanh(x @ w)
    return y, (x, w, y)


def _dense_backward(residuals: Any, g: Any) -> Any:
    x, w, y = residuals
    g = g * (1 - y * y)
    return g @ w.T, x.T @ g


_dense.defvjp(_dense_forward, _dense_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 2))
def _scaled(factor: float, x: Any, name: str) -> Any:
    del name
    return (x @ W) * factor


_scaled.defvjp(lambda f, x, n: (_scaled(f, x, n), None), lambda f, n, _, g: ((g @ W.T) * f,))


@jax.custom_vjp
def _looked_up(table: Any, ids: Any) -> Any:
    return table[ids]


_looked_up.defvjp(
    lambda t, i: (t[i], (i, t)),
    lambda r, g: (jnp.zeros_like(r[1]).at[r[0]].add(g), np.zeros(r[0].shape, jax.dtypes.float0)),
)


@jax.custom_vjp
def _tree(parameters: Any, x: Any) -> Any:
    return {"out": x @ parameters["w"] + parameters["b"], "count": jnp.int32(3)}


_tree.defvjp(
    lambda p, x: (_tree(p, x), (p["w"], x)),
    lambda r, g: ({"w": r[1].T @ g["out"], "b": g["out"].sum(0)}, g["out"] @ r[0].T),
)


@jax.custom_gradient
def _with_custom_gradient(x: Any) -> Any:
    y = jnp.sin(x @ W)
    return y, lambda g: (g * 2) @ W.T


def _custom_rules() -> list[Case]:
    return [
        _case(
            "custom_jvp",
            lambda x: _softplus(x),
            "custom_jvp",
            X,
            primitives=("custom_jvp_call",),
            limits=_STRUCTURAL,
        ),
        _case("custom_jvp nondiff_argnums", lambda x: _applied(jnp.tanh, x), "custom_jvp", X),
        _case(
            "custom_jvp of integers and two results",
            lambda x, i: _two_results(x, i),
            "custom_jvp",
            X,
            integers(2, high=3),
        ),
        _case(
            "custom_jvp in scan",
            lambda x, w: _scanned(lambda x, w: _softplus(x @ w), x, w),
            "custom_jvp",
        ),
        _case("custom_jvp under vmap", lambda x: jax.vmap(_softplus)(x), "custom_jvp", X),
        _case("relu", jax.nn.relu, "custom_jvp", X + 0.03125),
        _case(
            "jax.nn activations",
            lambda x: [
                f(x) for f in (jax.nn.silu, jax.nn.gelu, jax.nn.relu6, jax.nn.elu, jax.nn.softplus)
            ],
            "custom_jvp",
            X + 0.03125,
        ),
        _case("sinc at 0", lambda x: jnp.sinc(x), "custom_jvp", np.zeros((3, 4), np.float32)),
        _case(
            "custom_vjp",
            lambda x: _clipped_gradient(x),
            "custom_vjp",
            X,
            primitives=("custom_vjp_call",),
            limits=_STRUCTURAL,
        ),
        _case("custom_vjp with residuals", lambda x, w: _dense(x, w), "custom_vjp"),
        _case("custom_vjp nondiff_argnums", lambda x: _scaled(0.5, x, "name"), "custom_vjp", X),
        _case(
            "custom_vjp of integers",
            lambda t, i: _looked_up(t, i),
            "custom_vjp",
            X,
            integers(5, high=3),
        ),
        _case("custom_vjp of trees", lambda x, w: _tree({"w": w, "b": w[0]}, x), "custom_vjp"),
        _case("custom_vjp closing over an array", lambda x, w: _closing(w)(x), "custom_vjp"),
        _case("custom_vjp in scan", lambda x, w: _scanned(_dense, x, w), "custom_vjp in scan"),
        _case(
            "custom_vjp in checkpoint",
            jax.checkpoint(lambda x, w: _dense(x, w)),
            "custom_vjp in checkpoint",
        ),
        _case(
            "custom_vjp in cond",
            lambda x, w: lax.cond(jnp.sum(x) > 0, _dense, lambda x, w: x @ w, x, w),
            "custom_vjp in cond",
        ),
        _case(
            "custom_vjp under vmap",
            lambda x, w: jax.vmap(_dense, (0, None))(x[:, None], w),
            "custom_vjp",
        ),
        _case(
            "grad of custom_vjp", jax.grad(lambda x, w: jnp.sum(_dense(x, w)), (0, 1)), "custom_vjp"
        ),
        _case("custom_gradient", lambda x: _with_custom_gradient(x), "custom_gradient", X),
        _case(
            "custom_linear_solve",
            _solve,
            "custom_linear_solve",
            matrix(4),
            reals(4),
            opaque=("custom_linear_solve",),
            loose=_LOOSE,
        ),
        _case("custom_root", _root, "custom_root", positives(4), loose=_LOOSE),
        _case(
            "conjugate gradients",
            lambda a, b: jax.scipy.sparse.linalg.cg(lambda x: a @ x, b, maxiter=20)[0],
            "custom_linear_solve",
            symmetric(4),
            reals(4),
            loose=_LOOSE,
            limits=limits(
                grad="its derivative solves again with rounded factors: no use as a check"
            ),
        ),
        _case(
            "custom_vmap",
            lambda x: _batched(x),
            "custom_vmap",
            X,
            limits=limits(grad="JAX differentiates no custom_vmap in reverse mode"),
        ),
        _case(
            "custom_jvp inside jit inside vmap",
            lambda x: jax.vmap(jax.jit(_softplus))(x),
            "custom_jvp",
            X,
        ),
        _case("optimize_remat custom_vjp", lambda x, w: _rematted(x, w), "custom_vjp"),
        _case("custom_jvp with symbolic zeros", lambda x: _symbolic(x, x), "custom_jvp", X),
    ]


_LOOSE = (64.0, "a solution magnifies the rounding of the dots around it by its condition number")


def _closing(w: Any) -> Any:
    @jax.custom_vjp
    def function(x: Any) -> Any:
        return x @ W

    function.defvjp(lambda x: (x @ W, None), lambda _, g: (g @ W.T,))
    return lambda x: function(x) + x @ w


def _solve(a: Any, b: Any) -> Any:
    return lax.custom_linear_solve(
        lambda x: a @ x,
        b,
        lambda _, y: jnp.linalg.inv(a) @ y,
        transpose_solve=lambda _, y: jnp.linalg.inv(a).T @ y,
    )


def _root(x: Any) -> Any:
    def newton(f: Any, start: Any) -> Any:
        return lax.fori_loop(0, 12, lambda _, y: 0.5 * (y + x / y), start)

    return lax.custom_root(
        lambda y: y * y - x, jnp.ones_like(x), newton, lambda g, y: y / g(jnp.ones_like(y))
    )


@jax.custom_batching.custom_vmap
def _batched(x: Any) -> Any:
    return jnp.sin(x)


@_batched.def_vmap
def _batched_rule(size: int, batched: Any, x: Any) -> Any:
    del size
    return jnp.sin(x), batched[0]


@jax.custom_vjp
def _remat_forward(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


_remat_forward.defvjp(_dense_forward, _dense_backward, optimize_remat=True)


def _rematted(x: Any, w: Any) -> Any:
    return _remat_forward(x, w)


@jax.custom_jvp
def _symbolic(x: Any, y: Any) -> Any:
    return x * jnp.tanh(y)


@functools.partial(_symbolic.defjvp, symbolic_zeros=True)
def _symbolic_rule(primals: Any, tangents: Any) -> Any:
    x, y = primals
    parts = [
        None if type(t).__name__ == "SymbolicZero" else t * d
        for t, d in zip(tangents, (jnp.tanh(y), x * (1 - jnp.tanh(y) ** 2)), strict=True)
    ]
    real = [p for p in parts if p is not None]
    return _symbolic(x, y), sum(real, jnp.zeros_like(x))


CASES = _custom_rules()
