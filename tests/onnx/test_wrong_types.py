"""Arguments of the wrong type to the functions for ONNX models."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import parser

import duotone
from duotone.errors import ArgumentTypeError, DuotoneError

MODEL = parser.parse_model(
    """<ir_version: 8, opset_import: ["" : 17]>
    f (float[2, 8] x, float[8, 4] w) => (float[2, 4] y) { y = MatMul(x, w) }"""
)


@pytest.mark.parametrize("name", ["keep_io", "fold_inputs", "overwrite"])
def test_a_switch_is_true_or_false(name: str) -> None:
    switch: dict[str, Any] = {name: "no"}
    with pytest.raises(ArgumentTypeError, match=f"{name} is 'no'; pass True or False"):
        duotone.onnx.rewrite(MODEL, **switch)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"policy": "float16"}, r"policy is 'float16'; pass a duotone\.Policy"),
        ({"keep_full": "MatMul"}, "keep_full is 'MatMul'; pass a list of strings"),
        ({"dtype": []}, "dtype=a list: it takes 'float16'"),
        ({"painter": []}, "painter=a list: it takes 'duotone'"),
        ({"provider": []}, "provider=a list: it takes"),
        ({"opset": "17"}, "opset is '17'; pass a whole number"),
        ({"out": 3}, "out is 3; pass a path"),
    ],
)
def test_an_argument_of_rewrite(given: dict[str, Any], says: str) -> None:
    with pytest.raises(DuotoneError, match=says):
        duotone.onnx.rewrite(MODEL, **given)


@pytest.mark.parametrize("record", [3, None, MODEL])
def test_view_and_check_range_take_results(record: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"record is .*pass what duotone"):
        duotone.onnx.view(record)
    with pytest.raises(ArgumentTypeError, match=r"done is .*pass what duotone"):
        duotone.onnx.check_range(MODEL, record)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"seed": "x"}, "seed is 'x'; pass a whole number"),
        ({"seed": -1}, "seed is -1; pass at least 0"),
        ({"shapes": 3}, "shapes is 3; pass a dictionary"),
    ],
)
def test_an_argument_of_compare(given: dict[str, Any], says: str) -> None:
    with pytest.raises(DuotoneError, match=says):
        duotone.onnx.compare(MODEL, MODEL, **given)
