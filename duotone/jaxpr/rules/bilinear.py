"""Primitives that are linear in each of two operands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray

from duotone import _jax


def bilinear(
    name: str,
    evaluate: Callable[..., Any],
    typed: Callable[..., tuple[tuple[int, ...], Any]],
    transpose_lhs: Callable[..., Any],
    transpose_rhs: Callable[..., Any],
    batch: Callable[..., tuple[Any, int]],
) -> Any:
    """Returns a primitive that is linear in each of its two operands.

    JAX has functions with custom derivatives, but none with a custom *transpose* that ``vmap``
    accepts (``linear_call`` has no batching rule).

    Args:
        name: the name of the primitive.
        evaluate: ``evaluate(lhs, rhs, **params)`` computes the result.
        typed: takes the avals of the operands; returns the shape and dtype of the result.
        transpose_lhs: ``(cotangent, lhs, rhs, **params)`` to the cotangent of ``lhs``, which is a
            placeholder there, see :func:`aval_of_linear`.
        transpose_rhs: takes the same arguments, with ``rhs`` as the placeholder; returns the
            cotangent of ``rhs``.
        batch: ``(operands, dims, **params)`` to the result and its mapped dimension.

    Returns:
        The primitive; call its ``bind(lhs, rhs, **params)``.
    """
    primitive = _jax.Primitive(name)

    def abstract(lhs: Any, rhs: Any, **params: Any) -> Any:
        shape, dtype = typed(lhs, rhs, **params)
        return ShapedArray(shape, np.dtype(dtype))

    @functools.cache
    def compiled(**params: Any) -> Callable[..., Any]:
        return jax.jit(functools.partial(evaluate, **params))

    primitive.def_impl(lambda lhs, rhs, **params: compiled(**params)(lhs, rhs))
    primitive.def_abstract_eval(abstract)
    _jax.ad.defbilinear(primitive, transpose_lhs, transpose_rhs)
    _jax.batching.primitive_batchers[primitive] = batch
    _jax.mlir.register_lowering(primitive, _jax.mlir.lower_fun(evaluate, multiple_results=False))
    return primitive


def aval_of_linear(placeholder: Any) -> Any:
    """Returns the shape and dtype of the operand with respect to which JAX transposes."""
    return placeholder.aval
