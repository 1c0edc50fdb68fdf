"""``duotone explain``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from duotone.cli.main import app, run
from duotone.cli.user_program import load

PROGRAM = """
import jax, jax.numpy as jnp

def step(w, x):
    with jax.named_scope("net/attention"):
        return jax.nn.softmax(x @ w)

def example():
    return jax.grad(lambda w, x: step(w, x).max()), jnp.ones((16, 16)), jnp.ones((8, 16))

def nothing():
    return 3

def tuple_of_arguments():
    return step, (jnp.ones((16, 16)), jnp.ones((4, 16)))

def takes_a_tuple():
    return lambda pair: pair[1] @ pair[0], (jnp.ones((16, 16)), jnp.ones((4, 16)))

def any_number():
    return lambda *arrays: arrays[1] @ arrays[0], (jnp.ones((16, 16)), jnp.ones((4, 16)))

def with_a_default():
    return lambda x, scale=2.0: x @ x.T * scale, (jnp.ones((4, 16)), jnp.ones(()))

def pair_or_two():
    def either(a, b=None):
        x, y = a if b is None else (a, b)
        return (x @ y, b)[0] * (b is None)
    return either, (jnp.ones((4, 16)), jnp.ones((16, 16)))

def too_few():
    return step, (jnp.ones((16, 16)),)

def too_many():
    return step, 1, 2, jnp.ones(3)

class Model:
    @staticmethod
    def apply(w, x):
        return x @ w

NUMBER = 3
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "program_to_explain.py"
    path.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield path
    sys.modules.pop("program_to_explain", None)


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["explain", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_function_that_returns_a_step_and_its_arguments(program: Path) -> None:
    text = output(f"{program.name}:example", "--dtype", "bfloat16")
    assert text.startswith("bfloat16: ")
    assert "net" in text


@pytest.mark.parametrize(
    "name", ["tuple_of_arguments", "takes_a_tuple", "any_number", "with_a_default", "pair_or_two"]
)
def test_a_tuple_is_one_argument_or_all_of_them(program: Path, name: str) -> None:
    """A tuple is taken apart if the function fits only then."""
    assert "1 of 1 on the allow list" in output(f"{program}:{name}", "--dtype", "float16")


def test_a_function_that_takes_a_tuple_either_way_gets_the_tuple(program: Path) -> None:
    function, arguments = load(f"{program}:pair_or_two", None)
    assert len(arguments) == 1
    assert float(function(*arguments).max()) == 16.0


def test_shapes_in_place_of_arguments(program: Path) -> None:
    text = output(f"{program}:step", "--shapes", "f32[16, 16], f32[4,16]", "--dtype", "float16")
    assert "1 of 1 on the allow list" in text
    shapes = ("--shapes", "f32[16,16] f32[4,16]", "--dtype", "float16")
    assert "1 of 1 on" in output("program_to_explain:Model.apply", *shapes)


def test_operations_one_by_one(program: Path) -> None:
    arguments = (f"{program}:step", "--shapes", "f32[16,16] f32[4,16]", "--dtype", "float16")
    assert output(*arguments, "--rule", "wide").count("dot_general") == 1
    assert "reduce_max" in output(*arguments, "--where", "*/attention/*")
    assert "with fewer bytes" in output(*arguments, "--rows", "2")


def test_a_device_that_is_not_here(program: Path) -> None:
    arguments = (f"{program}:step", "--shapes", "f32[16,16] f32[4,16]")
    assert "1 of 1 on the allow list" in output(*arguments, "--target", "h100")


def test_only_what_differs_on_another_device(program: Path) -> None:
    result = CliRunner().invoke(
        app, ["explain", f"{program}:example", "--target", "h200", "--against", "cpu"]
    )
    assert result.exit_code == 0, result.output
    first, *rest = result.output.splitlines()
    assert re.fullmatch(r"\d+ operations differ of \d+ between h200 and cpu.*", first)
    assert "h200: half, allow" in result.output
    assert any(line.startswith("cpu: full") for line in rest)
    assert "net/attention/dot_general" in result.output


def test_json_is_for_view(program: Path, tmp_path: Path) -> None:
    out = tmp_path / "seen.json"
    arguments = ("--shapes", "f32[16,16] f32[4,16]", "--dtype", "float16")
    output(f"{program}:step", *arguments, "--json", str(out))
    shown = CliRunner().invoke(app, ["view", str(out)])
    assert shown.output.startswith("float16: ")
    rows = CliRunner().invoke(app, ["view", str(out), "--nodes", "*dot_general"])
    assert rows.output.count("dot_general") == 1


def test_a_graph_for_model_explorer(program: Path, tmp_path: Path) -> None:
    out = tmp_path / "graph.json"
    arguments = ("--shapes", "f32[16,16] f32[4,16]", "--dtype", "float16")
    output(f"{program}:step", *arguments, "--model-explorer", str(out))
    (graph,) = json.loads(out.read_text())["graphs"]
    assert "dot_general" in [node["label"] for node in graph["nodes"]]


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("step", (), "takes w, x: give --shapes"),
        ("nothing", (), "must return (function, *arguments) and returned 3"),
        ("too_few", (), "step takes w, x and is given a tuple: missing a required argument: 'x'"),
        ("too_many", (), "given 1, 2, an array of float32[3]: too many positional arguments"),
        ("step", ("--shapes", "f32[16,16]"), "step takes w, x and is given an array of float32"),
        ("step", ("--shapes", "f32[1] f32[4,2]"), "to_explain.py:6: "),
        ("stpe", (), "has no stpe; did you mean 'step'?"),
        ("zzzzzz", (), "has no zzzzzz; it has Model, any_number, example, nothing, "),
        ("NUMBER", (), "NUMBER is not a function but int"),
        ("step", ("--shapes", "f32[16"), "'f32[16' is not a shape"),
        ("step", ("--shapes", "f33[16]"), "'f33[16]' is not a shape"),
        ("step", ("--shapes", "f32[16 16]"), "'f32[16 16]' is not a shape"),
        ("step", ("--shapes", "f32[,16]"), "'f32[,16]' is not a shape"),
        ("step", ("--shapes", "f32[2,2] f32[2,2]", "--target", "h1000"), "h100"),
        ("step", ("--shapes", "f32[2,2] f32[2,2]", "--target", "tpu"), "v6e, cpu\n"),
    ],
)
def test_what_is_wrong_is_reported(
    program: Path,
    name: str,
    more: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["explain", f"{program}:{name}", *more])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_file_without_functions_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "without_functions.py").touch()
    with pytest.raises(SystemExit):
        run(["explain", f"{tmp_path / 'without_functions.py'}:step"])
    assert capsys.readouterr().err.endswith("has no step; it has no function.\n")


def test_a_graph_is_for_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, hinted in (("graph.pb", True), ("train.py", False)):
        (tmp_path / name).touch()
        with pytest.raises(SystemExit):
            run(["explain", str(tmp_path / name)])
        assert ("duotone view" in capsys.readouterr().err) == hinted


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("train", "name a function, as in train.py:step"),
        ("nowhere.py:step", "there is no file nowhere.py"),
        ("nowhere_at_all:step", "no module nowhere_at_all; a file ends in .py"),
    ],
)
def test_a_program_that_is_not_there(
    program: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(["explain", program])
    assert message in capsys.readouterr().err
