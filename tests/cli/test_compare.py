"""``duotone compare``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from duotone.cli.main import app, run
from duotone.comparing.compare import ComparisonPlan
from duotone.errors import ArgumentError, MissingExtraError

PROGRAM = """
import jax, jax.numpy as jnp

def step(w, x):
    return jax.nn.softmax(x @ w)

def example():
    w = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    return jax.grad(lambda w, x: step(w, x).max()), w, w

def nothing():
    return lambda: 0.0,
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "program_to_compare.py"
    path.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield path
    sys.modules.pop("program_to_compare", None)


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["compare", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_targets_side_by_side(program: Path, tmp_path: Path) -> None:
    out = tmp_path / "seen.json"
    text = output(
        f"{program.name}:example", "--targets", "h100, a100", "--bound", "--json", str(out)
    )
    assert "h100 (NVIDIA H100 80GB HBM3), estimated" in text
    assert "a100 (NVIDIA A100-SXM4-80GB), estimated" in text
    assert max(map(len, text.splitlines())) <= 80
    rows = json.loads(out.read_text())["rows"]
    assert [row["half"] for row in rows if row["form"] == "duotone"] == ["bfloat16", "bfloat16"]


def test_shapes_and_a_half_type(program: Path) -> None:
    shapes = ("--shapes", "f32[1024,1024] f32[512,1024]")
    text = output(f"{program}:step", *shapes, "--targets", "t4", "--dtype", "bfloat16", "--bound")
    assert "most expensive kernels with duotone (bfloat16)" in text


def test_it_compiles_where_it_can(program: Path) -> None:
    assert "cpu (cpu), compiled" in output(f"{program}:example", "--targets", "cpu")


def test_the_bar_counts_what_is_made(program: Path) -> None:
    from duotone.cli.user_program import load

    function, arguments = load(f"{program}:example", None)
    plan = ComparisonPlan(function, arguments, {}, ["h100", "v5e"], exact=False)
    told: list[str] = []
    plan.run(told.append)
    assert told == ["h100: float32", "h100: duotone", "v5e: float32", "v5e: duotone"]
    assert plan.count == len(told)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("example", "--targets", "h1000"), "did you mean 'h100'"),
        (("example", "--targets", ","), "targets is empty"),
        (("nothing", "--targets", "h100"), "takes no array here"),
        (("example", "--targets", "h100", "--batch", "one"), "--batch is 'one'; name positions"),
        (("example", "--targets", "h100", "--batch", "0,7"), "batch names argument 7"),
        (("step", "--targets", "h100"), "takes w, x: give --shapes"),
    ],
)
def test_what_is_wrong_is_reported(
    program: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *rest = arguments
    with pytest.raises(SystemExit) as ended:
        run(["compare", f"{program}:{name}", *rest])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_graphs_need_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from duotone.tensorflow import files
    from tests.tensorflow import graphs

    monkeypatch.setitem(sys.modules, "tensorflow", None)
    path = str(tmp_path / "graph.pb")
    files.write(path, graphs.chain())
    with pytest.raises(MissingExtraError, match=r"pip install 'duotone\[tensorflow\]'"):
        output(path, path)
    with pytest.raises(ArgumentError, match="with another model: compare"):
        output(path)
    with pytest.raises(ArgumentError, match="--targets is for JAX functions"):
        output(path, path, "--targets", "h100")
