"""Keras on JAX, and nothing left behind: names, seeds, switches."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import pytest

from duotone.adapters.keras import enable_everywhere

# Set by the conftest.py at the root before anything imports Keras.
assert keras.backend.backend() == "jax", "run with KERAS_BACKEND=jax"


@pytest.fixture(autouse=True)
def fresh_keras() -> Iterator[None]:
    """Same weights in each test, whichever tests ran before; no switch stays on."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    yield
    enable_everywhere(rewrite=False, loss_scaling=False)
    keras.config.set_dtype_policy("float32")
