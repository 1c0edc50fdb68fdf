"""Measured ranges as a table: widths, shares, marks."""

from __future__ import annotations

import pytest

from duotone.policy import ranges_view as ranges
from duotone.policy.calibration import ValueRange


def value(name: str = "x", low: float = -1.0, high: float = 1.0, **numbers: float) -> ValueRange:
    shares = {"small": 0.0, "lost": 0.0, "over": 0.0, "smallest": 1.0} | numbers
    return ValueRange(0, name, low, high, shape=(128, 1024, 1024), **shares)


@pytest.mark.parametrize(
    ("measured", "mark"),
    [
        (value(high=65504.0), ""),
        (value(low=-65505.0), "overflows"),
        (value(high=7e4, small=0.9), "overflows"),
        (value(small=0.51), "underflows"),
        (value(small=0.5), ""),
    ],
)
def test_marks(measured: ValueRange, mark: str) -> None:
    assert ranges.mark(measured) == mark
    assert (mark in ranges.render("title", [measured]).splitlines()[2]) or not mark


def test_long_names_break_at_slashes_and_nothing_is_wider_than_80_columns() -> None:
    name = "Transformer/layers/11/attention/query/dot_general"
    worst = value(name, -3.333e30, 3.333e30, small=0.9999, over=0.9999, smallest=1.234e-30)
    endless = value("x" * 100)
    lines = ranges.render("title", [worst, endless]).splitlines()
    assert max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines[2:] if line[0] != " "]
    assert names[:3] == ["Transformer/layers/11/", "attention/query/", "dot_general"]
    assert "".join(names[3:]).startswith("x" * 100)
    assert "1.2e-30 3.33e+30 100.0% 100.0% overflows" in " ".join(lines[2].split())


def test_a_share_that_is_none_and_one_that_is_small() -> None:
    row = ranges.render("title", [value(small=1e-6, over=0.0)]).splitlines()[2].split()
    assert row[-2:] == ["<0.1%", "."]


def test_scopes_in_brackets_are_no_markup() -> None:
    assert "layer[0]/mul" in ranges.render("title", [value("layer[0]/mul")])
