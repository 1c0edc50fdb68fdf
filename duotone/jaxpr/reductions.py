"""Sums, carried out in another form than they were written in.

Which: :mod:`duotone.graph.factors`, :mod:`duotone.graph.trilinear`. Who calls this:
:mod:`duotone.jaxpr.half_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from duotone import _jax
from duotone.graph.factors import Factored
from duotone.graph.graph import Paint
from duotone.graph.trilinear import Shares, Trilinear
from duotone.jaxpr.instead import instead
from duotone.jaxpr.program import Step
from duotone.jaxpr.rewrite import Env, Rewriter


def factored(r: Rewriter, step: Step, env: Env, plan: Factored) -> Any:
    """A sum, multiplied afterwards with what all of its terms have in common.

    Args:
        r: the rewriter.
        step: the sum's.
        env: where its operands are.
        plan: what is taken out.
    """
    operand = _read(r, env, plan.reader, plan.value)
    (result,) = _jax.bind(step.eqn, [operand])
    for value, reader in plan.factors:
        result = jnp.multiply(result, _each(r, step, env, reader, value))
    return lax.neg(result) if plan.negative else result


def trilinear(r: Rewriter, step: Step, env: Env, plan: Trilinear) -> Any:
    """A sum of products with a dot, from the dot of the shares; its derivative is the sum's.

    Args:
        r: the rewriter.
        step: the sum's.
        env: where its operands are.
        plan: the dots.
    """
    (node,) = step.nodes
    (plain,) = _jax.bind(step.eqn, [_read(r, env, node, step.inputs[0])])
    operand = r.rounded(_read(r, env, plan.summed, plan.operand))
    products = jnp.multiply(operand, r.read(env, plan.result, Paint.FULL))
    result = lax.transpose(jnp.sum(products, plan.axes), plan.order)
    for value, reader in plan.factors:
        result = jnp.multiply(result, _each(r, step, env, reader, value))
    for value, reader in plan.divisors:
        result = jnp.divide(result, _each(r, step, env, reader, value))
    return instead(plain, lax.neg(result) if plan.negative else result)


def of_shares(
    r: Rewriter,
    step: Step,
    env: Env,
    plan: Shares,
    dot: Callable[[Sequence[Any]], Any],
) -> Any:
    """A dot of the parts of a sum, divided by the sum; its derivative is that of the shares' dot.

    Dot and sum read the same rounded parts, so that their shares add up to 1.

    Args:
        r: the rewriter.
        step: the dot's, of shares.
        env: where its operands are.
        plan: the parts.
        dot: from operands in half to float32 sums.
    """
    (node,) = step.nodes
    operands = [r.read(r.source(env, node, value), value, Paint.HALF) for value in step.inputs]
    plain = dot(operands)
    place = r.source(env, plan.division, plan.parts)
    operands[plan.slot] = r.read(place, plan.parts, Paint.HALF)
    parts = r.rounded(r.read(place, plan.parts, Paint.FULL))
    total = lax.transpose(jnp.sum(parts, plan.axes), plan.order)
    return instead(plain, jnp.divide(dot(operands), lax.expand_dims(total, plan.free)))


def _read(r: Rewriter, env: Env, reader: int, value: int) -> Any:
    """A value in full, as a node reads it."""
    return r.read(r.source(env, reader, value), value, Paint.FULL)


def _each(r: Rewriter, step: Step, env: Env, reader: int, value: int) -> Any:
    """A factor, as it stands beside the result of the sum."""
    factor = _read(r, env, reader, value)
    return lax.squeeze(factor, step.eqn.params["axes"]) if jnp.ndim(factor) else factor
