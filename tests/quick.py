"""Cases of which `make test` runs some and `make test-all` all."""

from __future__ import annotations

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
