"""Several devices: shardings of results, constraints and nested programs survive.

A process of its own for each case, since the number of devices is fixed when JAX starts.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("half", ["float16", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", ["auto", "explicit", "inner_jit", "shard_map", "inside_shard_map"])
def test_on_four_devices(case, half):
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    command = [sys.executable, "-m", "tests.jaxpr.sharded_program", case, half]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
