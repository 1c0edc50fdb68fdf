"""``benchmarks.ablation``: what changes nothing counts as 1, and tables say in how many it does."""

from __future__ import annotations

import pytest

from benchmarks import ablation


def test_painted_rows_count_models_without_a_change_as_one() -> None:
    columns = [f"{target} {half}" for target, half in ablation.COLUMNS]
    changed = {column: {"bytes": {"mixed": 0.25}, "optimizations": []} for column in columns}
    same = {column: {"bytes": {}, "optimizations": []} for column in columns}
    rows = {row[0]: row[1:] for row in ablation.painted_rows({"a": changed, "b": same})}
    assert rows["mixed"] == pytest.approx([0.5, 1] * len(columns))
    assert rows["full_readers"] == [1.0, 0] * len(columns)


def test_compiled_rows_name_the_model_that_gains_most() -> None:
    records = {
        "a": {"h200 bfloat16": {"factors": [1.21, 1.0]}},
        "b": {"h200 bfloat16": {"factors": [1.0, 1.0]}},
        "c": {"h200 bfloat16": {}},
        "d": {"v5e bfloat16": {"factors": [3.0, 1.0]}},
    }
    rows = list(ablation.compiled_rows(records, "h200 bfloat16"))
    assert rows == [["factors", "2 of 3", "1.066", "1.000", "1.000", "1.210, a"]]


def test_a_small_model_is_painted_without_each_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "COLUMNS", ablation.COLUMNS[:1])
    found = ablation.painted("dlrm")["h200 float16"]
    assert "mixed" in found["bytes"]
    assert "iteration" not in found["bytes"]
    assert "weight_gradients" in found["optimizations"]
