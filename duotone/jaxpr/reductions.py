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
    """A sum of products with a dot, from the other dot.

    Args:
        r: the rewriter.
        step: the sum's.
        env: where its operands are.
        plan: the other dot.
    """
    dot = r.read(env, plan.dot, Paint.FULL)
    other = _read(r, env, plan.reader, plan.other)
    result = lax.transpose(jnp.sum(jnp.multiply(other, dot), plan.axes), plan.order)
    for value, reader in plan.factors:
        result = jnp.multiply(result, _each(r, step, env, reader, value))
    for value, reader in plan.divisors:
        result = jnp.divide(result, _each(r, step, env, reader, value))
    return lax.neg(result) if plan.negative else result


def of_shares(
    r: Rewriter,
    step: Step,
    env: Env,
    plan: Shares,
    dot: Callable[[Sequence[Any]], Any],
) -> Any:
    """A dot of the parts of a sum, divided by the sum.

    Dot and sum read the same rounded parts, so that their shares add up to 1.

    Args:
        r: the rewriter.
        step: the dot's, of shares.
        env: where its operands are.
        plan: the parts.
        dot: from operands in half to float32 sums.
    """
    (node,) = step.nodes
    operands = [
        r.read(r.source(env, node, value), value, Paint.HALF)
        for slot, value in enumerate(step.inputs)
        if slot != plan.slot
    ]
    place = r.source(env, plan.reader, plan.parts)
    operands.insert(plan.slot, r.read(place, plan.parts, Paint.HALF))
    info = jnp.finfo(r.half)
    parts = r.read(place, plan.parts, Paint.FULL)
    rounded = lax.reduce_precision(parts, info.nexp, info.nmant)
    total = lax.transpose(jnp.sum(rounded, plan.axes), plan.order)
    return jnp.divide(dot(operands), lax.expand_dims(total, plan.free))


def _read(r: Rewriter, env: Env, reader: int, value: int) -> Any:
    """A value in full, as a node reads it."""
    return r.read(r.source(env, reader, value), value, Paint.FULL)


def _each(r: Rewriter, step: Step, env: Env, reader: int, value: int) -> Any:
    """A factor, as it stands beside the result of the sum."""
    factor = _read(r, env, reader, value)
    return lax.squeeze(factor, step.eqn.params["axes"]) if jnp.ndim(factor) else factor
