"""Cases of which `make test` runs some and `make test-all` all."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(quick: str, names: Iterable[str]) -> list[Any]:
    """Names for ``pytest.mark.parametrize``, all marked slow but some.

    Args:
        quick: the others' names, divided by spaces or, where one holds a space, by commas.
        names: of all cases.
    """
    kept = {name.strip() for name in quick.split("," if "," in quick else None)}
    names = list(names)
    assert kept <= set(names), f"no cases {kept - set(names)}"
    return [name if name in kept else pytest.param(name, marks=pytest.mark.slow) for name in names]


def in_turns(*axes: Iterable[Any]) -> list[Any]:
    """All combinations for ``pytest.mark.parametrize``; each Python runs every other one.

    Every value of every axis occurs on both Pythons if two axes have several values. `make test`
    and `make test-newest` run all combinations together, `make test-all` runs all on each.

    Args:
        axes: the values of each argument.
    """
    turn = int(sys.version_info >= (3, 12))
    made = []
    for numbered in itertools.product(*map(enumerate, axes)):
        values = [value for _, value in numbered]
        ours = sum(number for number, _ in numbered) % 2 == turn
        made.append(pytest.param(*values, marks=[] if ours else pytest.mark.slow))
    return made
