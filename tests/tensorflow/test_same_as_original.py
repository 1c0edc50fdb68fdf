"""The painter ``tensorflow`` against TensorFlow's own bfloat16 pass, in ten steps of Keras.

Both run live. The graphs that TensorFlow then executes have the same nodes, types and casts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tensorflow.in_tensorflow import needs_tensorflow
from tests.tensorflow.keras_steps import STEPS

pytestmark = needs_tensorflow
BFLOAT16 = 14


@pytest.fixture(scope="module")
def ran():
    """The graphs that ran, by mode and step; each mode in a process of its own."""
    command = [sys.executable, "-m", "tests.tensorflow.keras_steps"]
    environment = {**os.environ}
    environment.pop("DUOTONE_TEST_TENSORFLOW", None)
    started = {
        mode: subprocess.Popen(
            [*command, mode],
            cwd=Path(__file__).parents[2],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for mode in ("original", "duotone")
    }
    done = {mode: (*process.communicate(timeout=300), process) for mode, process in started.items()}
    for _, errors, process in done.values():
        assert process.returncode == 0, errors
    return {mode: json.loads(output) for mode, (output, _, _) in done.items()}


def half(nodes):
    """The names of the nodes with a bfloat16 type."""
    types = {name: attributes.values() for name, _, attributes in nodes}
    return {
        name
        for name, found in types.items()
        if any(one == BFLOAT16 or (isinstance(one, list) and BFLOAT16 in one) for one in found)
    }


@pytest.mark.parametrize("step", STEPS)
def test_node_for_node_as_the_original(ran, step):
    theirs, ours = ran["original"][step], ran["duotone"][step]
    casts = {name for name, *_ in theirs if name.endswith("-AutoMixedPrecision")}
    assert casts
    assert casts < half(theirs)
    assert half(ours) == half(theirs)
    assert ours == theirs
