"""The ``duotone`` command as a person meets it: help, versions, and errors in one line."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

import duotone
from duotone._version import __version__
from duotone.cli import main


@pytest.fixture
def call(capsys):
    """Runs the command line; gives (exit status, stdout, stderr)."""

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main.run(words)
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def test_help_lists_the_commands_and_shows_examples(call):
    status, out, _ = call("--help")
    assert status == 0
    assert "demo" in out
    assert "version" in out
    assert "duotone demo --precision float16" in out


@pytest.mark.parametrize(
    "command", ["demo", "run", "advise", "report", "rewrite", "view", "version"]
)
def test_the_help_of_every_command_has_examples(call, command):
    status, out, _ = call(command, "--help")
    assert status == 0
    assert "Example" in out
    assert f"  duotone {command}" in out


def test_no_words_shows_the_help(call):
    _, out, err = call()
    assert "Usage" in out + err


def test_version(call):
    assert call("--version")[1] == f"duotone {__version__}\n"
    status, out, _ = call("version")
    assert status == 0
    assert f"jax     {importlib.metadata.version('jax')}\n" in out


def test_an_unknown_command_is_one_of_clicks_errors(call):
    status, _, err = call("dmeo")
    assert status == 2
    assert "dmeo" in err


def test_the_folder_is_checked_before_the_training(call, tmp_path):
    (tmp_path / "taken").write_text("")
    status, out, err = call("demo", "--out", str(tmp_path / "taken"))
    assert status == 2
    assert out == ""
    assert err.startswith("error: cannot write into")
    assert "Traceback" not in err


def test_a_missing_library_is_one_line(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    for name in [name for name in sys.modules if f"{name}.".startswith("duotone.onnx.")]:
        monkeypatch.delitem(sys.modules, name)  # another test may have loaded them
    monkeypatch.delitem(vars(duotone), "onnx", raising=False)
    status, _, err = call("explain", "model.onnx")
    assert status == 2
    assert "pip install 'duotone[onnx]'" in err


def test_a_full_disk_is_one_line(call, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("duotone._files.prepare_folder", full)
    status, _, err = call("demo", "--out", str(tmp_path))
    assert status == 1
    assert "No space left on device" in err


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "duotone", "--help"], capture_output=True, text=True, check=True
    )
    assert "Automatic mixed precision for JAX" in done.stdout
