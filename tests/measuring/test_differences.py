"""One figure for how two runs differ: nothing infinite, missing or of another shape hides in it."""

import json
import math

import ml_dtypes
import numpy as np
import pytest

from duotone.measuring.differences import Difference, constant_results, difference, relative_error


def f32(*numbers):
    return np.array(numbers, np.float32)


def f16(*numbers):
    return np.array(numbers, np.float16)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (f32(2, 1), f32(2, 0.5), 0.25),
        (f32(2, np.inf), f32(1, np.inf), 0.5),
        (f32(2, np.nan), f32(1, np.nan), 0.5),
        (f32(2, 1), f32(np.inf, 1), math.inf),
        (f32(2, 1), f32(np.nan, 1), math.inf),
        (f32(np.inf, 1), f32(2, 1), math.inf),
        (f32(np.nan, 1), f32(2, 1), math.inf),
        (f32(np.inf, 1), f32(-np.inf, 1), math.inf),
        (f32(1, 1), f32(1), math.inf),
        (f32([1]), f32(1), math.inf),
        (f32(), f32(), 0.0),
        (f32(0), f32(0.5), 0.5),
        (f32(2), np.ones(1, ml_dtypes.bfloat16), 0.5),
        (np.array([3, 1]), np.array([0, 1]), 1.0),
        (np.array([2 + 0j]), np.array([2 + 1j]), 0.5),
        (np.array(["cat"]), np.array(["cat"]), 0.0),
        (np.array(["cat"]), np.array(["dog"]), math.inf),
        ([f32(2), f32(4)], [f32(2), f32(3)], 0.25),
        ([f32(2)], [], math.inf),
        ([{"a": 2.0}], [{"a": 1.0}], 0.5),
        ([{"a": 2.0}], [{"b": 2.0}], math.inf),
        (None, None, 0.0),
        (None, f32(1), math.inf),
    ],
)
@pytest.mark.filterwarnings("error")
def test_the_relative_error(first, second, expected):
    assert relative_error(first, second) == expected


def test_lost_elements_are_counted():
    first = f32(7e4, 7e4, 1, np.inf, np.nan, -7e4)
    second = f16(np.inf, 65504, 1, np.inf, np.nan, np.nan)
    assert difference("y", first, second).saturated == 3
    assert difference("y", first, second.astype(np.float32)).saturated == 2
    assert difference("y", [first], [second]).saturated == 3


def test_results_that_show_nothing():
    """Catches: features that are 0 because all inputs were padding."""
    results = {
        "zero": f32(0, 0),
        "nan": f32(np.nan, np.inf),
        "mask": f32(-np.inf, 2, 2),
        "good": f32(0, 1),
        "one": f32(3),
        "empty": f32(),
        "label": np.array([1, 1]),
        "list": [f32(0, 0), f32(0)],
    }
    texts = constant_results(results)
    assert [text.split()[2] for text in texts] == ["zero", "nan", "mask"]
    assert "is 0 everywhere" in texts[0]
    assert "has no finite number" in texts[1]


def test_the_record():
    same = difference("h", f32(1, 2), f32(1, 2), "MatMul")
    half = difference("y", f32(2, 1), f32(2, 0.5), "Exp", plain=f32(2, 1.5))
    lost = difference("z", f32(2, 1), f32(np.inf, 1), "Mul", plain=f32(2, 1))
    found = Difference((half, lost), (same,), {"x": "float32[2]"}, ("a note",))
    assert (found.error, found.plain_error) == (math.inf, 0.25)
    assert found.parts == half
    assert Difference((same,), ()).parts is None
    assert Difference((), ()).error == 0
    text = str(found)
    assert "input x: float32[2]" in text
    assert "a note" in text
    read = json.loads(found.to_json())
    assert read["outputs"][1]["error"] == "Infinity"
    assert read["inputs"] == {"x": "float32[2]"}
