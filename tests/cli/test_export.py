"""``duotone export``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

import duotone
from duotone.cli.main import app, run

PROGRAM = """
import jax, jax.numpy as jnp

def apply(w, x):
    return jax.nn.softmax(x @ w)

def example():
    return apply, jnp.ones((64, 16)), jnp.ones((4, 64))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "program_to_export.py"
    path.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield path
    sys.modules.pop("program_to_export", None)


def test_a_function_and_its_arguments(program: Path) -> None:
    options = ["--out", "model", "--dtype", "bfloat16", "--batch", "1", "--platforms", "cpu,cuda"]
    result = CliRunner().invoke(app, ["export", f"{program.name}:example", *options])
    assert result.exit_code == 0, result.output
    assert "bytes  model/program.jax" in result.output
    assert "Exported(apply, bfloat16, for cpu/cuda" in result.output
    read = duotone.read_export("model")
    assert read.call(jnp.ones((64, 16)), jnp.ones((9, 64))).shape == (9, 16)


def test_shapes_and_a_target(program: Path) -> None:
    options = ["--out", "model", "--shapes", "f32[64,16] f32[4,64]", "--target", "t4"]
    result = CliRunner().invoke(app, ["export", f"{program.name}:apply", *options])
    assert result.exit_code == 0, result.output
    assert json.loads(Path("model/export.json").read_text())["painted_for"] == "t4"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--out", "model", "--batch", "x"], "--batch: 'x' holds no positions"),
        (["--out", "model", "--batch", "2"], "names argument 2"),
        (["--out", "no/model"], "mkdir -p"),
        (["--out", "program_to_export.py"], "exists: it must be a new folder"),
        (["--out", "model", "--platforms", "gpu"], "there is no platform 'gpu'"),
    ],
)
def test_bad_input(
    program: Path, capsys: pytest.CaptureFixture[str], options: list[str], text: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["export", f"{program.name}:example", *options])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err
    assert [p.name for p in program.parent.iterdir() if p.name != "__pycache__"] == [program.name]
