"""Code blocks of README.md and docs/ run, page by page.

Blocks of one page share their names, top to bottom, as a reader would type them. A block that must
not run carries ``<!--- skip: next "reason" -->`` on the line before it. (Examples in docstrings are
doctests, which pytest collects itself.)
"""

from __future__ import annotations

import contextlib
import doctest
import json
import runpy
import subprocess
import sys
import unittest
import xml.etree.ElementTree
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

SYBIL = Sybil(
    parsers=[
        PythonCodeBlockParser(doctest_optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE),
        SkipParser(),
    ],
    path=str(ROOT),
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_blocks_of_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a page may write files
    for example in SYBIL.parse(page).examples():
        with contextlib.suppress(unittest.SkipTest):  # of one block; those below it run
            example.evaluate()


@pytest.mark.parametrize("script", ["readme_results.py", "results_page.py", "rules_page.py"])
def test_what_a_script_writes_is_up_to_date(script: str) -> None:
    command = [sys.executable, ROOT / "scripts" / script, "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_changed_figure_changes_the_table_and_the_picture() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "results_page.py"))
    data = json.loads((ROOT / "benchmarks" / "results" / "cpu_steps.json").read_text())
    before = made["speed_on_cpu"](data["figures"])
    data["figures"]["JAX 0.12"]["rows"][0]["speedups"]["duotone"] = 9.87
    after = made["speed_on_cpu"](data["figures"])
    assert "9.87" not in before
    assert "9.87" in after
    xml.etree.ElementTree.fromstring(after)  # well formed
    missed = {"name": "slow", "value": 2.0, "limit": 1.0, "unit": "times", "kept": False}
    assert "| slow | 2 times | 1 times | **missed** |" in made["_bars"]([missed] * 20)


def test_the_index_and_the_menu_lead_to_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    menu = (ROOT / "mkdocs.yml").read_text()
    for page in (page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]):
        assert page == "index.md" or f"({page})" in index, f"docs/index.md has no link to {page}"
        assert f": {page}\n" in menu, f"mkdocs.yml has no line for {page}"
