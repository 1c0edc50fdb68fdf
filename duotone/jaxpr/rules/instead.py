"""One value with the derivative of another.

This is a primitive instead of a ``jax.custom_jvp``, because JAX drops the derivative rule of a
``custom_jvp`` when it partially evaluates a loop before it differentiates a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from duotone import _jax


def instead(plain: Any, result: Any) -> Any:
    """Returns ``result``; its derivative is that of ``plain``, which is computed only for it.

    Args:
        plain: a value of the same shape; its derivative is cast to the type of ``result``.
        result: the value to return; its own derivative is never used.
    """
    return _INSTEAD.bind(jnp.asarray(plain), jnp.asarray(result))


def _derivative(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    result = instead(*primals)
    if type(tangents[0]) is _jax.ad.Zero:
        return result, _jax.ad.Zero(jax.typeof(result).to_tangent_aval())
    return result, _jax.convert(tangents[0], result.dtype)


def _transposed(cotangent: Any, plain: Any, result: Any) -> tuple[Any, None]:
    """Transposes values that are linear in an input: ``plain`` gets the whole cotangent."""
    if type(cotangent) is _jax.ad.Zero or not _jax.ad.is_undefined_primal(plain):
        return None, None
    return _jax.convert(cotangent, plain.aval.dtype), None


def _batched(operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, int]:
    (size,) = {x.shape[at] for x, at in zip(operands, dims, strict=True) if at is not None}
    moved = [
        jnp.broadcast_to(x, (size, *x.shape)) if at is None else jnp.moveaxis(x, at, 0)
        for x, at in zip(operands, dims, strict=True)
    ]
    return instead(*moved), 0


_INSTEAD = _jax.Primitive("duotone_instead")
_INSTEAD.def_impl(lambda plain, result: result)
_INSTEAD.def_abstract_eval(lambda plain, result: result)
_jax.ad.primitive_jvps[_INSTEAD] = _derivative
_jax.ad.primitive_transposes[_INSTEAD] = _transposed
_jax.batching.primitive_batchers[_INSTEAD] = _batched
_jax.mlir.register_lowering(_INSTEAD, lambda context, plain, result: [result])
