"""``duotone advise``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from duotone.cli.main import app, run

PROGRAM = """
import jax, jax.numpy as jnp

def step(w, x):
    with jax.named_scope("logits"):
        return jax.nn.softmax(x @ w)

def example():
    w = jax.ShapeDtypeStruct((1024, 4099), jnp.float32)
    return step, w, jax.ShapeDtypeStruct((65536, 1024), jnp.float32)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "program_to_advise.py"
    path.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield path
    sys.modules.pop("program_to_advise", None)


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["advise", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_findings_with_place_and_remedy(program: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    text = output(f"{program.name}:example", "--target", "h100", "--json", str(out))
    lines = text.splitlines()
    assert lines[0].startswith("step on h100 (bfloat16): ")
    assert lines[2].startswith("1. tiles: ")
    assert "   at program_to_advise.py:6: logits/dot_general" in lines
    assert "-> pad or choose multiples of 8: 4099 -> 4104" in text
    assert max(map(len, lines)) <= 80
    data = json.loads(out.read_text())
    assert (data["target"], data["findings"][0]["kind"]) == ("h100", "tiles")


def test_nothing_to_advise_is_one_line(program: Path) -> None:
    shapes = ("--shapes", "f32[1024,1024] f32[2048,1024]")
    text = output(f"{program}:step", *shapes, "--target", "cpu", "--dtype", "bfloat16")
    assert text == "step on cpu (bfloat16): nothing to advise\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("example", "--target", "h1000"), "did you mean 'h100'"),
        (("step",), "takes w, x: give --shapes"),
    ],
)
def test_what_is_wrong_is_reported(
    program: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *rest = arguments
    with pytest.raises(SystemExit) as ended:
        run(["advise", f"{program}:{name}", *rest])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
