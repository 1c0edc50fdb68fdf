"""Masks of integers leave features half; integers that scale anything else are counts."""

import pytest

import duotone.onnx
from tests.onnx.models import model, numbers

FEATURES = {
    "a norm": "n = LayerNormalization(e, g)  m = Mul(n, k)  y = MatMul(m, w)",
    "a product": "n = MatMul(e, w)  m = Mul(n, k)  y = MatMul(m, w)",
    "an activation": "d = MatMul(e, w)  n = Relu(d)  m = Mul(k, n)  y = MatMul(m, w)",
    "a mean over what is valid": (
        "n = LayerNormalization(e, g)  m = Mul(n, k)  s = ReduceSum(m, first)"
        "  c = ReduceSum(k, first)  p = Div(s, c)  y = MatMul(p, w)"
    ),
}
COUNTS = {
    "rows of a table": "m = Mul(e, k)  y = MatMul(m, w)",
    "positions and features": (
        "n = LayerNormalization(e, g)  a = Add(n, k)  m = Mul(a, k)  y = MatMul(m, w)"
    ),
    "the mean position under a softmax": (
        "n = LayerNormalization(e, g)  p = Softmax(n)  m = Mul(p, places)  y = MatMul(m, w)"
    ),
    "a norm of positions": (
        "r = Mul(k, v)  n = LayerNormalization(r, g)  m = Mul(n, k)  y = MatMul(m, w)"
    ),
    "rows by a product": (
        "q = Equal(mask, places64)  o = Cast<to = 1>(q)  h = MatMul(o, w)  m = Mul(h, k)"
        "  y = MatMul(m, w)"
    ),
    "numbers known before any call": (
        "c = MatMul(table, w)  t = Slice(c, first, rows)  m = Mul(t, k)  y = MatMul(m, w)"
    ),
}


def last_product(nodes):
    text = f"""f (int64[8] ids, int64[8, 1] mask) => (float[a, b] y)
    <float[50, 16] table = {{{numbers(800)}}}, float[16, 16] w = {{{numbers(256)}}},
    float[16] g = {{{numbers(16)}}}, int64[1] first = {{0}},
    float[1, 16] v = {{{numbers(16)}}}, int64[1] rows = {{8}}> {{
        start = Constant<value_int = 0>()  end = Constant<value_int = 16>()
        step = Constant<value_int = 1>()  places64 = Range(start, end, step)
        places = Cast<to = 1>(places64)  e = Gather(table, ids)  k = Cast<to = 1>(mask)
        {nodes} }}"""
    return duotone.onnx.explain(model(text)).operations[-1]


@pytest.mark.parametrize("name", FEATURES)
def test_masked_features_are_half(name):
    found = last_product(FEATURES[name])
    assert (found.operation, found.paint) == ("MatMul", "half")


@pytest.mark.parametrize("name", COUNTS)
def test_counts_stay_full(name):
    found = last_product(COUNTS[name])
    assert (found.paint, found.rule) == ("full", "position")
