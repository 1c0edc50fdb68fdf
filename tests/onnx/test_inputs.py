"""Inputs that a user gives, to calibrate or compare with: each mistake is named in one line."""

import ml_dtypes
import numpy as np
import pytest

import duotone.onnx
from duotone.errors import ArgumentError, CalibrationError, OnnxError
from tests.onnx.models import model

TEXT = "f (float[2, n] x, int64[1] k) => (float[2, n] y) { c = Cast<to = 1>(k)  y = Mul(x, c) }"
X, K = np.ones((2, 3), np.float32), np.ones(1, np.int64)


def calibrated(data):
    return duotone.onnx.rewrite(model(TEXT), calibration=data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"x": X}, "asks for the input 'k'; given are 'x'"),
        ({"x": X[0], "k": K}, r"takes tensor\(float\)\[2, n\] as input 'x'; given is .*\[3\]"),
        ({"x": X.T, "k": K}, r"takes tensor\(float\)\[2, n\] as input 'x'; .*float32\[3, 2\]"),
        ({"x": X.astype("U4"), "k": K}, r"as input 'x'; given is an array of <U4\[2, 3\]"),
        ({"x": X * 1j, "k": K}, "as input 'x'; given is an array of complex64"),
        ({"x": np.array([[{}] * 3] * 2), "k": K}, "as input 'x'; given is an array of object"),
    ],
)
def test_arrays_that_do_not_suit_the_model(data, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        calibrated(data)
    assert "\n" not in str(caught.value)


def test_other_numbers_are_converted(tmp_path):
    given = {"x": np.ones((2, 7), np.int32), "k": K, "unused": K}
    assert calibrated(given).record.operations
    assert calibrated({**given, "x": np.ones((2, 7), ml_dtypes.bfloat16)}).record.operations


def test_nothing_finite_to_calibrate_with():
    with pytest.raises(CalibrationError, match="'x' to calibrate with has no finite number"):
        calibrated({"x": np.full((2, 3), np.nan, np.float32), "k": K})


def write_array(path):
    with path.open("wb") as file:
        np.save(file, X)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.mkdir(), "it is a folder"),
        (write_array, "one array without a name"),
        (lambda path: path.write_bytes(b"PK\x03\x04 and no more"), "it is damaged"),
        (lambda path: path.write_bytes(b""), "it is damaged"),
        (lambda path: path.write_text("x = 1"), "it is damaged"),
        (lambda path: np.savez(path, x=np.array([{}])), "its contents are not numbers"),
    ],
)
def test_files_that_hold_no_inputs(tmp_path, make, words):
    path = tmp_path / "inputs.npz"
    make(path)
    with pytest.raises(
        ArgumentError, match=rf"inputs\.npz is not an \.npz file .*{words}.*numpy\.savez"
    ):
        calibrated(path)


def test_the_model_that_the_runtime_refuses_is_named(tmp_path):
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    text = "f (float[2, 3] x, float[SIDE, 4] w) => (float[2, 4] y) { y = MatMul(x, w) }"
    for path, side in ((good, "3"), (bad, "9")):
        path.write_bytes(model(text.replace("SIDE", side)).SerializeToString())
    with pytest.raises(OnnxError, match=r"bad\.onnx: ONNX Runtime refuses the model: ") as caught:
        duotone.onnx.compare(good, bad)
    assert "\n" not in str(caught.value)
