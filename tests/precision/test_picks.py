"""Picks: which gathers come before what their operand is computed by."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from duotone.devices.table import TABLE
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.painted import PaintedProgram
from duotone.jaxpr.pipeline import paint_jaxpr
from duotone.policy.policy import Policy
from duotone.precision.optimize.optimization import Optimization

X = jnp.zeros((2, 8, 16))
WEIGHTS = jnp.zeros((16, 128))
LABELS = jnp.zeros((2, 8), jnp.int32)


def painted(function: Any, *args: Any, device: str = "tpu", **policy: Any) -> PaintedProgram:
    jaxpr = jax.make_jaxpr(function)(*args)
    return paint_jaxpr(jaxpr, Policy(**policy), HALF_TYPES["bfloat16"], forms=TABLE[device])


def made(optimization: Optimization) -> list[int]:
    """The values that are computed after picking."""
    return [step.to[0] for step in optimization.steps if step.name == "made"]


def taken(values: Any, labels: Any) -> Any:
    return jnp.take_along_axis(values, labels[..., None], axis=-1)


def loss(weights: Any, x: Any, labels: Any) -> Any:
    return -taken(jax.nn.log_softmax(x @ weights), labels).mean()


def indexed(weights: Any, x: Any, labels: Any) -> Any:
    logits = jax.nn.log_softmax(x @ weights)
    rows, columns = jnp.ogrid[: x.shape[0], : x.shape[1]]
    return -logits[rows, columns, labels].mean()


@pytest.mark.parametrize("function", [loss, indexed])
def test_the_loss_of_a_language_model_picks_from_its_logits(function: Any) -> None:
    found = painted(function, WEIGHTS, X, LABELS)
    graph = found.built.graph
    ((node, picked),) = found.optimizations.named("picks").items()
    assert graph.nodes[node].op == "gather"
    chain = made(picked)
    assert chain[-1] == graph.nodes[node].inputs[0]
    assert [graph.nodes[graph.values[value].producer].op for value in chain] == ["sub", "sub"]
    read = [graph.values[step.to[0]] for step in picked.steps if step.name == "read"]
    large = [v for v in read if v.size == graph.values[chain[-1]].size and v.index not in chain]
    (root,) = large
    assert graph.nodes[root.producer].op == "dot_general"


def test_the_same_in_a_gradient_and_in_a_loop() -> None:
    gradient = painted(jax.value_and_grad(loss), WEIGHTS, X, LABELS)
    assert len(gradient.optimizations.named("picks")) == 1

    def looped(weights: Any, x: Any, labels: Any) -> Any:
        def body(total: Any, each: Any) -> tuple[Any, None]:
            return total + loss(weights, *each), None

        return jax.lax.scan(body, 0.0, (x[:, None], labels[:, None]))[0]

    assert len(painted(looped, WEIGHTS, X, LABELS).optimizations.named("picks")) == 1


@pytest.mark.parametrize("device", ["gpu", "cpu", "cpu-bfloat16"])
def test_not_where_a_gather_calculates_its_operand(device: str) -> None:
    assert not painted(loss, WEIGHTS, X, LABELS, device=device).optimizations.named("picks")


def test_not_by_tensorflows_rules() -> None:
    assert not painted(loss, WEIGHTS, X, LABELS, painter="tensorflow").optimizations.named("picks")


def _many(weights: Any, x: Any, labels: Any) -> Any:
    places = jnp.broadcast_to(labels[..., None], (2, 8, 32))
    return jnp.take_along_axis(jax.nn.log_softmax(x @ weights), places, axis=-1)


def _filled(weights: Any, x: Any, labels: Any) -> Any:
    """Out of bounds it gives a number that what is computed afterwards would change."""
    values = jax.nn.log_softmax(x @ weights).ravel()
    return values.at[labels].get(mode="fill", fill_value=-1.0)


def _hides_nan(weights: Any, x: Any, labels: Any) -> Any:
    """A comparison makes a number of the NaN that the gather gives out of bounds."""
    values = jax.nn.log_softmax(x @ weights)
    return taken(jnp.where(values < -1, 0.0, values), labels)


def _read_once(weights: Any, x: Any, labels: Any) -> Any:
    """Nothing else reads the dot's result, so it need not be in memory."""
    return taken(jnp.exp(x @ weights), labels)


def _of_each_class(weights: Any, x: Any, labels: Any) -> Any:
    """The prior has size 1 along axes that logits and labels share."""
    prior = jnp.sin(jnp.arange(128.0))[None, None]
    return taken(jax.nn.log_softmax(x @ weights) + prior, labels)


def _reshaped(weights: Any, x: Any, labels: Any) -> Any:
    values = jax.nn.log_softmax(x @ weights).reshape(16, 128)
    return taken(values, labels.reshape(16))


@pytest.mark.parametrize(
    "function", [_many, _filled, _hides_nan, _read_once, _of_each_class, _reshaped]
)
def test_what_is_picked_as_it_was_written(function: Any) -> None:
    assert not painted(function, WEIGHTS, X, LABELS).optimizations.named("picks")


def test_not_from_full_values() -> None:
    assert not painted(loss, WEIGHTS, X, LABELS, keep_full=["dot_general"]).optimizations.named(
        "picks"
    )


def test_a_prior_of_each_class_where_all_axes_are_indexed() -> None:
    def function(weights: Any, x: Any, labels: Any) -> Any:
        prior = jnp.sin(jnp.arange(128.0))[None, None]
        values = jax.nn.log_softmax(x @ weights) + prior
        rows, columns = jnp.ogrid[:2, :8]
        return values[rows, columns, labels]

    (picked,) = painted(function, WEIGHTS, X, LABELS).optimizations.named("picks").values()
    assert len(made(picked)) == 3
