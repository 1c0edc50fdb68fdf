"""Amounts with metric prefixes."""

from __future__ import annotations

import pytest

from duotone.text import numbers as text


@pytest.mark.parametrize(
    ("number", "unit", "expected"),
    [
        (0, "B", "0 B"),
        (999, "B", "999 B"),
        (1000, "B", "1 kB"),
        (1_234_567, "", "1.23 M"),
        (5e9, "FLOPs", "5 GFLOPs"),
        (7.77e12, "B", "7.77 TB"),
        (12, "", "12"),
        (-2500, "B", "-2.5 kB"),
    ],
)
def test_amounts(number: float, unit: str, expected: str) -> None:
    assert text.amount(number, unit) == expected
