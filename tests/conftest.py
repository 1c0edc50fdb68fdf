"""No growing store of compiled code; the compiler's settings are in the conftest above."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest

_calls = 0


@pytest.fixture(autouse=True)
def store_of_programs() -> Iterator[None]:
    """Empties JAX's store now and then: compiled loops take megabytes each."""
    global _calls
    yield
    _calls += 1
    if _calls % 700 == 0:
        jax.clear_caches()
