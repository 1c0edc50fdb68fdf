"""Regions of the user's code that are kept in one precision.

``with keep_full():`` and ``with keep_half():`` work through name scopes, so they need no access to
the painter and survive ``jit``, ``grad``, ``vmap`` and ``scan``. Outside ``autocast`` they do
nothing. Where they nest, the innermost decides.

A function that is switched off (``autocast(fn, enabled=False)``) is traced in a region too,
:func:`switched_off`. No other region and no policy of an outer rewrite changes the code inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax

LOSS_SCALE = "duotone.loss_scale"
"""The region in which a loss is scaled, in float32."""
_UPDATE = "duotone.update"
_SWITCHED_OFF = "duotone.switched_off"
_MARKERS = {
    "duotone.keep_full": "full",
    "duotone.keep_half": "half",
    _UPDATE: "update",
    LOSS_SCALE: "update",
    _SWITCHED_OFF: "off",
}


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


def scaling_loss() -> contextlib.AbstractContextManager[Any]:
    """Marks code that multiplies a loss by its scale, as :func:`updating` does, for ``blame``."""
    return jax.named_scope(LOSS_SCALE)


def updating() -> contextlib.AbstractContextManager[Any]:
    """Keeps duotone's own code around a gradient in float32: loss scales, checks, optimizers.

    Records show the rule ``update`` for it, and ``pinned`` for code that the user keeps full.
    """
    return jax.named_scope(_UPDATE)


def switched_off() -> contextlib.AbstractContextManager[Any]:
    """Keeps the operations traced inside as they are written, whatever a rewrite around them says.

    :func:`keep_half` and the policy of an outer rewrite have no effect inside. A function
    inside that is switched on is rewritten by itself.
    """
    return jax.named_scope(_SWITCHED_OFF)


def region_of(scopes: Sequence[str]) -> str:
    """Returns a node's region: ``"full"``, ``"half"``, ``"off"``, ``"update"`` or ``""``.

    The innermost name scope that is a region decides, unless one is switched off.
    """
    if _SWITCHED_OFF in scopes:
        return "off"
    for scope in reversed(scopes):
        if scope in _MARKERS:
            return _MARKERS[scope]
    return ""


def marker_of(region: str) -> tuple[str, ...]:
    """Returns the name scopes that mark a region, the inverse of :func:`region_of`."""
    return tuple(scope for scope, name in _MARKERS.items() if name == region)[:1]


def without_regions(scopes: Sequence[str]) -> tuple[str, ...]:
    """Returns the scopes that are not regions."""
    return tuple(scope for scope in scopes if scope not in _MARKERS)
