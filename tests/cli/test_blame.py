"""``duotone blame``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from duotone.cli.main import app, run

PROGRAM = """
import jax, jax.numpy as jnp

def step(w, x):
    with jax.named_scope("attention"):
        return jnp.square(x @ w) @ w

def example():
    return step, jnp.full((16, 16), 9.0), jnp.full((4, 16), 9.0)
"""


def test_the_operation_and_its_pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program_to_blame.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = CliRunner().invoke(app, ["blame", "program_to_blame.py:example", "--dtype", "float16"])
    sys.modules.pop("program_to_blame", None)
    assert result.exit_code == 0, result.output
    assert "overflow: the forward pass overflows" in result.output
    assert "program_to_blame.py:6" in result.output
    assert "'attention/dot_general'," in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines())


def test_without_arguments_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "program_to_blame.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        run(["blame", "program_to_blame.py:step"])
    sys.modules.pop("program_to_blame", None)
    assert ended.value.code == 2
    assert "takes w, x" in capsys.readouterr().err
