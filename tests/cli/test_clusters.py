"""``duotone clusters`` and ``duotone flags``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from duotone.cli.main import app

PROGRAM = """
import jax, jax.numpy as jnp

def steps(x):
    for _ in range(50):
        x = jnp.sin(x) * 0.5 + x
    return x

def nothing(x):
    return x

def layers():
    weights = [jnp.ones((64, 64)) for _ in range(40)]
    def run(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return x
    return run, weights, jnp.ones((2, 64))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "program_with_steps.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "program_with_steps.py"
    sys.modules.pop("program_with_steps", None)


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_what_is_rolled_and_what_that_saves(program: str) -> None:
    text = output("clusters", f"{program}:steps", "--shapes", "f32[8]", "--compile")
    assert text.startswith("150 operations, 3 with duotone.reroll\n")
    assert "- rolled 50 copies of 3 operations at program_with_steps.py:6\n" in text
    assert "compilation took " in text
    assert "temporary memory " in text
    assert "out of memory? at most " in text


def test_a_program_without_operations(program: str) -> None:
    text = output("clusters", f"{program}:nothing", "--shapes", "f32[1]")
    assert text.startswith("0 operations, 0 with duotone.reroll\n")
    assert "at most 4 B are live\n" in text


def test_what_is_declined_and_why(program: str) -> None:
    text = output("clusters", f"{program}:layers")
    assert "- declined 40 copies of 2 operations" in text
    assert "would have to be stacked at every call" in " ".join(text.split())


@pytest.mark.parametrize("width", [60, 100])
def test_lines_fit_the_terminal(program: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = output("clusters", f"{program}:layers", "--compile").splitlines()
    assert width - 20 < max(map(len, lines)) <= width


def test_flags() -> None:
    text = output("flags", "--tf-xla", "--tf_xla_auto_jit=2", "--xla", "--xla_dump_hlo_as_text")
    assert "--tf_xla_auto_jit=2: code inside jax.jit is always compiled whole" in text
    assert "XLA takes: --xla_dump_hlo_as_text" in text
