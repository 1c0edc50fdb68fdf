"""Settings for all tests: eight devices, quick compilation, no growing store of compiled code."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Before JAX is loaded: the number of devices is fixed when it starts.
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8"]
).strip()

import jax
import pytest

_calls = 0


@pytest.fixture(autouse=True)
def quick_compiler() -> Iterator[None]:
    """Programs of a few elements need no optimizing compiler."""
    global _calls
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
    _calls += 1
    if _calls % 700 == 0:  # compiled loops take megabytes each
        jax.clear_caches()
