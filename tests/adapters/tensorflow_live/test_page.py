"""The code blocks of docs/tensorflow-training.md run, and the examples in TensorFlow."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tensorflow.in_tensorflow import needs_tensorflow

pytestmark = needs_tensorflow

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "tensorflow-training.md"
EXAMPLES = ROOT / "examples"


def test_the_code_blocks_run(tf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the page writes a log for TensorBoard
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 5
    names: dict = {}
    for block in blocks:
        exec(block, names)


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float32", "mixed"])
def test_the_example_runs(precision, tmp_path):
    arguments = ["--precision", precision, "--epochs", "1", "--count", "256"]
    command = [
        sys.executable,
        EXAMPLES / "keras_tensorflow.py",
        *arguments,
        "--save",
        tmp_path / "model.keras",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"in {precision}" in done.stdout
    assert (tmp_path / "model.keras").exists()


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float32", "mixed"])
def test_the_example_with_two_optimizers_runs(precision):
    command = [sys.executable, EXAMPLES / "tensorflow_gan.py", "--precision", precision]
    done = subprocess.run(
        [*command, "--steps", "3", "--batch", "64"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"trained 3 steps in {precision}" in done.stdout
    assert ("loss scales" in done.stdout) is (precision != "float32")
