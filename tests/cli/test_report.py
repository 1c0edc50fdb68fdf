"""``duotone report``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from duotone.cli.main import app, run
from tests.explaining.page.pages import data_of, record

PROGRAM = """
import jax, jax.numpy as jnp

def step(w, x):
    return jax.nn.softmax(x @ w)

def example():
    w = jnp.ones((32, 32))
    return step, w, w
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    path = tmp_path / "program_to_report.py"
    path.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield f"{path.name}:example"
    sys.modules.pop("program_to_report", None)


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["report", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_page_with_all_sections(program: str, tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text("step,loss\n1,2.5\n")
    shown = ("--compare", "h100, v5e", "--advise", "--blame", "--history", "run.csv")
    text = output(program, "--target", "h100", "--title", "A step", *shown)
    assert text.startswith("Written: report.html (")
    data = data_of(Path("report.html").read_text())
    assert data["title"] == "A step"
    assert data["about"] == "bfloat16, painted for NVIDIA H100 80GB HBM3"
    assert [one["id"] for one in data["sections"]] == ["advice", "comparison", "blame"]
    assert data["curves"][0]["name"] == "loss"


def test_shapes_and_a_half_type(program: str) -> None:
    function = program.replace("example", "step")
    output(function, "--shapes", "f32[8,8] f32[8,8]", "--dtype", "float16", "--out", "s.html")
    assert data_of(Path("s.html").read_text())["about"] == "float16"


def test_an_explanation_made_elsewhere(program: str) -> None:
    Path("seen.json").write_text(record("block").to_json())
    output("seen.json", "--out", "seen.html")
    data = data_of(Path("seen.html").read_text())
    assert (data["title"], data["about"]) == ("seen", "float16, from seen.json")
    assert len(data["operations"]["index"]) == 3


def test_another_file_is_replaced_only_when_asked(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("report.html").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        run(["report", program])
    assert ended.value.code == 2
    assert "report.html exists" in capsys.readouterr().err
    assert Path("report.html").read_text() == "mine"
    output(program, "--force")
    assert "<!DOCTYPE html>" in Path("report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("seen.json", "--target", "h100"), 2, "painted already"),
        (("none.json",), 2, "there is no file none.json"),
        (("program_to_report.py:example", "--out", "no/report.html"), 1, "mkdir -p"),
        (("program_to_report.py:example", "--compare", "h1000"), 2, "did you mean 'h100'"),
        (("program_to_report.py:example", "--history", "none.csv"), 2, "none.csv: No such file"),
    ],
)
def test_what_is_wrong_is_reported(
    program: str,
    arguments: tuple[str, ...],
    status: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("seen.json").write_text(record("block").to_json())
    with pytest.raises(SystemExit) as ended:
        run(["report", *arguments])
    assert ended.value.code == status
    assert message in capsys.readouterr().err
    assert not Path("report.html").exists()
