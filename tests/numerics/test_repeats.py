"""A value that a program computes several times: a guard and what it guards agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone import Policy
from duotone.precision.rules import Rule
from tests.numerics.oracle import HALVES, mixed, reference, relative

_RANDOM = np.random.default_rng(0)
X, W = (_RANDOM.normal(size=shape).astype(np.float32) for shape in ((64, 32), (32, 64)))
B = _RANDOM.normal(size=64).astype(np.float32)


def guarded(value: Callable[..., Any]) -> Callable[..., Any]:
    """A logarithm where a value is positive; the value is computed three times."""

    def function(*args: Any) -> Any:
        positive = value(*args) > 0
        return jnp.where(positive, jnp.log(jnp.where(value(*args) > 0, value(*args), 1.0)), 0.0)

    return function


VALUES: dict[str, Callable[..., Any]] = {
    "dot": lambda x, w, b: x @ w,
    "dot and bias": lambda x, w, b: x @ w + b,
    "two layers": lambda x, w, b: jnp.tanh(x @ w + b) @ w.T,
    "transposed": lambda x, w, b: (w.T @ x.T).T - b,
}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", VALUES)
def test_a_guard_and_what_it_guards_agree(name: str, half: str) -> None:
    function = guarded(VALUES[name])
    got = mixed(function, half, X, W, B, ignore_performance=True)
    assert np.isfinite(got).all()
    assert relative(got, reference(function, X, W, B)) < (0.1 if name == "two layers" else 1e-4)


def test_without_the_rule_they_do_not() -> None:
    """Proves that the test above catches the fault."""
    function = guarded(VALUES["dot and bias"])
    got = mixed(function, "bfloat16", X, W, B, ignore_performance=True, rules_remove=["repeated"])
    assert not np.isfinite(got).all()


def test_explain_names_the_rule_and_other_dots_stay_half() -> None:
    def function(x: Any, w: Any, b: Any) -> Any:
        return guarded(VALUES["dot"])(x, w, b).sum() + jnp.tanh(x @ (2.0 * w)).sum()

    seen = duotone.explain(
        function, X, W, B, dtype="bfloat16", policy=Policy(ignore_performance=True)
    )
    dots = [row for row in seen.operations if row.operation == "dot_general"]
    assert [row.rule for row in dots].count(Rule.REPEATED.value) == 2
    assert [row.paint for row in dots].count("half") == 1
