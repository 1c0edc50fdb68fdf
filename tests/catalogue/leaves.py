"""Arguments and results of every kind: types, shapes, static leaves, modules, aliasing."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tests.catalogue.case import (
    NOT_DIFFERENTIABLE,
    Case,
    booleans,
    cases_of,
    integers,
    limits,
    reals,
    units,
)

X, W = reals(3, 8), units(8, 8, seed=1)
_NO_GRAD = limits(grad="its operands have no float32 derivative")


_case = cases_of(X, W)


class Pair(NamedTuple):
    first: Any
    second: Any


class Linear(eqx.Module):
    """A module with a static field, a function field and an optional bias."""

    weight: Any
    bias: Any
    activation: Any
    name: str = eqx.field(static=True)

    def __call__(self, x: Any) -> Any:
        y = x @ self.weight
        return self.activation(y if self.bias is None else y + self.bias)


class Model:
    """A plain object with a method."""

    def __init__(self, w: np.ndarray) -> None:
        self.w = w

    def predict(self, x: Any) -> Any:
        return jnp.tanh(x @ self.w)


def _types() -> list[Case]:
    return [
        _case(
            "bool operand",
            lambda b, x: jnp.where(b, x @ W, 0),
            "bool leaves",
            booleans(3, 8),
            X,
            through=1,
        ),
        _case(
            "int operand",
            lambda i, x: i @ jnp.ones((8, 8), np.int32) + x @ W,
            "int leaves",
            integers(3, 8),
            X,
            through=1,
        ),
        _case(
            "int8 operand",
            lambda i, x: (x @ W) * i,
            "int leaves",
            integers(3, 8).astype(np.int8),
            X,
            through=1,
        ),
        _case(
            "uint32 operand",
            lambda i, x: (x @ W) * i,
            "int leaves",
            integers(3, 8).astype(np.uint32),
            X,
            through=1,
        ),
        _case(
            "complex operand",
            lambda c, x: jnp.real(c @ c.T) @ (x @ W)[:, :3].T,
            "complex leaves",
            (X + 1j * X).astype(np.complex64),
            X,
            through=1,
            grad_ulp=64.0,
            ulp=8.0,
        ),
        _case(
            "float16 operand",
            lambda h, x: h @ h.T + (x @ W)[:, :3].astype(np.float16),
            "already half inputs",
            X.astype(np.float16),
            X,
            through=1,
        ),
        _case(
            "bfloat16 operand",
            lambda h, x: (h * 2, x @ W),
            "already half inputs",
            jnp.asarray(X, jnp.bfloat16),
            X,
            through=1,
            limits=limits(vmap="its operand is not a NumPy array"),
        ),
        _case(
            "float8 operand",
            lambda x, w: (x @ w).astype(jnp.float8_e4m3fn).astype(np.float32) * 0 + x,
            "float8 leaves",
        ),
        _case(
            "float64 operand",
            lambda d, x: (d * 2, x @ W, d @ d.T),
            "x64",
            X.astype(np.float64),
            X,
            through=1,
            x64=True,
        ),
        _case(
            "x64 weak types",
            lambda x, w: (jnp.tanh(x @ w) * 2.5, jnp.float64(1.5) * x[0]),
            "x64",
            x64=True,
        ),
        _case(
            "x64 integers",
            lambda x, w: ((x @ w)[jnp.argmax(x[:, 0])], jnp.arange(3)),
            "x64",
            x64=True,
        ),
        _case(
            "x64 scan",
            lambda x, w: jax.lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ w) * i, x),
            "x64",
            x64=True,
        ),
        _case("weakly typed result", lambda x, w: (x @ w, 2.0 * jnp.asarray(1.0)), "weak types"),
        _case("weakly typed operand", lambda x, w: (x @ w) * 2.0 + jnp.asarray(3), "weak types"),
        _case(
            "python scalars",
            lambda x, w, n, s: jnp.tanh(x @ w) * s if n > 2 else x,
            "python scalars",
            X,
            W,
            3,
            0.5,
        ),
        _case("scalars", lambda x, s: jnp.dot(x, W) * s + s, "scalars", X, np.float32(1.5)),
        _case("scalar results", lambda x, w: jnp.max(x @ w), "scalars"),
        _case(
            "zero-size array",
            lambda x, z: (x @ W, z @ W, z.sum()),
            "zero-size arrays",
            X,
            np.zeros((0, 8), np.float32),
        ),
        _case(
            "float0 operand",
            lambda z, x: x @ W,
            "float0 leaves",
            np.zeros((3,), jax.dtypes.float0),
            X,
            through=1,
            limits=limits(vmap="vmap maps no float0"),
        ),
        _case(
            "float0 result",
            lambda x, w: (x @ w, np.zeros((3,), jax.dtypes.float0)),
            "float0 leaves",
            limits=limits(
                vmap="vmap maps no float0",
                sandwich="no dot reads float0",
                grad="no dot reads float0",
            ),
        ),
        Case(
            name="key operand",
            function=lambda k, x: x @ (jax.random.normal(k, (8, 8)) / 8),
            args=lambda: (jax.random.key(0), X),
            transformations=("PRNG keys",),
            through=1,
            ulp=8.0,
            grad_ulp=16.0,
        ),
        _case(
            "numpy operands",
            lambda x, w: np.float32(2) * (x @ w) + np.ones(8, np.float32),
            "numpy inputs",
        ),
    ]


def _structures() -> list[Case]:
    linear = Linear(W, W[0], jax.nn.tanh, "dense")
    model = Model(W)
    return [
        Case(
            name="nothing",
            function=lambda: None,
            transformations=("empty functions",),
            through=None,
            args=(),
            limits=limits(grad=NOT_DIFFERENTIABLE, vmap="vmap takes at least one operand"),
        ),
        _case("identity", lambda x, w: x, "output aliasing input"),
        _case("same result twice", lambda x, w: (lambda y: (y, y))(x @ w), "output aliasing"),
        _case("operands and results", lambda x, w: (x, x @ w, w), "output aliasing input"),
        _case(
            "constant result", lambda x, w: (jnp.ones(3), np.float32(2), x @ w), "constant outputs"
        ),
        _case("constant results only", lambda x, w: jnp.arange(3.0), "constant outputs"),
        _case(
            "trees",
            lambda p, x: {"y": x @ p["w"] + p["b"], "p": p},
            "pytrees",
            {"w": W, "b": W[0]},
            X,
            through=1,
        ),
        _case("named tuple", lambda p: Pair(p.first @ p.second, p.first), "pytrees", Pair(X, W)),
        _case("None leaves", lambda x, n, w: (x @ w, n, None), "None leaves", X, None, W),
        _case(
            "string leaves",
            lambda x, s, w: (jnp.tanh(x @ w) if s == "tanh" else x, s),
            "string leaves",
            X,
            "tanh",
            W,
            limits=limits(vmap="vmap takes no strings"),
        ),
        _case(
            "function leaves",
            lambda f, x, w: f(x @ w),
            "function leaves",
            jnp.tanh,
            X,
            W,
            through=1,
            limits=limits(vmap="vmap takes no functions"),
        ),
        _case(
            "equinox module",
            lambda m, x: m(x),
            "equinox modules",
            linear,
            X,
            through=1,
            limits=limits(vmap="vmap takes no functions"),
        ),
        _case(
            "equinox module returned",
            lambda m, x: eqx.tree_at(lambda m: m.weight, m, x @ m.weight),
            "equinox modules",
            linear,
            X,
            through=1,
            limits=limits(vmap="vmap takes no functions", grad="", sandwich=""),
        ),
        _case(
            "equinox MLP",
            lambda x, w: jax.vmap(eqx.nn.MLP(8, 8, 8, 1, key=jax.random.key(0)))(x) @ w,
            "equinox modules",
            ulp=8.0,
            grad_ulp=32.0,
        ),
        _case("method", model.predict, "methods", X),
        _case(
            "partial",
            functools.partial(lambda a, x, w: jnp.tanh(x @ w) * a, 2.0),
            "functools.partial",
        ),
        _case(
            "partial with keywords",
            functools.partial(lambda x, w, *, scale: (x @ w) * scale, scale=2),
            "kwargs",
        ),
        _case("keyword arguments", lambda x, w: _with_keywords(x, w=w, scale=0.5), "kwargs"),
        _case("default arguments", lambda x, w, activation=jnp.tanh: activation(x @ w), "kwargs"),
        _case(
            "tree.map over parameters",
            lambda p, x: jax.tree.map(lambda a: a - 0.1 * jnp.sum(x @ W), p),
            "pytrees",
            {"w": W, "b": W[0]},
            X,
            through=1,
        ),
        _case("captured arrays", lambda x: jnp.tanh(x @ W) + jnp.asarray(W)[0], "closures", X),
        _case(
            "large captured constants",
            lambda x: (
                x + jnp.asarray([1e6, 0, 0, 0, 0, 0, 0, 1e-9]) * 0 + jnp.where(x > 5, 1e30, 0)
            ),
            "closures",
            X,
        ),
        _case(
            "eval_shape",
            lambda x, w: jnp.zeros(jax.eval_shape(jnp.dot, x, w).shape) + x @ w,
            "eval_shape",
        ),
        _case("ensure_compile_time_eval", lambda x, w: (x @ w) * _compile_time(), "eval_shape"),
    ]


def _compile_time() -> Any:
    with jax.ensure_compile_time_eval():
        return jnp.sum(jnp.ones(3))


def _with_keywords(x: Any, *, w: Any, scale: float) -> Any:
    return (x @ w) * scale


CASES = [*_types(), *_structures()]
