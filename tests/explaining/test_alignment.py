"""Two sequences that are mostly the same, aligned."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from duotone.explaining.alignment import aligned


def longest(left: Sequence[int], right: Sequence[int]) -> int:
    """Returns how many elements the best alignment pairs, by dynamic programming."""
    row = [0] * (len(right) + 1)
    for one in left:
        diagonal = 0
        for position, other in enumerate(right, 1):
            above = row[position]
            row[position] = diagonal + 1 if one == other else max(above, row[position - 1])
            diagonal = above
    return row[-1]


@pytest.mark.parametrize("kinds", [5, 30])
@pytest.mark.parametrize("rate", [0.02, 0.2])
def test_pairs_are_equal_in_order_and_nearly_as_many_as_can_be(kinds: int, rate: float) -> None:
    chance = random.Random(kinds)
    unit = [chance.randrange(kinds) for _ in range(20)]
    left, right = unit * 10, list[int]()
    for element in left:
        right += [element] if chance.random() > rate else []
        right += [chance.randrange(kinds)] if chance.random() < rate else []
    pairs = aligned(left, right)
    assert all(left[i] == right[j] for i, j in pairs)
    assert all(i < k and j < m for (i, j), (k, m) in itertools.pairwise(pairs))
    assert len(pairs) >= 0.97 * longest(left, right)


def test_ends_and_nothing() -> None:
    assert aligned("", "ab") == []
    assert aligned("ab", "xab") == [(0, 1), (1, 2)]
    assert aligned("abx", "ab") == [(0, 0), (1, 1)]
    assert aligned("ab", "cd") == []


def test_many_elements_alone_are_passed() -> None:
    alone = list(range(100, 500))
    assert len(aligned([*range(50), *alone, *range(50, 100)], list(range(100)))) == 100
