"""Words on screen: plain English in what duotone prints, numbers that agree with their nouns."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from pathlib import Path

import jax
import pytest

import duotone
from duotone.errors import kind_of, plural, with_article
from duotone.explaining.overview import Overview
from tests.explaining.test_overview import record

PACKAGE = Path(duotone.__file__).parent
ROOT = Path(__file__).parent.parent
LEFT = (
    "dearest",
    "part nowhere",
    "both have:",
    "stand in programs",
    "is no dtype",
    "got a {",
)
"""Phrases that nobody says, and where an article may not fit."""
_HEADLESS = re.compile(
    r'(?:"""|# |[.!?:;]\s+(?:# )?|\n\s*\n\s*)'
    r"((?:Of|Who|Whether|What|Those of|Those that) [a-z](?!.*\?).*)"
)
"""The beginning of a sentence without a subject, in a docstring, a comment or a message. A question
may begin so."""


@functools.cache
def _printed(file: Path) -> list[tuple[int, str]]:
    """Lines and strings of several words: names and keys of records are none."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    strings = [(n.lineno, n.value) for n in nodes if isinstance(n, ast.Constant)]
    return [(line, text) for line, text in strings if isinstance(text, str) and " " in text]


@pytest.mark.parametrize("phrase", LEFT)
def test_nothing_says(phrase: str) -> None:
    """Catches: a phrase that came back, in a message or in a docstring that ``--help`` shows."""
    says = re.compile(rf"(?<![\w`]){re.escape(phrase)}(?![\w:`])")
    found = [
        f"{file.relative_to(PACKAGE)}:{line}"
        for file in PACKAGE.rglob("*.py")
        for line, text in _printed(file)
        if says.search(text)
    ]
    assert not found


@pytest.mark.parametrize("folder", ["duotone", "examples", "benchmarks", "scripts"])
def test_sentences_have_subjects(folder: str) -> None:
    """Catches: "What it reads." or "Of a loop, ..." in place of a sentence."""
    found = [
        f"{file.name}: {match[1]}"
        for file in (ROOT / folder).rglob("*.py")
        for match in _HEADLESS.finditer(file.read_text(encoding="utf-8"))
    ]
    assert not found


def test_numbers_and_articles() -> None:
    assert [plural(n, "cast") for n in (0, 1, 2)] == ["0 casts", "1 cast", "2 casts"]
    assert kind_of(jax) == "a module"
    assert with_article("Optimizer") == "an Optimizer"
    with pytest.raises(TypeError, match="got an int"):
        duotone.LossScaleMonitor(optimizer=3)
    once = record("block")
    once = dataclasses.replace(once, summary=dataclasses.replace(once.summary, casts_inserted=1))
    assert "1 cast inserted" in str(Overview(once))
