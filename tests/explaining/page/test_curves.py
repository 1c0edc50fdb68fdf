"""Curves of a training: what is passed, what is kept of it, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from duotone.errors import ArgumentError, ArgumentTypeError
from duotone.explaining.page.curves import MOST_PARTS, curves_of


def test_numbers_begin_at_step_0_and_pairs_are_sorted() -> None:
    first, second = curves_of({"loss": [3, 2.5, 2], "scale": [(20, 2.0), (10, 1.0)]})
    assert (first["steps"], first["values"]) == ([0, 1, 2], [3, 2.5, 2])
    assert (second["steps"], second["values"]) == ([10, 20], [1, 2])
    assert second["last"] == [20, 2]


def test_what_is_not_finite_is_kept_and_counted() -> None:
    (curve,) = curves_of({"loss": [1.0, float("nan"), float("-inf"), 3.0]})
    assert curve["values"] == [1, None, None, 3]
    assert (curve["lost"], curve["least"], curve["greatest"]) == (2, [0, 1], [3, 3])


def test_nothing_finite_and_nothing_at_all() -> None:
    lost, empty = curves_of({"a": [float("inf")], "b": []})
    assert (lost["last"], lost["lost"]) == (None, 1)
    assert (empty["count"], empty["values"]) == (0, [])


def test_a_long_curve_keeps_its_extremes_and_what_is_not_finite() -> None:
    values = np.sin(np.arange(200_000) / 1000)
    values[12_345], values[77_777], values[150_001] = 40.0, -40.0, np.nan
    (curve,) = curves_of({"loss": values})
    assert len(curve["values"]) <= 3 * MOST_PARTS + 2
    kept = dict(zip(curve["steps"], curve["values"], strict=True))
    assert (kept[12_345], kept[77_777], kept[150_001]) == (40, -40, None)
    assert {0, 199_999} <= set(kept)
    assert curve["count"] == 200_000


def test_large_ratios_have_a_logarithmic_axis() -> None:
    scale, loss = curves_of({"scale": [2.0**24, 2.0**10], "loss": [5.0, 0.0]})
    assert scale["log"]
    assert scale["greatest"] == [0, 2**24]
    assert not loss["log"]


def test_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("\ufeffWall time,Step,loss,loss scale\n9,10,2.5,\n9,20,nan,32768\n", "utf-8")
    loss, scale = curves_of(path)
    assert (loss["name"], loss["steps"], loss["values"]) == ("loss", [10, 20], [2.5, None])
    assert (scale["steps"], scale["values"]) == ([20], [32768])


def test_a_csv_file_without_steps(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("loss\n2.5\n1.5\n")
    assert curves_of(str(path))[0]["steps"] == [0, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"step,loss\n1,two\n", "line 2: loss is 'two', which is not a number"),
        (b"step,loss\nx,2\n", "line 2: step is 'x', which is not a number"),
        (b"step\n1\n", "its first line must name the curves"),
        (b"", "its first line must name the curves"),
        (b"loss\n\xff\xfe\n", "is not a CSV file"),
    ],
)
def test_what_is_wrong_in_a_file_is_reported(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.csv"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=re.escape(message)):
        curves_of(path)


@pytest.mark.parametrize("points", [["a"], [[1, 2, 3]], [(float("nan"), 1.0)], 3.0, [None, "x"]])
def test_what_is_no_curve_is_named(points: object) -> None:
    with pytest.raises(ArgumentTypeError, match=r"history\['loss'\]"):
        curves_of({"loss": points})
