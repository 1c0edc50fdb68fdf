"""The forms of a dot with half operands: the same sums of products, bound so that they run fast.

============  ====================================================================================
``plain``     The equation's own dot on half operands. GPUs and TPUs accept every layout.
``rows``      The dot that XLA's CPU backend has a bfloat16 kernel for: operands of two dimensions
              (or three, the first a batch), the left one contracted on its last dimension, stored
              row by row, a float32 result.
``widened``   Operands that were rounded to half, then widened to float32. Every backend implements
              it, and it is as fast as float32. Products of two bfloat16 numbers are exact in
              float32, so the result is the same.
============  ====================================================================================

Why ``rows`` has this form (XLA of jaxlib 0.10 to 0.12): XLA decides early whether the bfloat16
kernel takes a dot, by its shapes and by the layouts at *that* stage. A transpose then has the
layout that costs nothing, not rows. XLA computes a rejected dot in float32. A later pass may still
change an accepted dot: if it folds a transpose into the dot, the dot fails when it runs
(``UNIMPLEMENTED … DotThunk … BF16 x BF16 = F32``). So operands and result pass through an
``optimization_barrier``, and a reshape after the barrier gives the dot an operand in rows. A weight
gradient contracts the rows of both operands. For it, this form costs one transposed copy of a half
operand and makes the dot about twice as fast.

``devices/table.py`` chooses the form for each device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from duotone.graph.forms import ROWS, WIDENED
from duotone.graph.graph import FULL_DTYPE
from duotone.jaxpr.reading.attributes import has_sharded_type
from duotone.jaxpr.reading.operations import OWN_DOT
from duotone.jaxpr.rules.bilinear import aval_of_linear, bilinear
from duotone.jaxpr.rules.expressions import evaluate
from duotone.precision.optimize.optimization import ExpressionStep

Dims = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]
"""``dimension_numbers`` of a dot: contracted (left, right), batch (left, right)."""
Steps = tuple[ExpressionStep, ...]


def precision(name: str) -> Any:
    """Returns JAX's ``precision`` for a name: a dot algorithm, or a pair of equal precisions."""
    if name in lax.DotAlgorithmPreset.__members__:
        return lax.DotAlgorithmPreset[name]
    return (lax.Precision[name], lax.Precision[name])


def takes_rows(*operands: Any) -> bool:
    """Returns True if these operands can be reshaped to the form ``rows``.

    False for a symbolic dimension, and if shardings are part of the type (explicit mesh axes,
    inside ``shard_map``), because a reshape would have to name them.
    """
    for operand in operands:
        aval = jax.typeof(operand)
        if not all(type(size) is int and size > 0 for size in aval.shape):
            return False
        if has_sharded_type(aval):
            return False
    return True


def in_steps(
    dot: Callable[[Any, Any, Dims], Any], lhs: Any, rhs: Any, numbers: Dims, steps: Steps
) -> Any:
    """Evaluates the steps of a dot's optimization, or binds the dot if there are no steps.

    Args:
        dot: binds a dot with given operands and dimension numbers.
        lhs: left operand.
        rhs: right operand.
        numbers: dimension numbers of the dot in the program.
        steps: steps of the optimization.
    """
    if not steps:
        return dot(lhs, rhs, numbers)
    return evaluate(steps, {"operand": (lhs, rhs).__getitem__, "contract": dot})


def plain_dot_in_rows(lhs: Any, rhs: Any, numbers: Dims, dtype: str, steps: Steps) -> Any:
    """Returns a dot in the form ``rows``; takes the arguments of :func:`dot_in_rows`."""
    return in_steps(functools.partial(_by_rows, dtype=dtype), lhs, rhs, numbers, steps)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4))
def dot_in_rows(lhs: Any, rhs: Any, numbers: Dims, dtype: str, steps: Steps) -> Any:
    """Returns a dot in the form ``rows``, with derivatives in the same form.

    Args:
        lhs: left operand, half.
        rhs: right operand, half.
        numbers: dimension numbers of the dot; hashable.
        dtype: dtype of the result: float32, or half to round the float32 sums.
        steps: steps of its optimization; empty if it has none.
    """
    return plain_dot_in_rows(lhs, rhs, numbers, dtype, steps)


@functools.partial(dot_in_rows.defjvp, symbolic_zeros=True)
def _derivative_in_rows(
    numbers: Dims, dtype: str, steps: Steps, primals: Any, tangents: Any
) -> tuple[Any, Any]:
    lhs, rhs = primals
    result = rows_dot(lhs, rhs, numbers, dtype, steps)
    pairs = ((tangents[0], rhs), (lhs, tangents[1]))
    parts = [
        half_product(*pair, numbers, dtype, str(lhs.dtype), ROWS)
        for pair, tangent in zip(pairs, tangents, strict=True)
        if not is_zero(tangent)
    ]
    return result, total(parts, result)


def is_zero(tangent: Any) -> bool:
    """Returns True if JAX does not differentiate with respect to the operand of a tangent."""
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)


def total(parts: Sequence[Any], result: Any) -> Any:
    """Returns the tangent of a result: the sum of the contributions of its operands."""
    return sum(parts[1:], start=parts[0]) if parts else lax.full_like(result, 0)


# Most dots of a network have the same shapes as another dot. JAX lowers a ``jit`` once for all.
rows_dot = jax.jit(dot_in_rows, static_argnums=(2, 3, 4))
rows_dot_for_values = jax.jit(plain_dot_in_rows, static_argnums=(2, 3, 4))
"""The same without derivatives in that form: a third less to trace and lower."""


def _by_rows(lhs: Any, rhs: Any, numbers: Dims, dtype: str) -> Any:
    """Returns the dot of left rows with right rows or columns, by the right operand's layout."""
    (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = numbers
    lhs_kept, rhs_kept = (
        kept_axes(lhs, lhs_contracted, lhs_batch),
        kept_axes(rhs, rhs_contracted, rhs_batch),
    )
    batch = [lhs.shape[axis] for axis in lhs_batch]
    rows = [lhs.shape[axis] for axis in lhs_kept]
    columns = [rhs.shape[axis] for axis in rhs_kept]
    inner = math.prod(lhs.shape[axis] for axis in lhs_contracted)
    left = _ordered(lhs, (*lhs_batch, *lhs_kept, *lhs_contracted))
    left = lax.reshape(left, (math.prod(batch), math.prod(rows), inner))
    as_it_is = (*rhs_batch, *rhs_kept, *rhs_contracted) == tuple(range(rhs.ndim))
    if as_it_is:
        right = lax.reshape(rhs, (math.prod(batch), math.prod(columns), inner))
    else:
        right = _ordered(rhs, (*rhs_batch, *rhs_contracted, *rhs_kept))
        right = lax.reshape(right, (math.prod(batch), inner, math.prod(columns)))
    product = _matmul(left, right, contracted=2 if as_it_is else 1)
    return lax.convert_element_type(lax.reshape(product, (*batch, *rows, *columns)), dtype)


def _matmul(left: Any, right: Any, contracted: int) -> Any:
    """Multiplies (batch, m, k) by (batch, k, n) or (batch, n, k) to float32 (batch, m, n)."""
    if left.shape[0] == 1:
        left, right = (lax.reshape(_materialized(x), x.shape[1:]) for x in (left, right))
        numbers = (((1,), (contracted - 1,)), ((), ()))
    else:
        left, right = (
            lax.reshape(_materialized(lax.expand_dims(x, (0,))), x.shape) for x in (left, right)
        )
        numbers = (((2,), (contracted,)), ((0,), (0,)))
    product = lax.dot_general(left, right, numbers, preferred_element_type=FULL_DTYPE)
    return _materialized(product)


def _materialized(array: Any) -> Any:
    return lax.optimization_barrier(array)


def kept_axes(array: Any, contracted: Sequence[int], batch: Sequence[int]) -> list[int]:
    """Returns the axes of an operand that are neither contracted nor batch axes, in order."""
    return [axis for axis in range(array.ndim) if axis not in (*contracted, *batch)]


def result_shape(lhs: Any, rhs: Any, numbers: Dims) -> tuple[int, ...]:
    """Returns the shape of a dot: batch axes, then the left and the right operand's kept ones."""
    contracted, batch = numbers
    left = (*batch[0], *kept_axes(lhs, contracted[0], batch[0]))
    right = kept_axes(rhs, contracted[1], batch[1])
    return (*[lhs.shape[axis] for axis in left], *[rhs.shape[axis] for axis in right])


def _ordered(array: Any, axes: Sequence[int]) -> Any:
    """Returns ``array`` with its dimensions in this order."""
    return array if tuple(axes) == tuple(range(array.ndim)) else lax.transpose(array, tuple(axes))


# The derivative of a dot is linear in each tangent. JAX would transpose it into dots of any layout
# and any cotangent dtype. duotone's own primitive gives the backward dots the same form and half
# operands, and gives a full operand a full gradient.


def half_product(lhs: Any, rhs: Any, numbers: Dims, dtype: str, half: str, kind: str) -> Any:
    """Returns a dot in a form, linear in both operands, whose transposes have the same form.

    Args:
        lhs: left operand, half or full. A full one is rounded to half, and its cotangent is full.
        rhs: right operand, half or full, with the same treatment.
        numbers: dimension numbers of the dot; hashable.
        dtype: dtype of the result.
        half: the half type.
        kind: the form.
    """
    return _PRODUCT.bind(lhs, rhs, numbers=numbers, dtype=dtype, half=half, kind=kind)


def _product(lhs: Any, rhs: Any, *, numbers: Dims, dtype: str, half: str, kind: str) -> Any:
    lhs, rhs = (lax.convert_element_type(operand, half) for operand in (lhs, rhs))
    if kind == ROWS:
        return _by_rows(lhs, rhs, numbers, dtype)
    return general_dot(lhs, rhs, numbers, dtype, kind)


def general_dot(lhs: Any, rhs: Any, numbers: Dims, dtype: str, kind: str, **params: Any) -> Any:
    """Computes the ``dot_general`` of half operands in every form except ``rows``.

    Args:
        lhs: left operand, half.
        rhs: right operand, half.
        numbers: dimension numbers of the dot.
        dtype: dtype of the result.
        kind: the form.
        **params: ``precision`` and ``out_sharding`` of the program's dot.
    """
    if kind == WIDENED and dtype == FULL_DTYPE:
        lhs, rhs = (lax.convert_element_type(operand, dtype) for operand in (lhs, rhs))
    return lax.dot_general(lhs, rhs, numbers, preferred_element_type=np.dtype(dtype), **params)


def _transposed_lhs(
    cotangent: Any, lhs: Any, rhs: Any, *, numbers: Dims, dtype: str, half: str, kind: str
) -> Any:
    """Returns the cotangent of the left operand: the dot of the cotangent and the right operand."""
    (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = numbers
    aval = aval_of_linear(lhs)
    lhs_kept, rhs_kept = (
        kept_axes(aval, lhs_contracted, lhs_batch),
        kept_axes(rhs, rhs_contracted, rhs_batch),
    )
    columns = range(cotangent.ndim - len(rhs_kept), cotangent.ndim)
    new = ((tuple(columns), tuple(rhs_kept)), (tuple(range(len(lhs_batch))), tuple(rhs_batch)))
    cotangent = lax.convert_element_type(cotangent, half)
    result = half_product(cotangent, rhs, new, str(aval.dtype), half, kind)
    pairs = dict(zip(rhs_contracted, lhs_contracted, strict=True))
    return _back(result, (*lhs_batch, *lhs_kept, *[pairs[axis] for axis in sorted(pairs)]))


def _transposed_rhs(
    cotangent: Any, lhs: Any, rhs: Any, *, numbers: Dims, dtype: str, half: str, kind: str
) -> Any:
    """Returns the right operand's cotangent: the dot of the left's rows and the cotangent."""
    (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = numbers
    aval = aval_of_linear(rhs)
    lhs_kept, rhs_kept = (
        kept_axes(lhs, lhs_contracted, lhs_batch),
        kept_axes(aval, rhs_contracted, rhs_batch),
    )
    batch = len(lhs_batch)
    rows = range(batch, batch + len(lhs_kept))
    new = ((tuple(lhs_kept), tuple(rows)), (tuple(lhs_batch), tuple(range(batch))))
    cotangent = lax.convert_element_type(cotangent, half)
    result = half_product(lhs, cotangent, new, str(aval.dtype), half, kind)
    pairs = dict(zip(lhs_contracted, rhs_contracted, strict=True))
    return _back(result, (*rhs_batch, *[pairs[axis] for axis in sorted(pairs)], *rhs_kept))


def _back(result: Any, axes: Sequence[int]) -> Any:
    """Transposes ``result``, whose dimensions are ``axes`` of the operand, to its order."""
    return _ordered(result, sorted(range(len(axes)), key=axes.__getitem__))


def _batched(
    operands: Sequence[Any], dims: Sequence[int | None], *, numbers: Dims, **params: str
) -> tuple[Any, int]:
    """Maps the dot: a mapped dimension becomes a leading batch or kept dimension."""
    left, right = [
        x if dim is None else jax.numpy.moveaxis(x, dim, 0)
        for x, dim in zip(operands, dims, strict=True)
    ]
    mapped = [dim is not None for dim in dims]
    (contracted, batch) = [
        [tuple(axis + mapped[side] for axis in sides[side]) for side in (0, 1)] for sides in numbers
    ]
    if all(mapped):
        batch = [(0, *axes) for axes in batch]
    numbers = ((contracted[0], contracted[1]), (batch[0], batch[1]))
    result = half_product(left, right, numbers, **params)
    if all(mapped):
        return result, 0
    kept_left = len(kept_axes(left, contracted[0], batch[0]))
    return result, len(batch[0]) + (0 if mapped[0] else kept_left)


def _typed(
    lhs: Any, rhs: Any, *, numbers: Dims, dtype: str, **_: str
) -> tuple[tuple[int, ...], str]:
    """Returns the shape and dtype of the result."""
    return result_shape(lhs, rhs, numbers), dtype


_PRODUCT = bilinear(OWN_DOT, _product, _typed, _transposed_lhs, _transposed_rhs, _batched)
