"""``duotone tune``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import duotone
from duotone.cli.main import app

PROGRAM = """
import jax, jax.numpy as jnp

def example():
    w = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    return lambda w: jnp.tanh(w @ w), w
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "program_to_tune.py"
    path.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield path
    sys.modules.pop("program_to_tune", None)


def test_the_record_is_shown_and_written(program: Path, tmp_path: Path) -> None:
    asked = ["tune", f"{program.name}:example", "--target", "cpu", "--dtype", "float16"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    assert "duotone's own choice" in result.stdout
    assert duotone.Tuned.load(tmp_path / "tuned.json").target == "cpu"
    again = CliRunner().invoke(app, asked)
    assert again.exit_code != 0
    assert "tuned.json" in str(again.exception)
    assert CliRunner().invoke(app, [*asked, "--force"]).exit_code == 0
