"""``duotone blame``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
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


FINITE = """
import jax, jax.numpy as jnp

def step(w, x):
    for number in range(4):
        with jax.named_scope("a_scope_with_a_long_name/" * 3 + f"block_{number}/attention"):
            x = jnp.tanh(x @ w)
    return x

def index(w, x):
    return w[x] @ w
"""


@pytest.fixture
def finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "finite_to_blame.py").write_text(FINITE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "finite_to_blame.py"
    sys.modules.pop("finite_to_blame", None)


def test_shapes_rows_and_names_that_end_with_the_operation(finite: str) -> None:
    asked = ["blame", f"{finite}:step", "--shapes", "f32[16,16] f32[4,16]", "--dtype", "bfloat16"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    table = result.stdout.partition("error against float32")[2].splitlines()[1:]
    assert len(table) == 5 + 1
    assert all(re.match(r"  ….*/attention/(tanh|dot_general)", line) for line in table[:5])
    all_of_them = CliRunner().invoke(app, [*asked, "--rows", "50"]).stdout
    assert len(all_of_them.splitlines()) > len(result.stdout.splitlines())
    assert "more" not in all_of_them


def test_json_on_standard_output_is_all_that_is_there(finite: str) -> None:
    asked = ["blame", f"{finite}:index", "--shapes", "f32[16,16] i32[4]", "--dtype", "float16"]
    result = CliRunner().invoke(app, [*asked, "--json", "-"])
    assert json.loads(result.stdout)["verdict"] == "finite"
    assert not Path("-").exists()
    CliRunner().invoke(app, [*asked, "--json", "found.json"])
    assert json.loads(Path("found.json").read_text())["half_dtype"] == "float16"
