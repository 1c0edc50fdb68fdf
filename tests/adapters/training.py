"""What the tests of the training libraries share: data, errors, a look for half dots."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits


@functools.cache
def digits(count: int = 128) -> tuple[np.ndarray, np.ndarray]:
    """Images, ``float32[count, 64]`` in [0, 1], and labels."""
    images, labels = load_digits(return_X_y=True)
    return (images[:count] / 16).astype(np.float32), labels[:count].astype(np.int32)


@functools.cache
def heavy_tails(count: int = 64, width: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """A regression problem whose inputs have Student's t distribution with 3 degrees of freedom."""
    rng = np.random.default_rng(0)
    x = rng.standard_t(3, size=(count, width)).astype(np.float32)
    y = np.tanh(x @ rng.standard_normal((width, 8)).astype(np.float32) / 3)
    return x, y


def half_dots(text: str) -> int:
    """The dots with a float16 operand in the text of a lowered program."""
    return sum("f16>" in line for line in re.findall(r"stablehlo\.dot_general.*", text))


def relative_error(found: Any, true: Any) -> float:
    """``|found - true| / |true|`` over all floating leaves of two trees."""
    a, b = (
        np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)])
        for tree in (found, true)
    )
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def bits(tree: Any) -> list[bytes]:
    """The bytes of every leaf of a tree; PRNG keys by their data."""

    def data(leaf: Any) -> bytes:
        if jnp.issubdtype(getattr(leaf, "dtype", np.int32), jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return np.asarray(leaf).tobytes()

    return [data(leaf) for leaf in jax.tree.leaves(tree)]


def notes(error: pytest.ExceptionInfo[BaseException]) -> str:
    """What was added to an error on its way."""
    return " ".join(getattr(error.value, "__notes__", ()))
