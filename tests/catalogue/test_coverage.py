"""The tables in ``docs/coverage`` say what the catalogue says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import jax
import pytest

ROOT = Path(__file__).parents[2]


def _script() -> Any:
    path = ROOT / "scripts" / "coverage_table.py"
    spec = importlib.util.spec_from_file_location("coverage_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["primitives.md", "transformations.md"])
def test_the_committed_table_is_up_to_date(name: str):
    committed = (ROOT / "docs" / "coverage" / name).read_text(encoding="utf-8")
    generated = _script().PAGES[name]() + "\n"
    written_for = re.search(r"JAX (\d+\.\d+)", committed)
    if written_for is None or written_for[1] in jax.__version__:
        assert generated == committed, "run scripts/coverage_table.py"
    else:  # the page is of the newest JAX; an older one has some rows fewer, and no other names
        ours, theirs = _names(generated), _names(committed)
        assert ours - theirs <= {"`call`", "`closed_call`", "`dce_sink`"}


def _names(page: str) -> set[str]:
    return {line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if "|" in line}
