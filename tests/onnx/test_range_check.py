"""The check of ranges: what overflows half on inputs by size, found in float32 runs."""

import math

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import duotone.onnx
from duotone.cli.main import app
from duotone.onnx import range_check as checking
from tests.onnx.models import MLP, model

AUDIO = """
f (float[1, 1, n] samples) => (float[1, 1, m] y) <float[1, 1, 9] k = {ONES}>
{ c = Conv(samples, k)  r = Sqrt(c)  y = Conv(r, k) }
""".replace("ONES", ", ".join(["1.0"] * 9))
MASKED = """
f (float[1, 4, 8] x, float[8, 8] w, bool[1, 4, 8] keep) => (float[1, 4, 8] y)
<float low = {-1000000000.0}>
{ h = MatMul(x, w)  m = Where(keep, h, low)  p = Softmax(m)  y = MatMul(p, w) }
"""


def check(text):
    return duotone.onnx.check_range(model(text), duotone.onnx.rewrite(model(text)))


def test_samples_overflow_a_convolution():
    found = check(AUDIO)
    assert list(found.outside) == [1, 255, 32767]
    assert found.outside[255] == ()
    assert found.outside[32767] == ("Conv c",)
    text = str(found)
    assert "\n" not in text
    assert "overflows with inputs up to 32,767, in 1 operation (Conv c)" in text
    assert "--calibration data.npz" in text
    assert "(3 runs, " in text


def test_what_it_finds_is_infinite_in_half():
    """The check runs in float32 alone; the same inputs in half confirm it."""
    before = model("f (float[1, 800] x, float[800, 8] w) => (float[1, 8] y) { y = MatMul(x, w) }")
    done = duotone.onnx.rewrite(before)
    found = duotone.onnx.check_range(before, done)
    assert found.outside[1] == ()
    assert found.outside[32767] == ("MatMul y",)
    for scale, error in ((1, 0.01), (32767, math.inf)):
        rng = np.random.default_rng(0)
        feed = {"x": rng.standard_normal((1, 800)), "w": rng.standard_normal((800, 8))}
        feed = {name: (x * scale / abs(x).max()).astype(np.float32) for name, x in feed.items()}
        seen = duotone.onnx.compare(before, done.model, feed).error
        assert seen == error or seen < error < math.inf


def test_float32_operations_may_leave_it():
    done = duotone.onnx.rewrite(model(AUDIO), keep_full=["Conv"])
    found = duotone.onnx.check_range(model(AUDIO), done)
    assert found.outside == {1: (), 255: (), 32767: ()}
    assert "inputs up to 1, 255, 32,767 stay in the range of float16" in str(found)


def test_a_selected_mask_is_saturated_and_no_overflow():
    paints = {o.operation: o.paint for o in duotone.onnx.explain(model(MASKED)).operations}
    assert paints["Where"] == "half"
    assert check(MASKED).outside[1] == ()


def test_narrow_integers_are_scaled_and_indices_are_not():
    table = ", ".join(["1.0"] * 64)
    found = check(
        "f (uint8[1, 8] x, int64[1, 8] i) => (float[1, 8] y) "
        f"<float[8, 8] w = {{{table}}}> {{ e = Gather(w, i)  f = Cast<to = 1>(x) "
        "g = Mul(f, f)  s = ReduceSum<keepdims = 0>(e)  h = MatMul(g, w)  y = Mul(h, h) }"
    )
    assert found.outside[1] == ()
    assert found.outside[255] == found.outside[32767] == ("MatMul h",)


def test_what_is_not_run(monkeypatch):
    monkeypatch.setattr(checking, "MOST_FLOPS", 10.0)
    assert str(check(MLP)).startswith("range check: not done, since a run takes more than")
    monkeypatch.setattr(checking, "LARGEST_MODEL", 10)
    assert "its tensors have more than" in check(MLP).declined
    monkeypatch.undo()
    odd = "f (float[n, k] x, float[99, 2] w) => (float[n, 2] y) { y = MatMul(x, w) }"
    assert "does not run with random inputs" in check(odd).declined
    assert len(str(check(odd))) < 320


def test_without_the_runtime(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "ONNX Runtime is not installed" in check(MLP).declined


@pytest.mark.parametrize(
    ("options", "is_checked"),
    [
        ([], True),
        (["--no-range-check"], False),
        (["--dtype", "bfloat16"], False),
        (["--calibration", "x.npz"], False),
    ],
)
def test_the_command_line(tmp_path, monkeypatch, options, is_checked):
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", samples=np.ones((1, 1, 99), np.float32))
    onnx.save(model(AUDIO), "m.onnx")
    said = CliRunner().invoke(app, ["rewrite", "m.onnx", "-o", "h.onnx", *options])
    assert said.exit_code == 0, said.output
    assert said.output.count("range check: ") == is_checked
