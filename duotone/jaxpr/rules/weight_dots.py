"""Dots of a weight: half operands, and a gradient that is not rounded to half.

When a user differentiates a painted function, JAX transposes its dots. The cotangent of a half
operand is half, so the gradient of a weight would be rounded before it is cast to the weight's
float32. :func:`of_weight` takes the full weight next to the half one and has its own derivative.
There the gradient is the float32 sums of the products, as in ``autocast(grad(f))`` by the rule
``wide``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from duotone.graph.forms import ROWS
from duotone.jaxpr.rules.dots import (
    Dims,
    dot_in_rows,
    general_dot,
    half_product,
    in_steps,
    is_zero,
    total,
)
from duotone.precision.optimize.optimization import ExpressionStep


@dataclasses.dataclass(frozen=True, slots=True)
class DotForm:
    """How a dot with half operands is bound; hashable.

    Attributes:
        kind: ``"plain"``, ``"rows"`` or ``"widened"``, see :mod:`duotone.jaxpr.rules.dots`.
        numbers: dimension numbers.
        dtype: dtype of the result: float32, or half to round the float32 sums.
        half: dtype of the operands.
        steps: steps of the optimization that reorders the dot; empty for the program's order.
        precision: ``precision`` of the program's dot; the form ``rows`` ignores it.
        out_sharding: ``out_sharding`` of the program's dot; ``None`` in the form ``rows``.
    """

    kind: str
    numbers: Dims
    dtype: str
    half: str
    steps: tuple[ExpressionStep, ...] = ()
    precision: Any = None
    out_sharding: Any = None

    def dot(self, lhs: Any, rhs: Any, dtype: str) -> Any:
        """Returns the dot in every form except ``rows``."""
        bound = functools.partial(
            general_dot,
            dtype=dtype,
            kind=self.kind,
            precision=self.precision,
            out_sharding=self.out_sharding,
        )
        return in_steps(bound, lhs, rhs, self.numbers, self.steps)

    def product(self, lhs: Any, rhs: Any) -> Any:
        """Binds the dot; transposes keep its form, and full operands get full cotangents.

        Its operands may be half or full, so it uses neither the steps nor the precision.
        """
        return half_product(lhs, rhs, self.numbers, self.dtype, self.half, self.kind)


# The dot itself is bound outside of the ``custom_jvp``, because the policies of ``jax.checkpoint``
# look for ``dot_general``. JAX uses the dot's own derivative only where it drops the ``custom_jvp``
# rule: when it partially evaluates a loop before it differentiates a second time.


@functools.partial(jax.custom_jvp, nondiff_argnums=(4, 5))
def of_weight(result: Any, lhs: Any, rhs: Any, full: Any, slot: int, form: DotForm) -> Any:
    """Returns ``result``, a dot of a weight, with the weight's gradient in float32.

    Args:
        result: the result of the dot.
        lhs: its left operand, half.
        rhs: its right operand, half.
        full: the weight, in float32. It gets the whole gradient of the weight.
        slot: which of the two operands is the weight.
        form: how the dot was bound.
    """
    return result


@functools.partial(of_weight.defjvp, symbolic_zeros=True)
def _derivative_of_weight(slot: int, form: DotForm, primals: Any, tangents: Any) -> tuple[Any, Any]:
    result, *pair, _ = primals
    parts = []
    if not is_zero(tangents[2 - slot]):
        parts.append(_side(form, 1 - slot, pair, tangents[2 - slot]))
    if not is_zero(tangents[3]):
        parts.append(form.product(*_with(pair, slot, tangents[3])))
    return of_weight(*primals, slot, form), total(parts, result)


# JAX lowers a ``jit`` once for all dots of the same shapes.
@functools.partial(jax.jit, static_argnums=(3, 4))
def rows_dot_of_weight(lhs: Any, rhs: Any, full: Any, slot: int, form: DotForm) -> Any:
    """Returns a dot of a weight in the form ``rows``; takes the arguments of :func:`of_weight`."""
    result = dot_in_rows(lhs, rhs, form.numbers, form.dtype, form.steps)
    return of_weight(result, lhs, rhs, full, slot, form)


def _side(form: DotForm, side: int, primals: Sequence[Any], tangent: Any) -> Any:
    """Returns the contribution of a half operand's tangent to the result's; JAX transposes it."""
    lhs, rhs = _with(primals, side, tangent)
    if form.kind == ROWS:
        return form.product(lhs, rhs)
    return lax.convert_element_type(form.dot(lhs, rhs, form.half), form.dtype)


def _with(pair: Sequence[Any], slot: int, operand: Any) -> tuple[Any, Any]:
    """Returns the pair with the operand in a slot replaced."""
    return (pair[0], operand) if slot else (operand, pair[1])
