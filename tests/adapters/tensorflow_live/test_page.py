"""The code blocks of docs/tensorflow-training.md run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tensorflow.in_tensorflow import needs_tensorflow

pytestmark = needs_tensorflow

PAGE = Path(__file__).parents[3] / "docs" / "tensorflow-training.md"


def test_the_code_blocks_run(tf):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    names: dict = {}
    for block in blocks:
        exec(block, names)
