"""One decision to skip, for all devices and all processes; losses as on one device."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.devices.training import BAD, train

ROOT = Path(__file__).parents[2]


def agree(got: dict[str, Any], want: dict[str, Any], tolerance: float = 2e-3) -> None:
    assert np.flatnonzero(np.isnan(got["losses"])).tolist() == [BAD]
    np.testing.assert_allclose(got["losses"], want["losses"], rtol=tolerance, atol=tolerance)
    assert (got["skipped"], got["scale"]) == (want["skipped"], want["scale"]) == (1, 2.0**7)
    for name, array in want["params"].items():
        np.testing.assert_allclose(got["params"][name], array, atol=5 * tolerance)


@pytest.fixture(scope="module")
def one_device() -> dict[str, Any]:
    found = train(jax.devices()[:1], sharded=False)
    assert found["losses"][-1] < found["losses"][0] / 2
    return found


@pytest.mark.parametrize("sharded", [False, True])
def test_eight_devices(one_device: dict[str, Any], sharded: bool) -> None:
    agree(train(jax.devices(), sharded=sharded), one_device)


def test_a_difference_would_be_seen(one_device: dict[str, Any]) -> None:
    other = {**one_device, "losses": [1.01 * loss for loss in one_device["losses"]]}
    with pytest.raises(AssertionError):
        agree(other, one_device)
    with pytest.raises(AssertionError):
        agree({**one_device, "skipped": 2}, one_device)


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def _processes(count: int, each: int, folder: Path) -> list[list[dict[str, Any]]]:
    """What each of several processes found, all with some virtual devices."""
    address = f"127.0.0.1:{_free_port()}"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        # The last of two such flags counts.
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={each}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    files = [folder / f"{rank}.json" for rank in range(count)]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.devices.training", address, f"{count}", f"{rank}", file],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, file in enumerate(files)
    ]
    try:
        said = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * count, "\n".join(said)
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize("each", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_two_processes(one_device: dict[str, Any], tmp_path: Path, each: int) -> None:
    """Over ``jax.distributed`` on loopback; the NaN is in the second one's part."""
    first, second = _processes(2, each, tmp_path)
    for of_first, of_second in zip(first, second, strict=True):
        assert of_first["params"] == of_second["params"]
        np.testing.assert_array_equal(of_first["losses"], of_second["losses"])
        agree(of_first, one_device)
