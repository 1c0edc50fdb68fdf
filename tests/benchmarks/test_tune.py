"""The benchmark of ``duotone.tune``: what it measures, and when its limits are missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import tune


def record(tuned: float, temporary: int = 10) -> dict[str, Any]:
    return {
        "by hand": 100.0,
        "own": 95.0,
        "own temporary": 10,
        "tuned": tuned,
        "tuned temporary": temporary,
        "minutes": 1.0,
        "trials": 3,
        "kept": ["without factors"],
    }


@pytest.mark.parametrize(
    ("tuned", "temporary", "kept"),
    [
        (88.0, 10, [True, True]),
        (89.0, 10, [False, True]),
        (96.0, 10, [False, False]),
        (80.0, 11, [True, False]),
    ],
)
def test_limits(tuned: float, temporary: int, kept: list[bool]) -> None:
    bars = tune.bars_of({"nerf/h200/bfloat16": record(tuned, temporary)})
    assert [bar.kept for bar in bars] == kept


def test_the_table_names_what_was_kept() -> None:
    text = tune.text_of({"nerf/h200/bfloat16": record(90.0)})
    for part in ("0.950", "0.900", "without factors"):
        assert part in text


def test_a_model_is_tuned_and_written(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    tune.run([("actor_critic", "cpu", "bfloat16")], 0.05, folder, size="tiny")
    (row,) = tune.rows_of(tune.load(folder), "cpu", "bfloat16").values()
    assert 0 < row["tuned"] <= row["own"]
    assert row["by hand"] > 0
    assert row["trials"] >= 1
    assert (folder / "tune.txt").exists()
