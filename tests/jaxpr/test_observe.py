"""Observe runs a program as JAX does, and shows every value; names of arguments follow pytrees."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone.jaxpr.reading.attributes import attributes_of
from duotone.jaxpr.reading.build import build
from duotone.jaxpr.reading.signature import argument_names, flatten_call
from duotone.jaxpr.running.observe import observe
from tests import random_programs
from tests.random_programs import Program


@pytest.mark.parametrize("name", random_programs.STEPS)
def test_results_and_values(name: str) -> None:
    """Of each step of the random programs, with its derivative."""
    x, w = random_programs.arguments()
    step = jax.value_and_grad(Program(((name, 0, 1),)).loss, 1)
    jaxpr = jax.make_jaxpr(step)(x, w)
    built = build(jaxpr)
    shown: dict[int, Any] = {}
    results = observe(built, [x, w], lambda value, array: shown.update({value: array}))
    for result, expected in zip(results, jax.tree.leaves(step(x, w)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    for value, array in shown.items():
        assert built.graph.values[value].shape == np.shape(array)
        assert built.graph.values[value].dtype == array.dtype.name
    seen = {built.graph.values[value].producer for value in shown}
    taken = {n.index for n in built.graph.nodes if n.outputs and not _may_be_skipped(built, n)}
    assert taken <= seen


def _may_be_skipped(built: Any, node: Any) -> bool:
    """Whether a node is in a branch."""
    body, kinds = node.body, []
    while body >= 0:
        kinds.append(built.graph.bodies[body].kind.value)
        body = built.graph.bodies[body].parent
    return "barrier" in kinds


def test_a_loop_without_iterations_and_keys_in_a_loop() -> None:
    def function(x: Any, key: Any) -> Any:
        none, rows = jax.lax.scan(lambda c, r: (c + r, c), x[0], x[:0])
        keys = jax.random.split(key, 3)
        noise = jax.lax.scan(lambda c, k: (c + jax.random.normal(k), None), 0.0, keys)[0]
        return none + rows.sum() + noise

    x, key = np.ones((2, 3), np.float32), jax.random.key(0)
    (result,) = observe(build(jax.make_jaxpr(function)(x, key)), [x, key], lambda *_: None)
    np.testing.assert_allclose(result, function(x, key), rtol=1e-6)


def test_a_mapped_while_loop() -> None:
    x = np.arange(1.0, 5.0, dtype=np.float32)[:, None] * np.ones((4, 2), np.float32)
    until = lambda row: jax.lax.while_loop(lambda r: r.sum() < 9, lambda r: r * 1.5, row)  # noqa: E731
    nested = lambda x: jax.vmap(jax.vmap(until))(x.reshape(2, 2, 2))  # noqa: E731
    for function in (jax.vmap(until), nested):
        (result,) = observe(build(jax.make_jaxpr(function)(x)), [x], lambda *_: None)
        np.testing.assert_array_equal(result, function(x))


def test_names_of_arguments() -> None:
    def function(params: Any, x: Any, *rest: Any, mask: Any = None, deep: bool = False) -> None:
        pass

    params = {"dense": [np.ones(1), np.ones(2)], "scale": np.ones(3)}
    rest = (np.ones(4), (np.ones(5),))
    _, signature = flatten_call(
        "f", (params, np.ones(6), *rest), {"mask": np.ones(7), "deep": True}
    )
    assert argument_names(function, signature) == (
        "params/dense/0",
        "params/dense/1",
        "params/scale",
        "x",
        "2",
        "3/0",
        "mask",
    )
    assert argument_names(jnp.ufunc, signature)[0].endswith("dense/0")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x @ x, {"terms": 4.0, "labels": (0, 1, 1, 3, 0, 3), "sizes": (1, 4, 4, 4)}),
        (
            lambda x: jax.lax.dot_general(
                jnp.ones((3, 5, 4, 2)), x[:3, :, None], (((2,), (1,)), ((0,), (0,)))
            ),
            {
                "terms": 4.0,
                "labels": (0, 1, 2, 3, 0, 2, 6, 0, 1, 3, 6),
                "sizes": (3, 10, 4, 1),
            },
        ),
        (lambda x: jnp.sum(x, 0), {"axes": (0,)}),
        (lambda x: jnp.max(x), {"axes": (0, 1)}),
        (lambda x: x.T, {"permutation": (1, 0)}),
        (lambda x: x**3, {"exponent": 3.0}),
        (lambda x: jnp.cumsum(x, 1), {"terms": 4.0}),
        (
            lambda x: jax.lax.broadcast_in_dim(x, (4, 2, 4), (0, 2)),
            {"places": (0, 2)},
        ),
        (lambda x: jax.lax.iota(jnp.float32, 9), {"length": 9.0}),
        (
            lambda x: jax.lax.conv(x[None, None], x[None, None, :3, :2], (1, 1), "SAME"),
            {"terms": 6.0, "sizes": (1, 1, 16, 6, 1, 1), "slides": 1.0},
        ),
        (lambda x: jnp.tanh(x), {}),
    ],
)
def test_attributes(function: Any, expected: dict[str, Any]) -> None:
    def flat(eqns: Any) -> Any:
        for eqn in eqns:
            inner = eqn.params.get("jaxpr")
            yield from [eqn] if inner is None else flat(inner.eqns)

    *_, eqn = flat(jax.make_jaxpr(function)(np.ones((4, 4), np.float32)).eqns)
    assert dict(attributes_of(eqn)) == expected
