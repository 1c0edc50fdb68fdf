"""TensorFlow with two logical CPUs, on which small products are half too.

The rewrite is off after each test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tensorflow() -> Any:
    """TensorFlow; the test is skipped where it is not installed."""
    tf = pytest.importorskip("tensorflow")
    (cpu,) = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    return tf


@pytest.fixture
def tf(tensorflow: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """TensorFlow; the rewrite is switched off after the test."""
    from duotone.tensorflow import devices
    from duotone.tensorflow.live import switch

    monkeypatch.setattr(devices, "GAINS", {})
    yield tensorflow
    switch.disable()
