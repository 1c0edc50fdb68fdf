"""Dots of values that follow from a constant too large for half."""

import jax.numpy as jnp
import pytest

import duotone
import duotone.onnx
from tests.onnx import kinds
from tests.onnx.kinds import normal
from tests.onnx.models import model

LARGE = "t = Constant<value = float {1000000}>()  h = MatMul(x, w)"


def last_dot(text):
    """The precision and the rule of the last product of a model."""
    text = f"f (float[64, 64] x, float[64, 64] w) => (float[64, 64] y) {{ {text} }}"
    found = [o for o in duotone.onnx.explain(model(text)).operations if o.operation == "MatMul"]
    return found[-1].paint, found[-1].rule


@pytest.mark.parametrize(
    "between",
    [
        "a = Mul(h, t)",
        "a = Add(h, t)",
        "b = Mul(h, t)  a = Neg(b)",
        "b = Mul(h, t)  a = Softplus(b)",
        "b = Mul(h, t)  c = ReduceSum(b)  a = Add(c, h)",
        "b = Mul(h, t)  a = Div(b, h)",
    ],
)
def test_they_are_full(between):
    text = f"{LARGE}  {between}  y = MatMul(a, w)"
    assert last_dot(text) == ("full", "overflow")


@pytest.mark.parametrize(
    "between",
    [
        "b = Mul(h, t)  a = Sigmoid(b)",
        "b = Add(h, t)  a = Softmax(b)",
        "b = Mul(h, t)  s = Constant<value_float = 1.0>()  a = LayerNormalization(b, s)",
        "b = Mul(h, t)  c = ReduceMax(b)  a = Div(b, c)",
        "a = Div(h, t)",
        "a = Min(h, t)",
        "b = Less(h, t)  a = Where(b, h, t)",
    ],
)
def test_those_that_fit_again_are_half(between):
    assert last_dot(f"{LARGE}  {between}  y = MatMul(a, w)") == ("half", "allow")


def test_the_result_is_finite():
    text = f"f (float[8, 16] x) => (float[8, 16] y) {{ {LARGE}  a = Mul(h, t)  y = MatMul(a, w) }}"
    made = kinds.built(text, {"w": normal(16, 16) / 4})
    assert kinds.error_of(made, {"x": normal(8, 16)}) < 5e-3
    without = duotone.Policy(rules_remove={"overflow"})
    assert kinds.error_of(made, {"x": normal(8, 16)}, policy=without) == float("inf")


def test_the_same_holds_in_a_function():
    def scaled(x, w):
        return jnp.dot(jnp.dot(x, w) * 1e6, w)

    x = w = jnp.ones((64, 64))
    policy = duotone.Policy(ignore_performance=True)
    found = duotone.explain(scaled, x, w, dtype="float16", policy=policy).operations
    dots = [(o.paint, o.rule) for o in found if o.operation == "dot_general"]
    assert dots == [("half", "allow"), ("full", "overflow")]
