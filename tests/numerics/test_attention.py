"""Attention with masks of every size, also where a row is masked entirely."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.numerics.oracle import HALVES, LARGEST, heavy_tails, mixed, reference, relative

_MASKS = {
    "causal": np.tril(np.ones((24, 24), bool)),
    "one row masked": np.tril(np.ones((24, 24), bool), -1),
    "padded": np.broadcast_to(np.arange(24) < 17, (24, 24)),
}
_NEGATIVE = {
    "1e9": -1e9,
    "finfo.min": float(np.finfo(np.float32).min),
    "half the range": float(np.finfo(np.float32).min) / 2,
    "1e4": -1e4,
    "float16's own": -LARGEST["float16"],
}


def _inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of all signs up to a few hundred; the first query dislikes every key."""
    q, k, v = (heavy_tails(24, 16, seed=seed) for seed in range(3))
    q[0] = -8.0
    k = np.abs(k) + np.float32(1.0)
    return q, k, v


def _replacing(mask: np.ndarray, number: float) -> Callable[..., Any]:
    """``where(mask, scores, number)``."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.where(mask, q @ k.swapaxes(-1, -2) / 4, number)
        return jax.nn.softmax(scores) @ v

    return attention


def _adding(mask: np.ndarray, number: float) -> Callable[..., Any]:
    """``scores + where(mask, 0, number)``."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.swapaxes(-1, -2) / 4 + jnp.where(mask, 0.0, number)
        return jax.nn.softmax(scores) @ v

    return attention


def _multiplying(mask: np.ndarray, number: float) -> Callable[..., Any]:
    """``scores + (1 - mask) * number``."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.swapaxes(-1, -2) / 4 + (1.0 - jnp.asarray(mask, jnp.float32)) * number
        return jax.nn.softmax(scores) @ v

    return attention


_IDIOMS = {"where": _replacing, "add": _adding, "multiply": _multiplying}


def _all_masks(idiom: str, number: float, names: list[str]) -> Callable[..., Any]:
    """The attention of one idiom, a batch of one query set under several masks."""
    masks = np.stack([_MASKS[name] for name in names])

    def attention(q: Any, k: Any, v: Any) -> Any:
        return _IDIOMS[idiom](masks, number)(q, k, v)

    return attention


def _check(idiom: str, number: float, half: str, names: list[str], **policy: Any) -> None:
    """Finite everywhere; rows that see a key as good as hand-written half is."""
    function = _all_masks(idiom, number, names)
    inputs = [np.stack([x] * len(names)) for x in _inputs()]
    want = reference(function, *inputs)
    got = mixed(function, half, *inputs, **policy)
    # Scores up to 500 in half: the error of a probability is that of a score.
    bound = {"float16": 0.02, "bfloat16": 0.15}[half]
    for name, one, other in zip(names, got, want, strict=True):
        assert np.isfinite(one).all(), f"{name}: not finite"
        seen = _MASKS[name].any(-1)
        error = relative(one[seen], other[seen])
        assert error < bound, f"{name}: relative error {error:.3g}"


_QUICK = {("where", "1e9"), ("add", "1e9"), ("add", "finfo.min"), ("multiply", "1e9")}
_CASES = [
    pytest.param(idiom, number, marks=[] if (idiom, number) in _QUICK else pytest.mark.slow)
    for idiom in _IDIOMS
    for number in _NEGATIVE
]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(("idiom", "number"), _CASES)
def test_masks(idiom: str, number: str, half: str) -> None:
    if idiom == "multiply" and number in ("finfo.min", "float16's own"):
        number = "half the range"  # the largest number plus a score is -inf whatever the type
    _check(idiom, _NEGATIVE[number], half, list(_MASKS))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("idiom", ["where", "add"])
def test_minus_infinity(idiom: str, half: str) -> None:
    """Where every row sees a key; a row that sees none is NaN in float32 as well."""
    _check(idiom, -np.inf, half, ["causal"])


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    ("idiom", "number"),
    [
        ("add", "1e9"),
        ("where", "finfo.min"),
        pytest.param("where", "1e9", marks=pytest.mark.slow),
        pytest.param("add", "finfo.min", marks=pytest.mark.slow),
    ],
)
def test_gradients_are_finite(idiom: str, number: str, half: str) -> None:
    attention = _IDIOMS[idiom](_MASKS["one row masked"], _NEGATIVE[number])

    def loss(q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(jnp.tanh(attention(q, k, v)))

    gradients = mixed(jax.grad(loss, (0, 1, 2)), half, *_inputs())
    for gradient in gradients:
        assert np.isfinite(gradient).all()


def test_a_mask_added_in_half_is_caught() -> None:
    """-1e9 is -inf in float16; the row that sees nothing becomes NaN."""
    with pytest.raises(AssertionError, match="not finite"):
        _check("add", -1e9, "float16", ["one row masked"], keep_half=["*"])
