"""``duotone.onnx.compare``: nothing infinite hides, half values are rounded, no side collapses."""

import math

import numpy as np
import onnx
import pytest
from onnx import parser

import duotone.onnx
from duotone.errors import ArgumentError
from duotone.onnx import running
from duotone.onnx.exposing import rounded
from tests.onnx.models import FUNCTION, LOOP, MLP, model

PRODUCT = "f (float[2, 64] x, float[64, 4] w) => (float[2, 4] y) { y = MatMul(x, w) }"
TOO_LARGE = {"x": np.full((2, 64), 3e3, np.float32), "w": np.ones((64, 4), np.float32)}
SMALLER = """
f (float[2, 64] x, float[64, 4] w, float[1] s) => (float[2, 4] y)
{ h = MatMul(x, w)  y = Mul(h, s) }
"""
STRIDES = """
f (float[1, 1, a, b] x) => (float[1, 2, c, d] y)
<float[1, 1, 3, 3] k = {ONES}, float[4] two = {1.0, 1.0, 2.0, 2.0}>
{
    p = Conv<strides = [4, 4], pads = [1, 1, 1, 1]>(x, k)
    q = Conv<strides = [4, 4], pads = [1, 1, 1, 1]>(p, k)
    r = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(q, k)
    m = GlobalAveragePool(r)
    g = Mul(r, m)
    u = Resize<mode = "nearest">(g, , two)
    y = Concat<axis = 1>(u, q)
}
""".replace("ONES", ", ".join(["0.1"] * 9))


def test_compare_finds_the_first_node_where_two_models_part():
    before = model(MLP)
    after = duotone.onnx.rewrite(before).model
    same = duotone.onnx.compare(before, after)
    assert same.parts is None
    assert same.error < 2e-3
    for tensor in after.graph.initializer:
        if tensor.name == "b":  # a planted fault
            tensor.raw_data = np.full(16, 9.0, np.float16).tobytes()
    parted = duotone.onnx.compare(before, after)
    assert parted.parts is not None
    assert parted.parts.name == "a"


def test_an_infinite_result_has_an_infinite_error():
    before = model(PRODUCT)
    found = duotone.onnx.compare(before, duotone.onnx.rewrite(before).model, TOO_LARGE)
    assert found.error == math.inf
    assert found.outputs[0].saturated == 8
    assert found.parts is not None


def test_a_half_value_is_rounded_where_the_runtime_would_not():
    """Catches: casts that ONNX Runtime removes around operations without a half kernel."""
    feed = TOO_LARGE | {"s": np.full(1, 1e-3, np.float32)}
    found = duotone.onnx.compare(model(SMALLER), duotone.onnx.rewrite(model(SMALLER)).model, feed)
    assert found.plain_error < 1e-2  # h is inf in half, and the provider computes it in float32
    assert found.error == math.inf
    assert found.parts is not None
    assert found.parts.name == "h"


def test_rounding_reaches_into_loops():
    made = rounded(duotone.onnx.rewrite(model(LOOP)).model)
    assert made is not None
    body = next(n for n in made.graph.node if n.op_type == "Loop").attribute[0].g
    assert [n.op_type for n in body.node].count("Identity") >= 3
    onnx.checker.check_model(made)
    assert running.session(made)


def test_values_of_functions_are_compared():
    before = parser.parse_model(FUNCTION)
    found = duotone.onnx.compare(before, duotone.onnx.rewrite(before).model)
    assert found.error < 1e-2
    assert found.nodes


def test_open_sides_do_not_collapse(tmp_path):
    """Catches: a detector with strides of 32 that was given a picture of one pixel."""
    before = model(STRIDES)
    found = duotone.onnx.compare(before, duotone.onnx.rewrite(before).model)
    assert found.inputs == {"x": "float32[1, 1, 64, 64]"}
    assert any("open sides: 64" in note for note in found.notes)
    shapes = {"x": (1, 1, 96, 160)}
    found = duotone.onnx.compare(before, duotone.onnx.rewrite(before).model, shapes=shapes)
    assert found.inputs == {"x": "float32[1, 1, 96, 160]"}
    assert not any("open sides" in note for note in found.notes)


def test_where_nothing_can_be_guessed():
    odd = model("f (float[n, k] x, float[99, 2] w) => (float[n, 2] y) { y = MatMul(x, w) }")
    with pytest.raises(ArgumentError, match="--shapes 'x=1,320'"):
        duotone.onnx.compare(odd, odd)
    assert duotone.onnx.compare(odd, odd, shapes={"x": (5, 99)}).error == 0
    with pytest.raises(ArgumentError, match="which has its own shapes"):
        duotone.onnx.compare(odd, odd, {"x": np.ones((5, 99), np.float32)}, shapes={"x": (5, 99)})


def test_models_with_external_data_are_exposed_and_calibrated(tmp_path):
    weights = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    made = model(SMALLER)
    made.graph.input.pop(1)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = tmp_path / "m.onnx"
    onnx.save(made, path, save_as_external_data=True, size_threshold=0, location="m.bin")
    duotone.onnx.rewrite(path, tmp_path / "half.onnx")
    found = duotone.onnx.compare(path, tmp_path / "half.onnx")
    assert [value.name for value in found.nodes] == ["h"]
    assert found.error < 1e-2
    feed = {"x": np.full((2, 64), 1e5, np.float32), "s": np.ones(1, np.float32)}
    done = duotone.onnx.rewrite(path, calibration=feed)
    assert [o.rule for o in done.record.operations] == ["overflow", "overflow"]
