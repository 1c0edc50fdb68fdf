"""Eight devices, in a process of their own: the number is fixed when JAX starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "case",
    [
        "gspmd",
        pytest.param("shard_map_with_types", marks=pytest.mark.slow),
        pytest.param("shard_map_sharded_parameters", marks=pytest.mark.slow),
        "shard_map_without_types",
        pytest.param("pmap", marks=pytest.mark.slow),
        "what_the_refusal_prevents",
    ],
)
def test_on_eight_devices(case):
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    command = [sys.executable, "-m", "tests.adapters.optax_devices_program", case]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
