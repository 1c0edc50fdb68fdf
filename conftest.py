"""Settings that must stand before any test or docstring example imports its library."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads it once, when it is imported
