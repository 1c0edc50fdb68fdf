"""Every safety rule stays on where an operation that nobody described is in its way.

``mystery`` is a primitive without a row in the table, and so is ``mystery_of_two``. Each program
below has one of them between the parts that a rule connects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.core import ShapedArray

import duotone
from duotone import _jax
from duotone.ops.jax import TRAITS

FORCE = duotone.Policy(ignore_performance=True)
R = np.random.default_rng(0)


def _invented(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A primitive of its own that does what a function does."""
    primitive = _jax.Primitive(name)
    primitive.def_impl(function)

    @primitive.def_abstract_eval
    def _(*args: Any) -> ShapedArray:
        made = jax.eval_shape(function, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in args))
        return ShapedArray(made.shape, made.dtype)

    _jax.mlir.register_lowering(primitive, _jax.mlir.lower_fun(function, multiple_results=False))
    _jax.batching.primitive_batchers[primitive] = lambda args, axes: (
        primitive.bind(*args),
        axes[0],
    )
    return primitive.bind


def normal(*shape: int) -> Any:
    return R.normal(size=shape).astype(np.float32)


mystery = _invented("mystery", lambda x: x)
mystery_of_two = _invented("mystery_of_two", lambda x, y: x)
mystery_float = _invented("mystery_float", lambda x: x.astype(np.float32))
mystery_end = _invented("mystery_end", lambda x: x > 1e-5)
A, V, W, X = normal(24, 24), normal(24, 8), normal(24, 24), normal(32, 24)
POSITIONS = np.arange(3000, 3064, dtype=np.int32)
IMAGE, WINDOW = 5 + normal(1, 1, 16, 16), np.full((1, 1, 5, 5), 1 / 25, np.float32)


def loop(turn: Callable[[Any], Any], start: Any, turns: int = 20) -> Any:
    return lax.scan(lambda x, _: (turn(x), None), start, None, length=turns)[0]


def unit(v: Any) -> Any:
    return v / jnp.linalg.norm(v, axis=0)


ITERATION = {
    "after the dot": lambda a, v: loop(lambda v: unit(mystery(a @ v)), v),
    "before the dot": lambda a, v: loop(lambda v: unit(a @ mystery(v)), v),
    "after the norm": lambda a, v: loop(lambda v: mystery(unit(a @ v)), v),
    "the norm": lambda a, v: loop(lambda v: a @ v / mystery(jnp.linalg.norm(a @ v)), v),
    "of two": lambda a, v: loop(lambda v: unit(mystery_of_two(a @ v, v)), v),
    "of a step": lambda a, v: loop(lambda x: jnp.clip(mystery(x - 0.1 * (a @ x)), -1, 1), v),
}
SOLVE = {
    "before": lambda x, y: jnp.linalg.solve(mystery(x.T @ x), x.T @ y),
    "downstream": lambda x, y: x @ mystery(jnp.linalg.solve(x.T @ x, x.T @ y)),
    "beside": lambda x, y: x @ jnp.linalg.solve(x.T @ x, x.T @ y) - mystery(x @ y[:24]),
    "of two": lambda x, y: x @ mystery_of_two(jnp.linalg.solve(x.T @ x, x.T @ y), y[:24]),
}


def _square(x: Any) -> Any:
    return jnp.sum(x * x, -1)


DISTANCE = {
    "the dot": lambda x, y: _square(x)[:, None] + _square(y) - mystery(2 * x @ y.T),
    "before": lambda x, y: _square(x)[:, None] + _square(y) - 2 * mystery(x) @ mystery(y).T,
    "the square": lambda x, y: mystery(_square(x))[:, None] + _square(y) - 2 * x @ y.T,
    "the squares": lambda x, y: mystery(_square(x)[:, None] + _square(y)) - 2 * x @ y.T,
    "their operand": lambda x, y: _square(mystery(x))[:, None] + _square(mystery(y)) - 2 * x @ y.T,
}


def conv(x: Any, w: Any) -> Any:
    return lax.conv(x, w, (1, 1), "VALID")


MOMENTS = {
    "the second": lambda x, w: mystery(conv(x * x, w)) - conv(x, w) ** 2,
    "the product": lambda x, w: conv(mystery(x * x), w) - conv(x, w) ** 2,
    "the first": lambda x, w: conv(x * x, w) - mystery(conv(x, w)) ** 2,
    "the square": lambda x, w: conv(x * x, w) - mystery(conv(x, w) ** 2),
    "the operand": lambda x, w: conv(x * x, w) - conv(mystery(x), w) ** 2,
    "the sign": lambda x, w: conv(x * x, w) + mystery(conv(x, w) ** 2),
}


def until(test: Callable[..., Any], between: Callable[[Any], Any] = lambda x: x) -> Any:
    def run(m: Any, b: Any) -> Any:
        def turn(state: Any) -> Any:
            x, _, i = state
            new = between(jnp.tanh(m @ x)) + b
            return new, test(x, new), i + 1

        first = test(b, b + 1.0)
        on = (lambda s: s[1] & (s[2] < 99)) if first.dtype == bool else None
        on = on or (lambda s: (s[1] > 1e-5) & (s[2] < 99))
        return lax.while_loop(on, turn, (b, first, 0))[0]

    return run


norm = jnp.linalg.norm
END = {
    "the error": until(lambda x, new: mystery(norm(new - x))),
    "the difference": until(lambda x, new: norm(mystery(new - x))),
    "its own difference": until(lambda x, new: norm(mystery_of_two(new, x))),
    "the negative": until(lambda x, new: norm(new + mystery(-x))),
    "the sum": until(lambda x, new: norm(new + mystery(x))),
    "the state": until(lambda x, new: norm(new - x), mystery),
    "the flag": until(lambda x, new: mystery(norm(new - x) > 1e-5)),
    "its own flag": until(lambda x, new: mystery_end(norm(new - x))),
    "flags": until(lambda x, new: mystery(jnp.abs(new - x) > 1e-5).any()),
    "a count": until(lambda x, new: mystery(jnp.sum(jnp.abs(new - x) > 1e-5)) > 0),
}


def summed(add: Callable[[Any, Any], Any]) -> Any:
    """A sum of 100 results of dots that is also read by them."""

    def run(w: Any, x: Any) -> Any:
        def turn(s: Any, x: Any) -> Any:
            return add(s, jnp.tanh((x + s) @ w)), None

        return lax.scan(turn, x[0], x)[0]

    return run


SUM = {
    "what is added": summed(lambda s, new: s + mystery(new)),
    "the sum": summed(lambda s, new: mystery(s + new)),
    "what was there": summed(lambda s, new: mystery(s) + new),
    "the addition": summed(mystery_of_two),
}
PLACE = {
    "positions": lambda p, r: jnp.sin(mystery(p.astype(r.dtype)) @ r),
    "integers": lambda p, r: jnp.sin(mystery(p).astype(r.dtype) @ r),
    "the conversion": lambda p, r: mystery_float(p) @ r,
    "scaled": lambda p, r: (mystery(p.astype(r.dtype) * 0.5) + 1.0) @ r,
    "counters": lambda p, r: mystery(jnp.arange(64.0)[None] * jnp.ones((16, 1))) @ r,
}
ANGLE = {
    "the angle": lambda w, x: jnp.sin(mystery(x @ w)),
    "the shift": lambda w, x: jnp.cos(2 * jnp.pi * mystery(x @ w + 1.0)),
}
LOG_POWER = {
    "the power": lambda s, w: jnp.log(mystery((s * s) @ w) + 1e-6),
    "the guard": lambda s, w: jnp.log(mystery(jnp.maximum((s * s) @ w, 1e-6))),
    "of two": lambda s, w: jnp.log(mystery_of_two((s * s) @ w, s)),
    "the filter": lambda s, w: jnp.log((mystery(s @ w) ** 2) @ w + 1e-6),
    "log1p": lambda s, w: jnp.log1p(mystery((s * s) @ w)),
}
QUOTIENT = {
    "the difference": lambda w, x: mystery((x + 0.01) @ w - x @ w) / 0.01,
    "a value": lambda w, x: (mystery((x + 0.01) @ w) - x @ w) / 0.01,
    "both values": lambda w, x: (mystery((x + 0.01) @ w) - mystery(x @ w)) * 100.0,
    "before a dot": lambda w, x: (mystery(x + 0.01) @ w - x @ w) / 0.01,
    "of two": lambda w, x: mystery_of_two((x + 0.01) @ w - x @ w, x) / 0.01,
}
CASES = {
    f"{rule}: {name}": (rule, program, args)
    for rule, programs, args in (
        ("iteration", ITERATION, (A, V)),
        ("solve", SOLVE, (X, X[:, :8])),
        ("distance", DISTANCE, (X, X + 1)),
        ("distance", MOMENTS, (IMAGE, WINDOW)),
        ("carry", END, (A / 9, V)),
        ("position", PLACE, (np.tile(POSITIONS, (16, 1)), normal(64, 16))),
        ("position", ANGLE, (W, X)),
        ("log_power", LOG_POWER, (X, W)),
        ("quotient", QUOTIENT, (W, X)),
    )
    for name, program in programs.items()
}


def operations(program: Any, args: Any, half: str, *names: str) -> list[Any]:
    seen = duotone.explain(program, *args, dtype=half, policy=FORCE).operations
    assert any(o.operation.startswith("mystery") for o in seen)
    return [o for o in seen if o.operation in names]


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_a_rule_stays_on(name: str, half: str) -> None:
    rule, program, args = CASES[name]
    dots = operations(program, args, half, "dot_general", "conv_general_dilated")
    assert dots
    assert all(dot.paint == "full" for dot in dots), [(o.rule, str(o.source)) for o in dots]
    assert any(dot.rule in (rule, "solve", "deny") for dot in dots)


@pytest.mark.parametrize("name", SUM)
def test_a_sum_over_iterations_stays_full(name: str) -> None:
    """What reads the sum is full because the carry is, which no list shows."""
    added = operations(SUM[name], (W, normal(100, 8, 24)), "bfloat16", "add")
    assert all(o.paint == "full" for o in added)
    assert any(o.rule == "taint" for o in added)


def test_what_a_logarithm_cancels_stays_full() -> None:
    program = lambda w, x: jnp.log(mystery(1.0 - jax.nn.sigmoid(x @ w)) + 1e-6) @ w  # noqa: E731
    (saturating,) = operations(program, (W, X), "bfloat16", "logistic")
    assert saturating.rule == "cancellation"


def test_the_gates_of_a_recurrence_stay_full() -> None:
    def program(w: Any, x: Any) -> Any:
        kept = mystery(jax.nn.sigmoid(x @ w + 6.0))
        return loop(lambda state: mystery(kept * state) + (1 - kept) * x, x)

    (saturating,) = operations(program, (W, X), "bfloat16", "logistic")
    assert saturating.rule == "cancellation"


def test_positions_before_they_are_rounded_stay_full() -> None:
    program = lambda w, x: jnp.floor(mystery((x @ w) * 300.0) + 2.0)  # noqa: E731
    found = operations(program, (W, X), "bfloat16", "mul", "add")
    assert found
    assert all(o.paint == "full" for o in found)


def test_the_invented_operations_have_no_row() -> None:
    assert not {"mystery", "mystery_of_two", "mystery_float", "mystery_end"} & set(TRAITS)
