"""The command line as a person meets it first: errors, spellings, what a script sees, hints."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import duotone
from duotone.cli.main import app, run

PROGRAM = """
import argparse, sys
import jax, jax.numpy as jnp

ARGUMENTS = argparse.ArgumentParser().parse_args()
SEEN = list(sys.argv)

def example():
    return lambda x: x @ x, jnp.ones((8, 8))

def product(x, y):
    return x @ y

def fails_when_traced(x):
    return x @ jnp.ones((3, 3))

def example_that_fails():
    return fails_when_traced, jnp.ones((8, 8))
"""


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "met_first.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["duotone", "explain", "met_first.py:example"])
    yield
    sys.modules.pop("met_first", None)


def test_a_script_does_not_see_the_options_of_duotone() -> None:
    """Catches: argparse of the script that refuses ``explain`` and ``--dtype``."""
    result = CliRunner().invoke(app, ["explain", "met_first.py:example", "--dtype", "bfloat16"])
    assert result.exit_code == 0, result.output
    assert sys.modules["met_first"].SEEN == ["met_first.py"]


def in_a_process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(duotone.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-m", "duotone", *words],
        env={**os.environ, "PYTHONPATH": root, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("source", "line"),
    [("import jax\nraise KeyError('mine')\n", 2), (PROGRAM, 15)],
    ids=["when imported", "when traced"],
)
def test_an_error_of_the_program_begins_at_its_own_line(source: str, line: int) -> None:
    Path("met_first.py").write_text(source)
    done = in_a_process("explain", "met_first.py:example_that_fails", "--dtype", "float16")
    assert done.returncode == 1
    first, second, *_ = done.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert re.match(rf'  File ".*met_first.py", line {line}, in ', second)
    assert "duotone/cli" not in done.stderr


def test_a_locale_without_an_ellipsis_still_shows_the_table() -> None:
    """Catches: a UnicodeEncodeError of Rich, as on Windows or under an old locale."""
    asked = ["explain", "met_first.py:example", "--dtype", "float16"]
    done = in_a_process(*asked, PYTHONIOENCODING="ascii", COLUMNS="60")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("float16: ")


@pytest.mark.parametrize("name", [".pkg:step", "../met_first:step", "./met_first:step"])
def test_a_relative_module_is_one_line(name: str) -> None:
    done = in_a_process("explain", name)
    assert done.returncode == 2
    assert done.stderr == f"error: no module {name.split(':')[0]}; a file ends in .py.\n"


def test_a_lack_of_memory_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The arrays of ``--shapes`` are duotone's own: no line of the program is to blame."""
    shapes = "f32[3,1000000] f32[1000000,1000000]"
    with pytest.raises(SystemExit) as ended:
        run(["blame", "met_first.py:product", "--shapes", shapes, "--dtype", "float16"])
    assert ended.value.code == 1
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line]
    assert said.startswith("error: ")
    assert "memory" in said


def test_a_program_that_is_no_python_shows_only_its_line() -> None:
    Path("met_first.py").write_text("import jax\ndef step(:\n")
    done = in_a_process("explain", "met_first.py:step")
    assert done.returncode == 1
    assert 'met_first.py", line 2' in done.stderr
    assert "duotone/cli" not in done.stderr
    assert "importlib" not in done.stderr


def test_a_fault_of_duotone_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise KeyError("duotone's own")

    monkeypatch.setattr("duotone.explain", fails)
    monkeypatch.setattr("duotone.cli.script._is_library", lambda file: True)  # this file, too
    with pytest.raises(KeyError) as caught:
        run(["explain", "met_first.py:example", "--dtype", "float16"])
    assert any("duotone/cli/explain.py" in str(entry.path) for entry in caught.traceback)


@pytest.mark.parametrize(("word", "means"), [("fp16", "float16"), ("BF16", "bfloat16")])
def test_dtypes_are_spelled_as_in_python(word: str, means: str) -> None:
    result = CliRunner().invoke(app, ["explain", "met_first.py:example", "--dtype", word])
    assert result.output.startswith(f"{means}: ")


def test_a_keras_policy_is_no_dtype_but_nearly() -> None:
    asked = ["explain", "met_first.py:example", "--dtype", "mixed_float16"]
    said = re.sub(r"[│\s]+", " ", CliRunner().invoke(app, asked).output)
    assert "'mixed_float16' is not a half type; did you mean 'float16'?" in said
    with pytest.raises(TypeError, match="did you mean 'bfloat16'"):
        duotone.autocast(lambda x: x, dtype="mixed_bfloat16")
    with pytest.raises(TypeError, match=r"not a dtype; pass jnp\.float16"):
        duotone.autocast(lambda x: x, dtype="nothing like it")


def test_json_goes_to_standard_output_for_a_dash() -> None:
    result = CliRunner().invoke(
        app, ["explain", "met_first.py:example", "--dtype", "float16", "--json", "-"]
    )
    assert json.loads(result.stdout)["summary"]["half_dtype"] == "float16"
    assert not Path("-").exists()


def test_hints_name_options_and_not_python() -> None:
    asked = ["explain", "met_first.py:example", "--dtype", "float16"]
    said = CliRunner().invoke(app, asked).output
    assert ".rows(" not in said
    assert "--rows 20, --where '*/attention/*', --rule taint" in said
    more = ["--rows", "20", "--where", "dot_general", "--rule", "wide"]
    assert CliRunner().invoke(app, [*asked, *more]).exit_code == 0


def test_completion_is_there() -> None:
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).output


def test_no_message_names_a_page_that_a_wheel_does_not_have() -> None:
    """Docstrings may: who reads them has the documentation next to them."""
    found = []
    for file in Path(duotone.__file__).parent.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            f"{file.name}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and id(node) not in docstrings
            if isinstance(node.value, str) and re.search(r"docs/[\w-]+\.md", node.value)
        ]
    assert not found


def test_a_plugin_without_its_device_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Catches: JAX's traceback of 30 lines where ``duotone[cuda]`` finds no GPU."""
    with pytest.raises(SystemExit):
        run(["--version"])
    error = RuntimeError("cuInit failed: no device\nmore")
    log = logging.getLogger("jax._src.xla_bridge")
    log.error("calling %s", "xla_cuda13.initialize()", exc_info=error)
    (record,) = [r for r in caplog.records if r.name == "jax._src.xla_bridge"]
    assert record.exc_info is None
    said = "no GPU or TPU is used: calling xla_cuda13.initialize(): cuInit failed: no device"
    assert record.getMessage() == said
