"""Runs of equal numbers are found, all of them and no others."""

from __future__ import annotations

import random

import numpy as np
import pytest

from duotone.compiling.repeats import CopyRun, find_runs


def by_hand(keys: list[int], copies: int) -> set[tuple[int, int, int]]:
    """Every maximal run, by comparing each period with each place."""
    found = set()
    for period in range(1, len(keys) // copies + 1):
        start = 0
        while start < len(keys) - period:
            end = start
            while end + period < len(keys) and keys[end] == keys[end + period]:
                end += 1
            if end - start + period >= copies * period:
                found.add((start, end - start + period, period))
            start = end + 1
    return found


def primitive(keys: list[int], run: tuple[int, int, int]) -> bool:
    """True if no shorter period fits: multiples of a period are not runs of their own."""
    start, length, period = run
    part = keys[start : start + length]
    return not any(
        all(part[i] == part[i + shorter] for i in range(length - shorter))
        for shorter in range(1, period)
    )


@pytest.mark.parametrize("seed", range(60))
def test_runs_are_those_found_by_hand(seed: int) -> None:
    rng = random.Random(seed)
    keys: list[int] = []
    while len(keys) < 80:
        block = [rng.randint(0, 3) for _ in range(rng.randint(1, 6))]
        keys += block * rng.randint(1, 7)
    wanted = {run for run in by_hand(keys, 4) if primitive(keys, run)}
    found = {(run.start, run.length, run.period) for run in find_runs(np.array(keys), 4)}
    assert found == wanted


def test_the_run_that_leaves_out_most_comes_first() -> None:
    keys = np.array([*[1, 2] * 4, 9, *[3, 4, 5] * 6])
    assert find_runs(keys)[0] == CopyRun(start=9, length=18, period=3)


@pytest.mark.parametrize("keys", [[], [1], [1, 2, 3, 4, 5]])
def test_nothing_repeated(keys: list[int]) -> None:
    assert find_runs(np.array(keys, np.int64)) == []
