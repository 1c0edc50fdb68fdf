"""The oracle: float64, hostile inputs, errors in ULP of the half type.

Functions under test begin with an *exact* dot (:func:`through_dot`): the operand is representable
in both half types and is multiplied by the identity, so the dot itself is exact in half. What is
left is the error of the painting's own choices, measured against the float64 answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from duotone import Policy, autocast

HALVES = ("float16", "bfloat16")
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}
_UNOPTIMIZED: dict[str, Any] = {
    "xla_backend_optimization_level": 0,  # compiles in half the time; the answers are small
    "xla_llvm_disable_expensive_passes": True,
}
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}


def reference(function: Callable[..., Any], *args: Any) -> Any:
    """The function in float64: float32 arguments are widened, everything else stays."""

    def widen(x: Any) -> Any:
        x = np.asarray(x)
        return x.astype(np.float64) if x.dtype == np.float32 else x

    with jax.enable_x64(True):
        wide = jax.tree.map(widen, args)
        compiled = jax.jit(function).lower(*wide).compile(_UNOPTIMIZED)
        return jax.tree.map(np.asarray, compiled(*wide))


def mixed(function: Callable[..., Any], half: str, *args: Any, **policy: Any) -> Any:
    """The function under ``autocast``, as NumPy arrays."""
    painted = autocast(function, dtype=half, policy=Policy(**policy))
    return jax.tree.map(np.asarray, painted(*args))


def ulps(got: Any, want: Any, dtype: str, scale: Any = None) -> float:
    """The largest error, in units in the last place of ``dtype``.

    Args:
        got: computed.
        want: in float64.
        dtype: whose units count.
        scale: magnitude at which the unit is taken; by default that of ``want``. For sums pass the
            sum of magnitudes, for vectors of mixed sizes their largest element.
    """
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert np.isfinite(want).all(), "the reference is not finite"
    if not np.isfinite(got).all():
        return float("inf")
    scale = np.abs(want) if scale is None else np.broadcast_to(np.abs(scale), want.shape)
    unit = np.exp2(np.floor(np.log2(np.maximum(scale, 1e-300)))) * EPSILON[dtype]
    return float(np.max(np.abs(got - want) / np.maximum(unit, 1e-300), initial=0.0))


def relative(got: Any, want: Any) -> float:
    """The norm of the error over the norm of the answer, all leaves together."""
    flat = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)]) for t in (got, want)]
    got, want = (np.asarray(x, np.float64) for x in flat)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def representable(x: Any) -> np.ndarray:
    """The nearest numbers that float16 and bfloat16 both hold: 8 bits, exponents of float16."""
    x = np.clip(np.asarray(x, np.float64), -LARGEST["float16"], LARGEST["float16"])
    mantissa, exponent = np.frexp(x)
    rounded = np.ldexp(np.round(mantissa * 256) / 256, exponent)
    return np.where(np.abs(rounded) < 2.0**-14, 0.0, rounded).astype(np.float32)


def heavy_tails(*shape: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    """Student t with 2 degrees of freedom: no variance, now and then a number of a hundred."""
    numbers = np.random.default_rng(seed).standard_t(2, shape) * scale
    return representable(numbers)


def cancelling(*shape: int, seed: int = 0) -> np.ndarray:
    """Rows of large numbers, small numbers, and the large ones again with the other sign."""
    third = shape[-1] // 3
    large = heavy_tails(*shape[:-1], third, scale=64.0, seed=seed)
    small = heavy_tails(*shape[:-1], shape[-1] - 2 * third, scale=2.0**-4, seed=seed + 1)
    return np.concatenate([large, small, -large], -1)


def through_dot(x: jax.Array) -> jax.Array:
    """``x`` as the result of an allow operation, exactly."""
    return x @ jnp.eye(x.shape[-1], dtype=x.dtype)


def on_by_dot(x: jax.Array) -> jax.Array:
    """``x`` passed on to an allow operation, so that it is an activation and no output."""
    return x @ jnp.eye(x.shape[-1], dtype=x.dtype)
