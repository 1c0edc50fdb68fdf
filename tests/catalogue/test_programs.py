"""Uses of an autocast function that are not a case of a primitive: export, effects, modes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.experimental import io_callback

import duotone
from tests.catalogue.case import reals, units
from tests.catalogue.evaluate import primitives_in
from tests.catalogue.variations import FORCED, HALF_TYPES, error_in_ulp

X, W = reals(3, 8), units(8, 8, seed=1)


def network(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w) @ w


def mixed(function: Any, half: str = "bfloat16") -> Any:
    return duotone.autocast(function, dtype=half, policy=FORCED)


def close(got: Any, wanted: Any, half: str = "bfloat16", ulp: float = 8.0) -> None:
    assert error_in_ulp(got, wanted, half) <= ulp


# Ahead of time


@pytest.mark.parametrize("half", HALF_TYPES)
def test_export_with_symbolic_shapes(half: str):
    rows, inner = export.symbolic_shape("rows, inner")
    args = (
        jax.ShapeDtypeStruct((rows, inner), np.float32),
        jax.ShapeDtypeStruct((inner, inner), np.float32),
    )

    def f(x: Any, w: Any) -> Any:
        y = lax.scan(lambda c, _: (jnp.tanh(c @ w), jnp.sum(c)), x, None, 2)[0]
        return jax.nn.softmax(y @ w + jnp.zeros((x.shape[0], 1)))

    exported = export.export(jax.jit(mixed(f, half)))(*args)
    assert [str(a.shape) for a in exported.out_avals] == ["(rows, inner)"]
    for count in (2, 5):
        x = reals(count, 8)
        close(exported.call(x, W), f(x, W), half, 16)


def test_explain_with_symbolic_shapes():
    rows = export.symbolic_shape("rows")[0]
    seen = duotone.explain(network, jax.ShapeDtypeStruct((rows, 8), np.float32), W)
    assert seen.summary.operations_half


def test_lower_and_compile():
    compiled = jax.jit(mixed(network)).lower(X, W).compile()
    close(compiled(X, W), network(X, W))


def test_eval_shape():
    shapes = jax.eval_shape(mixed(network), X, jax.ShapeDtypeStruct((8, 8), np.float32))
    assert (shapes.shape, shapes.dtype) == ((3, 8), np.float32)


# Modes


def test_debug_nans():
    with jax.debug_nans(True):
        close(mixed(network)(X, W), network(X, W))
        with pytest.raises(FloatingPointError):
            mixed(lambda x: jnp.log(-jnp.abs(x @ W)))(X)


def nan_in_both(w, x):
    return jnp.mean(jnp.sqrt(-jnp.abs(x @ w)))


def overflow(w, x):
    y = (x * 300) @ (w * 300)
    return jnp.mean(y - y @ w)


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit])
@pytest.mark.parametrize(
    ("transform", "function", "operation"),
    [
        (duotone.autocast, nan_in_both, "sqrt"),
        (duotone.autocast, overflow, "sub"),
        (duotone.value_and_grad, nan_in_both, "sqrt"),
        (duotone.value_and_grad, overflow, "sub"),
    ],
)
def test_debug_nans_names_the_first_operation_and_the_line(jit, transform, function, operation):
    """JAX's own function of a program does not look inside, and the line was duotone's."""
    step = jit(transform(function, dtype="float16"))
    with jax.debug_nans(True), pytest.raises(FloatingPointError) as caught:
        step(jnp.ones((64, 64)), jnp.ones((64, 64)))
    assert f"encountered in {operation}" in str(caught.value)
    (note,) = [note for note in caught.value.__notes__ if "duotone.blame" in note]
    assert f"{operation} is at {__file__}" in note


def test_disable_jit():
    with jax.disable_jit():
        close(mixed(network)(X, W), network(X, W))


def test_checking_leaks():
    with jax.checking_leaks():
        close(mixed(network)(X, W), network(X, W))
        jax.grad(lambda x: jnp.sum(mixed(network)(x, W)))(X)


def test_default_matmul_precision_is_a_precision_asked_for():
    with jax.default_matmul_precision("highest"):
        jaxpr = jax.make_jaxpr(mixed(network))(X, W)
    assert "bf16" not in str(jaxpr)


def test_strict_dtype_promotion():
    with jax.numpy_dtype_promotion("strict"):
        close(mixed(network)(X, W), network(X, W))


def test_transfer_guard():
    x, w = jax.device_put((X, W))
    f = mixed(network)
    f(x, w)
    with jax.transfer_guard("disallow"):
        f(x, w)


# Ways to call


def test_decorator_with_and_without_arguments():
    @duotone.autocast
    def plain(x: Any) -> Any:
        return x @ W

    @duotone.autocast(dtype="float16", policy=FORCED)
    def configured(x: Any) -> Any:
        """Its docstring."""
        return x @ W

    close(plain(X), X @ W)
    close(configured(X), X @ W, "float16")
    assert configured.__doc__ == "Its docstring."
    assert configured.__name__ == "configured"


def test_method_decorated_in_its_class():
    class Model:
        def __init__(self, w: np.ndarray) -> None:
            self.w = w

        @functools.partial(duotone.autocast, dtype="float16", policy=FORCED)
        def __call__(self, x: Any) -> Any:
            return x @ self.w

    close(Model(W)(X), X @ W, "float16")
    close(Model(2 * W)(X), X @ W * 2, "float16")


def test_keyword_and_default_arguments():
    def f(x: Any, *rest: Any, w: Any = W, scale: float = 1.0, **more: Any) -> Any:
        return (x @ w) * scale + sum(rest) + sum(more.values())

    args: tuple[Any, ...] = (X, np.float32(1), np.float32(2))
    named: dict[str, Any] = {"scale": 0.5, "extra": np.float32(3)}
    close(mixed(f)(*args, **named), f(*args, **named))
    close(mixed(f)(X), f(X))


def test_a_changed_static_argument_is_another_program():
    f = mixed(lambda x, scale: (x @ W) * scale)
    close(f(X, 2), X @ W * 2)
    close(f(X, 3), X @ W * 3)
    close(f(X[:2], 3), X[:2] @ W * 3)


@pytest.mark.slow  # compiles two dozen programs; the catalogue has each of them
def test_every_transformation_around_it():
    def loss(x: Any, w: Any) -> Any:
        return jnp.sum(network(x, w) ** 2)

    exact: list[Any] = []
    got: list[Any] = []
    for f, into in ((loss, exact), (mixed(loss, "float16"), got)):
        into.append(jax.jit(jax.value_and_grad(f))(X, W))
        into.append(jax.jvp(f, (X, W), (X, W)))
        into.append(jax.vjp(f, X, W)[1](jnp.float32(1)))
        into.append(jax.linearize(f, X, W)[1](X, W))
        into.append(jax.jacfwd(f)(X[:2], W))
        into.append(jax.jacrev(f)(X[:2], W))
        into.append(jax.hessian(f)(X[:1], W))
        into.append(jax.vmap(f, (0, None))(np.stack([X, X]), W))
        into.append(jax.vmap(jax.grad(f), (0, None))(np.stack([X, X]), W))
        into.append(lax.map(lambda x, f=f: f(x[None], W), X))
        into.append(lax.scan(lambda c, x, f=f: (c + f(x[None], W), None), 0.0, X)[0])
        into.append(lax.cond(True, f, lambda x, w: 0.0, X, W))
        into.append(jax.grad(jax.checkpoint(f))(X, W))
    close(got, exact, "float16", 32)


def test_autocast_inside_control_flow_inside_autocast():
    inner = mixed(network, "float16")
    outer = mixed(lambda x, w: lax.scan(lambda c, _: (inner(c, w), None), x, None, 2)[0] @ w)
    wanted = network(network(X, W), W) @ W
    close(outer(X, W), wanted)


# Effects


def _pure(log: list[str], name: str) -> Callable[..., Any]:
    def host(x: Any) -> np.ndarray:
        log.append(name)
        return np.asarray(x)

    return host


def _with_effects(log: list[str]) -> Callable[..., Any]:
    shape = jax.ShapeDtypeStruct((3, 8), np.float32)

    def f(x: Any, w: Any) -> Any:
        y = x @ w
        io_callback(lambda: log.append("first"), None, ordered=True)
        y = io_callback(_pure(log, "second"), shape, y, ordered=True)
        y = lax.scan(
            lambda c, _: (
                io_callback(_pure(log, "looped"), shape, jnp.tanh(c @ w), ordered=True),
                None,
            ),
            y,
            None,
            3,
        )[0]
        y = lax.cond(
            True,
            lambda y: io_callback(_pure(log, "taken"), shape, y @ w, ordered=True),
            lambda y: io_callback(_pure(log, "not taken"), shape, y, ordered=True),
            y,
        )
        io_callback(lambda: log.append("last"), None, ordered=True)
        return y @ w

    return f


@pytest.mark.parametrize("half", HALF_TYPES)
@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
def test_effects_happen_as_often_and_in_the_same_order(half: str, compiled: bool):
    log: list[str] = []
    wanted = _with_effects(log)(X, W)
    jax.effects_barrier()
    expected, log[:] = list(log), []
    assert expected == ["first", "second", "looped", "looped", "looped", "taken", "last"]
    f = mixed(_with_effects(log), half)
    for _ in range(2):
        close((jax.jit(f) if compiled else f)(X, W), wanted, half, 16)
        jax.effects_barrier()
        assert log == expected
        log.clear()


def test_effects_in_gradients_happen_once():
    def counted(log: list[str]) -> Callable[..., Any]:
        def f(x: Any) -> Any:
            y = jnp.tanh(x @ W)
            jax.debug.callback(lambda v: log.append("seen"), y)
            return jnp.sum(y @ W)

        return f

    log: list[str] = []
    for gradient in (
        jax.grad(counted(log)),
        jax.grad(mixed(counted(log))),
        mixed(jax.grad(counted(log))),
    ):
        gradient(X)
        jax.effects_barrier()
        assert log == ["seen"]
        log.clear()


def test_unordered_and_unused_callbacks_are_not_lost():
    log: list[str] = []

    def f(x: Any) -> Any:
        jax.debug.callback(lambda v: log.append("unused"), (x @ W)[0, 0])
        return x @ W

    mixed(f)(X)
    jax.effects_barrier()
    assert log == ["unused"]


def test_printing_shows_float32_numbers(capsys: pytest.CaptureFixture[str]):
    def f(x: Any) -> Any:
        y = x @ np.eye(8, dtype=np.float32)
        jax.debug.print("{}", y.dtype)
        return y @ W

    mixed(f)(X)
    jax.effects_barrier()
    assert capsys.readouterr().out == "float32\n"


def test_names_of_jits_do_not_pile_up():
    once = primitives_in(jax.make_jaxpr(mixed(network))(X, W))
    assert "jit" in once
    text = str(jax.make_jaxpr(jax.jit(mixed(jax.jit(network))))(X, W))
    assert text.count("name=duotone_autocast") == 1
