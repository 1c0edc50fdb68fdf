"""The variations of each case, and the sandwich that makes half values flow into it.

A primitive without any dot around it is never painted. In the sandwich a dot with the identity
feeds one operand, and another dot reads every float32 result: the operation is then in the position
of an activation in a network, and all that rewriting does to it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import duotone
from duotone.graph.products import SHORTEST
from tests.catalogue.case import Case

WIDTH = 32
"""Of the identity matrix; last dimensions may be smaller."""

FORCED = duotone.Policy(ignore_performance=True)
HALF_TYPES = ("float16", "bfloat16")


def is_float32(leaf: Any) -> bool:
    return getattr(leaf, "dtype", None) == np.float32


def through_dot(w: Any, x: Any) -> Any:
    """``x``, having gone through a dot with a piece of the identity ``w``.

    Padded with zeros where neither this dot nor its gradients would fill a matrix instruction.
    """
    if not is_float32(x) or 0 in x.shape:
        return x
    if x.ndim == 0:
        return jnp.dot(x.reshape(1, 1), w[:1, :1]).reshape(())
    if x.shape[-1] > WIDTH:
        return x
    rows, n = x.size // x.shape[-1], x.shape[-1]
    height, width = max(rows, SHORTEST), max(n, SHORTEST)
    padded = lax.pad(x.reshape(rows, n), x.dtype.type(0), _behind(height - rows, width - n))
    return jnp.dot(padded, w[:width, :width])[:rows, :n].reshape(x.shape)


def _behind(rows: int, columns: int) -> list[tuple[int, int, int]]:
    """Zeros after the rows and the columns of a matrix, for ``lax.pad``."""
    return [(0, rows, 0), (0, columns, 0)]


def identity() -> np.ndarray:
    return np.eye(WIDTH, dtype=np.float32)


def sandwich(case: Case) -> Callable[..., Any]:
    """``case`` between two dots; takes the identity first."""
    through = case.through

    def function(w: Any, *args: Any) -> Any:
        inner = list(args)
        fed = range(len(inner)) if case.all_operands else [] if through is None else [through]
        for place in fed:
            inner[place] = jax.tree.map(lambda x: through_dot(w, x), inner[place])
        return jax.tree.map(lambda y: through_dot(w, y), case.function(*inner))

    return function


def loss(function: Callable[..., Any]) -> Callable[..., Any]:
    """The sum of all float results, weighted so that no gradient is symmetric."""

    def total(*args: Any) -> Any:
        leaves = [y for y in jax.tree.leaves(function(*args)) if _is_real(y)]
        return sum((jnp.sum(y * _weights(y)) for y in leaves), jnp.zeros((), jnp.float32))

    return total


def _weights(y: Any) -> np.ndarray:
    count = int(np.prod(y.shape, dtype=int))
    return (1 + (np.arange(count) % 4) / 4).astype(np.float32).reshape(y.shape)


def _is_real(y: Any) -> bool:
    return jnp.issubdtype(getattr(y, "dtype", np.int32), np.floating)


def stack_twice(args: Any) -> Any:
    """Two of everything that is an array, for ``vmap``."""
    return jax.tree.map(lambda x: np.stack([x, x]) if isinstance(x, np.ndarray) else x, args)


def axes_of(args: Any) -> Any:
    """0 where an argument is an array; ``vmap`` takes no other leaves."""
    return jax.tree.map(lambda x: 0 if isinstance(x, np.ndarray) else None, args)


def variation(
    case: Case, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A case in one variation, as a function of arrays and its arguments.

    Args:
        case: the case.
        name: of the variation.
        wrap: ``autocast``, or the identity for the reference.
    """
    args = case.arguments()
    if name in ("plain", "forced"):
        between = sandwich(case) if name == "forced" else case.function
        given = (identity(), *args) if name == "forced" else args
        return wrap(between), given
    if name == "sandwich":
        return wrap(sandwich(case)), (identity(), *args)
    if name == "vmap":
        given = (identity(), *args)
        mapped = jax.vmap(wrap(sandwich(case)), in_axes=(None, *axes_of(args)))
        return mapped, (given[0], *stack_twice(args))
    assert case.through is not None, "a case without an operand to differentiate says so in limits"
    moving = (0, case.through + 1)
    total = loss(sandwich(case))
    if name == "grad outside":
        return jax.grad(wrap(total), moving), (identity(), *args)
    if name == "grad inside":
        return wrap(jax.grad(total, moving)), (identity(), *args)
    raise ValueError(name)


def policy_of(case: Case, name: str) -> duotone.Policy:
    """The policy of a variation: the defaults, or with the case's primitives on the allow list."""
    if name != "forced":
        return FORCED
    return FORCED.replace(allow_add=case.primitives)


def error_in_ulp(got: Any, wanted: Any, half: str) -> float:
    """The largest error of any result, in ULP of ``half`` at that result's largest element."""
    worst = 0.0
    epsilon = float(jnp.finfo(half).eps)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        if not isinstance(w, (jax.Array, np.ndarray)) or not jnp.issubdtype(w.dtype, jnp.inexact):
            continue
        g, w = np.asarray(g), np.asarray(w)
        if not w.size:
            continue
        wide = np.complex128 if np.iscomplexobj(w) else np.float64
        g, w = g.astype(wide), w.astype(wide)
        if not np.array_equal(np.isfinite(g), np.isfinite(w)):
            return float("inf")
        finite = np.isfinite(w)
        if not np.array_equal(g[~finite], w[~finite], equal_nan=True):
            return float("inf")
        if not finite.any():
            continue
        scale = max(float(np.max(np.abs(w[finite]))), 2.0**-10)
        worst = max(worst, float(np.max(np.abs(g[finite] - w[finite]))) / (scale * epsilon))
    return worst
