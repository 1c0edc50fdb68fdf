"""The ``duotone`` commands in shell blocks of a page run on the program that the page shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from duotone.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = ["troubleshooting", "faq"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return [body for name, body in BLOCK.findall(text) if name == language]


def commands(page: str) -> list[str]:
    lines = "".join(blocks(page, "shell")).splitlines()
    return list(dict.fromkeys(line.partition("  #")[0] for line in lines))


def program() -> str:
    (found,) = [body for body in blocks("troubleshooting", "python") if "# train.py" in body]
    return found


CASES = [(page, command) for page in PAGES for command in commands(page)]


@pytest.mark.parametrize(("page", "command"), CASES)
def test_command_runs(page, command, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(program())
    monkeypatch.chdir(tmp_path)
    name, *arguments = shlex.split(command)
    assert name == "duotone"
    if arguments[0] in ("run", "profile"):  # they run a script: in a process of its own
        line = [sys.executable, "-m", "duotone", *arguments]
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return
    try:
        result = CliRunner().invoke(app, arguments)
    finally:
        sys.modules.pop("train", None)
    assert result.exit_code == 0, result.output
    assert result.output


def test_there_are_commands():
    assert len({command.split()[1] for _, command in CASES}) >= 6
