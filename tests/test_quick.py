"""What the tests share: cases in turns."""

from __future__ import annotations

import sys

import pytest

from tests.quick import in_turns


def test_two_pythons_run_all_combinations_and_each_has_every_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run: list[set[tuple[object, ...]]] = []
    for version in ((3, 11), (3, 12)):
        monkeypatch.setattr(sys, "version_info", version)
        run.append({case.values for case in in_turns("abc", range(4)) if not case.marks})
    assert not run[0] & run[1]
    assert len(run[0] | run[1]) == 12
    for each in run:
        assert {values[0] for values in each} == set("abc")
        assert {values[1] for values in each} == set(range(4))
