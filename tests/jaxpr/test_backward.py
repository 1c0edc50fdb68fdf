"""The backward pass of a rewritten function, painted together with its forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone import _jax
from duotone.errors import RewriteError
from duotone.jaxpr.running import passes
from duotone.transforms import mixed_function as _mixed
from tests.jaxpr.programs import half, named

KEYS = jax.random.split(jax.random.key(3), 4)
X = jax.random.normal(KEYS[0], (48, 32))
WEIGHTS = {"a": jax.random.normal(KEYS[1], (32, 32)) / 6, "b": jax.random.normal(KEYS[2], (32, 8))}


def model(weights: Any, x: Any) -> tuple[Any, Any]:
    logits = jax.nn.gelu(x @ weights["a"]) @ weights["b"]
    return -jax.nn.log_softmax(logits)[:, 0].mean(), logits


def loss(weights: Any, x: Any) -> Any:
    return model(weights, x)[0]


def close(got: Any, want: Any) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, atol=0.01 * float(jnp.abs(other).max()) + 1e-6)


def in_loop(f: Callable[..., Any], weights: Any, x: Any) -> Any:
    return jax.lax.scan(lambda c, row: (c + f(weights, row[None]), None), 0.0, x)[0]


TRANSFORMED: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "grad": lambda f: jax.grad(f)(WEIGHTS, X),
    "both arguments": lambda f: jax.jit(jax.grad(f, (0, 1)))(WEIGHTS, X),
    "jvp": lambda f: jax.jvp(f, (WEIGHTS, X), (WEIGHTS, jnp.cos(X)))[1],
    "linearize": lambda f: jax.linearize(f, WEIGHTS, X)[1](WEIGHTS, jnp.cos(X)),
    "grad of vmap": lambda f: jax.grad(
        lambda w: jax.vmap(f, (None, 0))(w, X.reshape(4, 12, 32)).sum()
    )(WEIGHTS),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f), (None, 0))(WEIGHTS, X.reshape(4, 12, 32)),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f))(WEIGHTS, X),
    "scan": lambda f: jax.grad(lambda w: in_loop(f, w, X[:5]))(WEIGHTS),
    "forward over reverse": lambda f: jax.jvp(jax.grad(f), (WEIGHTS, X), (WEIGHTS, X))[1],
    "reverse over forward": lambda f: jax.grad(
        lambda x: jax.jvp(lambda x: f(WEIGHTS, x), (x,), (jnp.cos(X),))[1]
    )(X),
    "hessian": lambda f: jax.hessian(lambda x: f(WEIGHTS, x[None]))(X[0]),
    "reverse over reverse": lambda f: jax.grad(lambda x: jnp.sum(jax.grad(f, 1)(WEIGHTS, x) ** 2))(
        X
    ),
    "closure": lambda f: jax.grad(lambda x: f(WEIGHTS, x))(X),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_derivatives_are_those_of_float32(name: str) -> None:
    transformed = TRANSFORMED[name]
    close(transformed(half(loss)), transformed(loss))


def test_a_wrong_backward_pass_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: the transpose forgets a factor."""
    rule = passes._transpose

    def wrong(*args: Any, **params: Any) -> list[Any]:
        return [None if ct is None else 1.1 * ct for ct in rule(*args, **params)]

    monkeypatch.setitem(_jax.ad.primitive_transposes, passes.LINEAR, wrong)
    with pytest.raises(AssertionError):
        close(jax.grad(half(loss))(WEIGHTS, X), jax.grad(loss)(WEIGHTS, X))


def test_it_is_the_backward_pass_of_the_whole_step() -> None:
    """The same equations as of the gradient, rewritten; and other ones with the rule removed."""

    def count(function: Any) -> dict[str, int]:
        program = jax.make_jaxpr(function)(WEIGHTS, X)
        return {
            name: len(named(program, name))
            for name in ("dot_general", "duotone_dot", "optimization_barrier", "erf", "tanh")
        }

    whole = count(half(jax.grad(loss)))
    assert count(jax.grad(half(loss))) == whole
    assert count(jax.grad(half(loss, rules_remove=["backward"]))) != whole


def test_results_that_nothing_is_asked_of() -> None:
    (value, logits), gradient = jax.value_and_grad(half(model), has_aux=True)(WEIGHTS, X)
    (want, rest), other = jax.value_and_grad(model, has_aux=True)(WEIGHTS, X)
    close((value, logits, gradient), (want, rest, other))


def test_a_function_that_closes_over_a_traced_value() -> None:
    def of(function: Any, weights: Any) -> Any:
        return function(lambda x: loss(weights, x))(X)

    got = jax.grad(lambda w: of(half, w))(WEIGHTS)
    close(got, jax.grad(lambda w: of(lambda f: f, w))(WEIGHTS))


def test_forward_mode_of_what_has_no_backward_pass() -> None:
    def f(x: Any) -> Any:
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] @ c[1]), (0, x))[1]

    square = X[:32] / 16
    got, want = (jax.jvp(g, (square,), (square,))[1] for g in (half(f), f))
    close(got, want)
    with pytest.raises(ValueError, match="everse"):
        jax.grad(lambda x: half(f)(x).sum())(square)


def test_effects_happen_once() -> None:
    seen: list[float] = []

    def f(x: Any) -> Any:
        jax.debug.callback(lambda v: seen.append(float(v)), x.sum())
        return (x @ WEIGHTS["a"]).sum()

    jax.grad(half(f))(X)
    jax.effects_barrier()
    assert len(seen) == 1


def test_integers_and_keys() -> None:
    def f(x: Any, at: Any, key: Any) -> Any:
        kept = jax.random.bernoulli(key, 0.5, x.shape)
        return ((x * kept) @ WEIGHTS["a"])[at].sum(), at + 1

    args = X, jnp.arange(4), jax.random.key(1)
    got, want = (jax.grad(g, has_aux=True)(*args) for g in (half(f), f))
    close(got, want)


def test_weights_that_are_cast_once() -> None:
    frozen = duotone.autocast(model, dtype="float16", weights=WEIGHTS)
    got = jax.grad(lambda x: frozen(x)[0])(X)
    close(got, jax.grad(lambda x: loss(WEIGHTS, x))(X))


def test_a_backward_pass_that_cannot_be_rewritten_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault: carrying out the differentiated program fails. JAX derives it then."""
    lower = _mixed.lower

    def fails(jaxpr: Any, painted: Any) -> Any:
        if len(_jax.open_jaxpr(jaxpr).invars) > 3:
            raise RewriteError("planted")
        return lower(jaxpr, painted)

    monkeypatch.setattr(_mixed, "lower", fails)
    with caplog.at_level("WARNING", "duotone"):
        got = jax.grad(half(loss))(WEIGHTS, X)
    assert "planted" in caplog.text
    close(got, jax.grad(loss)(WEIGHTS, X))


def test_explain_says_where_the_backward_pass_is_left_to_jax():
    x = jnp.ones((32, 32))

    def prints(x):
        jax.debug.print("{}", x[0, 0])
        return (x @ x).sum()

    def said(function, **settings):
        seen = duotone.explain(function, x, dtype="bfloat16", policy=duotone.Policy(**settings))
        line = "backward pass in jax.grad left to JAX: "
        assert (line + seen.summary.backward in str(seen)) == bool(seen.summary.backward)
        return seen.summary.backward

    assert said(lambda x: (x @ x).sum()) == ""
    assert said(prints) == "its effects must not happen twice"
    assert said(lambda x: (x @ x).sum(), rules_remove={"backward"}) == "rule backward is removed"
    assert "TensorFlow" in said(lambda x: (x @ x).sum(), painter="tensorflow")
    assert "forward pass" in said(lambda x: (x @ x).sum(), ranges={"x": (0, 1)})
    assert said(lambda x: x + 1.0) == ""


def test_a_rule_that_knows_its_operands_leaves_jit_programs_as_they_were_traced() -> None:
    """JAX traces the programs of a rule once more to split them, unless the rule runs around it."""
    program = jax.jit(lambda x: jnp.sin(x) * 2.0)

    def gradient(call: Callable[[Any], Any]) -> Any:
        @jax.custom_jvp
        def function(x: Any) -> Any:
            return program(x)

        @function.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            return call(*primals), tangents[0]

        return jax.make_jaxpr(jax.grad(function))(1.0)

    def inside(jaxpr: Any) -> Any:
        return next(eqn.params["jaxpr"] for eqn in jaxpr.eqns if "jaxpr" in eqn.params)

    traced = inside(jax.make_jaxpr(program)(1.0))
    assert inside(gradient(lambda x: _jax.on_known(program, [x]))) is traced
    assert inside(gradient(program)) is not traced, "then JAX needs no help any more"
