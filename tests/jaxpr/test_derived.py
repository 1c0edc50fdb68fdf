"""Functions that run while JAX differentiates them: traced and painted once."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.transforms import mixed_function as _mixed
from tests.jaxpr.programs import half

W = jax.random.normal(jax.random.key(0), (32, 32)) / 6
X = jax.random.normal(jax.random.key(1), (16, 32))


class Counts:
    """Counts how often a function is traced, and how often a program is painted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.traced = self.painted = 0
        paint = _mixed.paint_for_device

        def painting(*args: Any, **settings: Any) -> Any:
            self.painted += 1
            return paint(*args, **settings)

        monkeypatch.setattr(_mixed, "paint_for_device", painting)

    def loss(self, w: Any, x: Any) -> Any:
        self.traced += 1
        return jnp.mean(jax.nn.gelu(x @ w) ** 2)


@pytest.mark.parametrize(
    "around",
    [
        lambda f: jax.value_and_grad(f),
        lambda f: jax.jit(jax.value_and_grad(f)),
        lambda f: jax.value_and_grad(lambda w, x: jax.vmap(f, (None, 0))(w, x[:, None]).mean()),
        lambda f: lambda w, x: jax.jvp(f, (w, x), (w, x)),
    ],
    ids=["grad", "jit of grad", "grad of vmap", "jvp"],
)
def test_one_trace_and_one_painting(around: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counts(monkeypatch)
    function = around(half(counts.loss))
    first = function(W, X)
    assert (counts.traced, counts.painted) == (1, 1)
    again = function(W, X)  # the compiled passes are kept
    assert (counts.traced, counts.painted) == (1, 1)
    jax.tree.map(np.testing.assert_array_equal, first, again)


def test_other_types_and_the_plain_call_are_programs_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = Counts(monkeypatch)
    function = half(counts.loss)
    gradient = jax.grad(function)
    gradient(W, X)
    gradient(W, X[:8])
    function(W, X)
    assert (counts.traced, counts.painted) == (3, 3)


def test_an_outer_rewrite_paints_neither_pass_again() -> None:
    inner = jax.value_and_grad(half(lambda w: jnp.mean(jax.nn.gelu(X @ w) ** 2)))
    alone, inside = inner(W), duotone.autocast(inner, dtype="bfloat16")(W)
    jax.tree.map(np.testing.assert_array_equal, alone, inside)


def test_what_cannot_be_painted_together_is_painted_as_any_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = Counts(monkeypatch)

    def of(w: Any) -> Any:
        return jax.grad(lambda x: half(lambda x: counts.loss(w, x))(x))(X)

    got = jax.jit(of)(W)
    want = jax.grad(lambda x: jnp.mean(jax.nn.gelu(x @ W) ** 2))(X)
    np.testing.assert_allclose(got, want, atol=0.02 * float(jnp.abs(want).max()))
    assert counts.painted == 1


@pytest.mark.skipif(
    jax.__version_info__ >= (0, 11), reason="JAX traces one function in one thread at a time"
)
def test_a_staged_call_is_declined_while_another_thread_calls_the_function() -> None:
    got, started = [], threading.Event()

    def body(w: Any) -> Any:
        jax.debug.callback(lambda _: None, w[0])  # the passes of an effect are not painted together
        if not started.is_set():
            started.set()
            thread = threading.Thread(target=lambda: got.append(jax.grad(staged)(W)))
            thread.start()
            thread.join()
        return jnp.mean(jax.nn.gelu(w @ w.T) ** 2)

    function = half(body)

    def staged(w: Any) -> Any:
        rows = w[None]
        return jax.jit(lambda scale: scale * jax.vmap(function)(rows).sum())(jnp.float32(1))

    alone = jax.grad(function)(W)
    assert len(got) == 1
    np.testing.assert_allclose(got[0], alone, rtol=1e-2, atol=1e-4)


def test_a_policy_that_names_unknown_operations_is_refused() -> None:
    wrong = duotone.autocast(
        lambda w: jnp.sum(w @ w), dtype="float16", policy=duotone.Policy(infer_add={"nope"})
    )
    with pytest.raises(duotone.errors.UnknownOperationError, match="nope"):
        jax.grad(wrong)(W)


def test_errors_are_those_of_the_function() -> None:
    def fails(w: Any) -> Any:
        return jnp.sum(w @ w[:3])

    with pytest.raises(TypeError, match="dot_general"):
        jax.grad(half(fails))(W)


def test_without_jit() -> None:
    with jax.disable_jit():
        got = jax.grad(half(lambda w: jnp.mean(jax.nn.gelu(X @ w) ** 2)))(W)
    want = jax.grad(lambda w: jnp.mean(jax.nn.gelu(X @ w) ** 2))(W)
    np.testing.assert_allclose(got, want, atol=0.02 * float(jnp.abs(want).max()))


@pytest.mark.parametrize(("function", "operation"), [(jnp.log, "log"), (lambda y: y**0.5, "mul")])
def test_debug_nans_names_the_operation_of_either_pass(function: Any, operation: str) -> None:
    with (
        jax.debug_nans(True),
        pytest.raises(FloatingPointError, match=f"encountered in {operation}\n"),
    ):
        jax.grad(half(lambda w: jnp.sum(function(0 * (X @ w) - (operation == "log")))))(W)


def test_mapped_tangents_are_compiled_once() -> None:
    function = half(lambda w: jnp.mean(jax.nn.gelu(X @ w) ** 2))
    tangents = jax.vmap(lambda t: jax.jvp(function, (W,), (t,))[1])
    tangents(jnp.stack([W, W]))
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        tangents(jnp.stack([W, W]))
        assert not compiled
        jax.jit(lambda w: w + 1)(W)
        assert compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
