"""Regions of the user's code that are kept in one precision.

``with keep_full():`` and ``with keep_half():`` work through name scopes, so they need no access to
the painter and survive ``jit``, ``grad``, ``vmap`` and ``scan``. Outside ``autocast`` they do
nothing. Where regions nest, the innermost decides.

Who calls this: users, and :mod:`duotone.scale` for the arithmetic of loss scaling.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import jax

LOSS_SCALE = "duotone.loss_scale"
"""The region in which a loss is scaled: what stands in it is full."""
_MARKERS = {"duotone.keep_full": "full", "duotone.keep_half": "half", LOSS_SCALE: "full"}


@contextlib.contextmanager
def keep_full() -> Iterator[None]:
    """Keeps the operations traced inside in float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from duotone import keep_full
        >>> def loss(logits, labels):
        ...     with keep_full():
        ...         return jnp.mean((logits - labels) ** 2)
    """
    with jax.named_scope("duotone.keep_full"):
        yield


@contextlib.contextmanager
def keep_half() -> Iterator[None]:
    """Keeps the operations traced inside in half precision, whatever the rules say.

    Operations that have no half form (integers, linear algebra, unknown primitives) stay as they
    are. Nothing protects the values inside from overflow.

    Example:
        >>> import jax.numpy as jnp
        >>> from duotone import keep_half
        >>> def scores(q, k):
        ...     with keep_half():
        ...         return jnp.exp(-jnp.abs(q @ k))
    """
    with jax.named_scope("duotone.keep_half"):
        yield


@contextlib.contextmanager
def scaling_loss() -> Iterator[None]:
    """As :func:`keep_full`, for what multiplies a loss by its scale: ``blame`` looks for it."""
    with jax.named_scope(LOSS_SCALE):
        yield


def region_of(scopes: Sequence[str]) -> str:
    """``"full"``, ``"half"`` or ``""``: the innermost region among name scopes, outermost first."""
    for scope in reversed(scopes):
        if scope in _MARKERS:
            return _MARKERS[scope]
    return ""


def without_regions(scopes: Sequence[str]) -> tuple[str, ...]:
    """The scopes that are not regions."""
    return tuple(scope for scope in scopes if scope not in _MARKERS)
