"""The code blocks of docs/tensorflow-training.md run, and the example of Keras on TensorFlow."""

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
EXAMPLE = ROOT / "examples" / "keras_tensorflow.py"


def test_the_code_blocks_run(tf):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    names: dict = {}
    for block in blocks:
        exec(block, names)


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float32", "mixed"])
def test_the_example_runs(precision, tmp_path):
    arguments = ["--precision", precision, "--epochs", "1", "--count", "256"]
    command = [sys.executable, EXAMPLE, *arguments, "--save", tmp_path / "model.keras"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"in {precision}" in done.stdout
    assert (tmp_path / "model.keras").exists()
