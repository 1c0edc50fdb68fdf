"""Settings for all tests: quick compilation, and no growing store of compiled operations."""

from __future__ import annotations

from collections.abc import Iterator

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
