"""Sums, norms and concatenations that are no squared distances: their dots stay half."""

import pytest

import duotone.onnx
from tests.onnx.models import model, numbers

NETWORKS = {
    "a residual that the product adds": (
        "p = Pow(x, two)  a = ReduceMean<axes = [1]>(p)  b = Add(a, eps)  r = Sqrt(b)"
        "  n = Div(x, r)  y = Gemm(n, w, x)"
    ),
    "a product that adds its operand": "y = Gemm<alpha = 0.5>(x, w, x)",
    "a product that is subtracted": "h = MatMul(x, w)  y = Gemm<alpha = -1.0>(x, w, h)",
    "features by their norm": (
        "a = ReduceL2<axes = [1]>(x)  n = Div(x, a)  m = MatMul(n, w)  y = Add(m, x)"
    ),
    "a length that is another feature": (
        "h = MatMul(x, w)  a = ReduceL2<axes = [1]>(x)  j = Concat<axis = 1>(h, a)"
        "  y = MatMul(j, v)"
    ),
    "its own length as another feature": (
        "a = ReduceL2<axes = [1]>(x)  j = Concat<axis = 1>(x, a)  y = MatMul(j, v)"
    ),
    "the power of a result": "m = MatMul(x, w)  p = Pow(m, two)  y = Sub(p, x)",
}


@pytest.mark.parametrize("name", NETWORKS)
def test_dots_stay_half(name):
    text = f"""f (float[8, 16] x) => (float[8, 16] y)
    <float[16, 16] w = {{{numbers(256)}}}, float[17, 16] v = {{{numbers(272)}}},
    float two = {{2.0}}, float eps = {{0.001}}> {{ {NETWORKS[name]} }}"""
    summary = duotone.onnx.explain(model(text)).summary
    assert summary.allow_half == summary.allow_total > 0
