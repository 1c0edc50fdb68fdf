"""``scaled_value_and_grad``: what comes out, in which dtype, and every refusal."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone.errors import ArgumentError, ArgumentTypeError
from duotone.scale import (
    DynamicLossScale,
    FixedLossScale,
    NoLossScale,
    ScaledGrad,
    scaled_value_and_grad,
)

SCALES = [
    pytest.param(DynamicLossScale(), id="dynamic"),
    pytest.param(DynamicLossScale(2**24), id="dynamic at its cap"),
    pytest.param(FixedLossScale(2**17), id="fixed"),
    pytest.param(NoLossScale(), id="none"),
]


def quadratic(w: Any, x: Any) -> jax.Array:
    return jnp.mean((w * x) ** 2)


# ---- what comes out


@pytest.mark.parametrize("scale", SCALES)
def test_agrees_with_jax_in_float32(scale: Any):
    w, x = jnp.linspace(-2, 3, 7), jnp.linspace(1, 4, 7)
    value, grads = jax.value_and_grad(quadratic)(w, x)
    out = scaled_value_and_grad(quadratic)(scale, w, x)
    assert isinstance(out, ScaledGrad)
    assert float(out.value) == float(value)
    np.testing.assert_allclose(out.grads, grads, rtol=1e-6)
    assert bool(out.finite)
    assert out.aux is None


def test_argnums_auxiliary_output_and_keywords():
    def loss_fn(a: Any, b: Any, *, power: int) -> Any:
        return jnp.sum(a["w"] ** power * b), {"a": a["w"], "n": 3, "none": None}

    a, b = {"w": jnp.array([1.0, 2.0])}, jnp.array([3.0, 5.0])
    out = scaled_value_and_grad(loss_fn, (0, 1), has_aux=True)(FixedLossScale(8), a, b, power=2)
    assert float(out.value) == 23
    assert out.grads[0]["w"].tolist() == [6, 20]
    assert out.grads[1].tolist() == [1, 4]
    assert out.aux["a"].tolist() == [1, 2]
    assert out.aux["n"] == 3
    last = scaled_value_and_grad(loss_fn, -1, has_aux=True)(FixedLossScale(8), a, b, power=2)
    assert last.grads.tolist() == [1, 4]


@pytest.mark.parametrize("use", [lambda out: "w" in out, list, lambda out: dict(*out)])
def test_it_is_no_mapping_and_no_pair_and_still_a_pytree(use: Any):
    out = scaled_value_and_grad(lambda p: jnp.sum(p["w"]))(DynamicLossScale(), {"w": jnp.ones(2)})
    with pytest.raises(ArgumentTypeError, match=r"duotone\.linen\.TrainState.*out\.grads"):
        use(out)
    doubled = jax.jit(lambda out: jax.tree.map(lambda leaf: leaf, out))(out)
    assert isinstance(doubled, ScaledGrad)
    assert len(jax.tree.leaves(out)) == 3
    assert dataclasses.replace(out, aux=3).aux == 3
    assert dataclasses.asdict(out).keys() == {"value", "grads", "finite", "aux"}
    assert "ScaledGrad(" in repr(out)


def test_integer_parameters():
    params = {"w": jnp.ones(2), "step": jnp.asarray(3)}
    grad_fn = scaled_value_and_grad(lambda p: jnp.sum(p["w"] ** 2), allow_int=True)
    grads = grad_fn(DynamicLossScale(), params).grads
    assert grads["step"].dtype == jax.dtypes.float0
    assert grads["w"].tolist() == [2, 2]
    with pytest.raises(TypeError, match="allow_int"):
        scaled_value_and_grad(lambda p: jnp.sum(p["w"] ** 2))(DynamicLossScale(), params)


def test_complex_parameters():
    z = jnp.asarray([1 + 2j, -3j])
    out = scaled_value_and_grad(lambda z: jnp.sum(jnp.abs(z) ** 2))(DynamicLossScale(), z)
    np.testing.assert_allclose(out.grads, jax.grad(lambda z: jnp.sum(jnp.abs(z) ** 2))(z))


def test_a_python_number_is_a_loss():
    out = scaled_value_and_grad(lambda w: 3.0)(DynamicLossScale(), jnp.ones(2))
    assert float(out.value) == 3
    assert out.grads.tolist() == [0, 0]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_a_half_loss_is_returned_bit_for_bit(scale: Any, dtype: Any):
    w, x = jnp.linspace(-2, 3, 7).astype(dtype), jnp.linspace(0.2, 1, 7).astype(dtype)
    out = jax.jit(scaled_value_and_grad(quadratic))(scale, w, x)
    assert out.value.dtype == dtype
    assert float(out.value) == float(jax.jit(quadratic)(w, x))
    assert out.grads.dtype == jnp.float32
    assert bool(out.finite)


def test_a_loss_near_the_end_of_float16_is_not_scaled_in_float16():
    out = scaled_value_and_grad(lambda w: w * jnp.float16(60000))(
        DynamicLossScale(), jnp.float16(1)
    )
    assert float(out.value) == 60000
    assert not bool(out.finite)  # the gradient itself, 60000 * 2**15, leaves float16 ...
    out = scaled_value_and_grad(lambda w: w + jnp.float16(60000))(
        DynamicLossScale(), jnp.float16(1)
    )
    assert (float(out.grads), bool(out.finite)) == (1.0, True)  # ... and this one does not


@pytest.mark.parametrize("value", [2.0**15, 2.0**16, 2.0**20, 2.0**24, 40000.3])
@pytest.mark.parametrize("jit", [True, False])
def test_the_scale_of_a_float16_loss_never_overflows_float16(value: float, jit: bool):
    grad_fn = scaled_value_and_grad(lambda w: w * jnp.float16(0.5))
    for scale in (DynamicLossScale(value), FixedLossScale(value)):
        out = (jax.jit(grad_fn) if jit else grad_fn)(scale, jnp.float16(2))
        assert bool(out.finite)
        assert float(out.grads) == 0.5


def test_a_scale_that_half_cannot_hold_does_not_bias_the_gradients():
    for scale in (DynamicLossScale(1000.3), FixedLossScale(1000.3)):
        out = jax.jit(scaled_value_and_grad(lambda w: w * jnp.float16(1)))(scale, jnp.float16(2))
        assert float(out.grads) == 1.0  # 1000.3 rounds to 1000.5: unscaling uses the rounded one


def test_a_loss_that_overflows_with_finite_gradients_is_a_good_step():
    def loss_fn(w: Any) -> Any:
        return jnp.sum(w) + jnp.float16(65504)

    out = scaled_value_and_grad(loss_fn)(DynamicLossScale(), jnp.full(3, 100, jnp.float16))
    assert bool(jnp.isinf(out.value))
    assert bool(out.finite)
    assert out.grads.tolist() == [1, 1, 1]


@pytest.mark.parametrize("bad", [jnp.inf, jnp.nan])
def test_bad_gradients_are_reported(bad: float):
    out = scaled_value_and_grad(quadratic)(
        DynamicLossScale(), jnp.array([1.0, 2]), jnp.array([bad, 1])
    )
    assert not bool(out.finite)


def test_devices_agree_over_a_named_axis():
    x = jnp.array([[1.0], [jnp.inf]])

    def finite(x: Any, **options: Any) -> Any:
        return scaled_value_and_grad(quadratic, **options)(
            DynamicLossScale(), jnp.ones(1), x
        ).finite

    assert jax.vmap(lambda x: finite(x), axis_name="i")(x).tolist() == [True, False]
    assert jax.vmap(lambda x: finite(x, axis_name="i"), axis_name="i")(x).tolist() == [False] * 2


def test_scaling_is_a_full_region():
    jaxpr = jax.make_jaxpr(scaled_value_and_grad(lambda w: jnp.sum(w)))(
        DynamicLossScale(), jnp.ones(3)
    )
    scopes = {e.primitive.name: str(e.source_info.name_stack) for e in jaxpr.eqns}
    assert "duotone.loss_scale" in scopes["mul"]
    for name in ("div", "is_finite", "reduce_and"):
        assert "duotone.update" in scopes[name], name


# ---- the new function is a good citizen


def test_name_documentation_and_signature():
    def my_loss(params: Any, batch: Any, *, train: bool = True) -> Any:
        return params * batch

    grad_fn = scaled_value_and_grad(my_loss)
    assert grad_fn.__name__ == "value_and_grad_of_my_loss"
    assert "my_loss" in str(grad_fn.__doc__)
    parameters = list(inspect.signature(grad_fn).parameters)
    assert parameters == ["loss_scale", "params", "batch", "train"]


def test_static_argument_names_reach_the_right_argument():
    def loss_fn(w: Any, mode: str) -> Any:
        return jnp.sum(w) if mode == "sum" else jnp.max(w)

    grad_fn = jax.jit(scaled_value_and_grad(loss_fn), static_argnames="mode")
    assert float(grad_fn(DynamicLossScale(), jnp.ones(4), "sum").value) == 4
    assert float(grad_fn(DynamicLossScale(), jnp.ones(4), mode="max").value) == 1


def test_loss_fn_may_have_an_argument_called_loss_scale():
    grad_fn = scaled_value_and_grad(lambda w, loss_scale: w * loss_scale)
    assert float(grad_fn(FixedLossScale(8), 2.0, loss_scale=3.0).grads) == 3
    assert list(inspect.signature(grad_fn).parameters) == ["loss_scale_", "w", "loss_scale"]


def test_callables_without_a_signature_or_name():
    class Loss:
        def __call__(self, w: Any) -> Any:
            return w * 3

    assert float(scaled_value_and_grad(Loss())(FixedLossScale(8), 2.0).grads) == 3
    assert float(scaled_value_and_grad(jnp.square)(FixedLossScale(8), 2.0).grads) == 4
    assert scaled_value_and_grad(max) is not None  # no signature to show, no error


def test_errors_of_the_loss_function_come_through():
    def loss_fn(w: Any) -> Any:
        raise KeyError("my own error")

    with pytest.raises(KeyError, match="my own error"):
        scaled_value_and_grad(loss_fn)(DynamicLossScale(), 1.0)


# ---- bad input


@pytest.mark.parametrize("wrong", [None, 3, jnp.ones(2), "loss"])
def test_loss_fn_not_callable(wrong: Any):
    with pytest.raises(ArgumentTypeError, match="loss_fn must be a function"):
        scaled_value_and_grad(wrong)


@pytest.mark.parametrize("wrong", [1.0, "0", None, True, (0, 1.5), [True]])
def test_argnums_of_the_wrong_type(wrong: Any):
    with pytest.raises(ArgumentTypeError, match="argnums must be an integer or a tuple"):
        scaled_value_and_grad(quadratic, wrong)


def test_argnums_empty():
    with pytest.raises(ArgumentError, match="argnums is empty"):
        scaled_value_and_grad(quadratic, ())


@pytest.mark.parametrize("argnums", [2, -3, (0, 5)])
def test_argnums_past_the_end(argnums: Any):
    grad_fn = scaled_value_and_grad(quadratic, argnums)
    with pytest.raises(ArgumentTypeError, match="points past the 2 positional"):
        grad_fn(DynamicLossScale(), jnp.ones(1), jnp.ones(1))


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (lambda w: w, ArgumentError, r"scalar loss; it returned shape \(2,\)"),
        (lambda w: w[:1], ArgumentError, r"shape \(1,\).*\[0\]"),
        (lambda w: jnp.argmax(w), ArgumentTypeError, "floating loss; it returned int32"),
        (lambda w: 3, ArgumentTypeError, "floating loss; it returned int32"),
        (lambda w: jnp.sum(w) * 1j, ArgumentTypeError, "real part"),
        (lambda w: None, ArgumentTypeError, "one floating scalar.*returned None"),
        (lambda w: (jnp.sum(w), w), ArgumentTypeError, "has_aux=True"),
        (lambda w: {"loss": jnp.sum(w)}, ArgumentTypeError, "returned a dict"),
        (lambda w: "loss", ArgumentTypeError, "one floating scalar"),
    ],
)
def test_a_loss_that_cannot_be_differentiated(returned: Any, error: type, message: str):
    with pytest.raises(error, match=message) as caught:
        scaled_value_and_grad(returned)(DynamicLossScale(), jnp.ones(2))
    assert "test_gradient.py:" in str(caught.value)  # where loss_fn is written


@pytest.mark.parametrize("returned", [lambda w: jnp.sum(w), lambda w: (jnp.sum(w), 1, 2)])
def test_auxiliary_output_missing(returned: Any):
    with pytest.raises(ArgumentTypeError, match=r"must return a pair \(loss, aux\)"):
        scaled_value_and_grad(returned, has_aux=True)(DynamicLossScale(), jnp.ones(2))
