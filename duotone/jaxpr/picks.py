"""Picks, carried out: a gather from half values in memory, then the arithmetic on what it gave.

The derivative is that of the original gather, of all elements in full. So what is out of bounds has
none, as before, and the cotangents of a sure prediction's logit (``softmax`` of all, less 1 of the
picked one), which are almost equal, are added up in full.

Which gathers: :mod:`duotone.graph.picks`. Who calls this: :mod:`duotone.jaxpr.half_rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from duotone import _jax
from duotone.graph.graph import FULL_DTYPE, Paint
from duotone.graph.picks import Picked
from duotone.jaxpr.instead import instead
from duotone.jaxpr.program import Step
from duotone.jaxpr.rewrite import Env, Rewriter


def picked(r: Rewriter, step: Step, env: Env, plan: Picked) -> Any:
    """What a gather gives.

    Args:
        r: the rewriter.
        step: the gather's.
        env: where its operands are.
        plan: what is calculated after it.
    """
    eqn, (node,) = step.eqn, step.nodes
    original, at = (r.read(r.source(env, node, v), v, Paint.FULL) for v in step.inputs)

    (plain,) = _jax.bind(eqn, [original, at])
    return instead(plain, _calculated(r, step, env, plan, at))


def _calculated(r: Rewriter, step: Step, env: Env, plan: Picked, at: Any) -> Any:
    """The picked elements, from those of the values in memory."""
    shape = step.eqn.invars[0].aval.shape
    made: dict[int, Any] = {}

    def operand(reader: int, index: int) -> Any:
        if index not in made:
            array = r.read(r.source(env, reader, index), index, r.stored(index))
            made[index] = _jax.convert(_taken(step.eqn, array, at, shape), FULL_DTYPE)
        return made[index]

    for index in plan.chain:
        maker = r.step_of(index)
        operands = [operand(maker.nodes[0], read) for read in maker.inputs]
        (made[index],) = _jax.bind(maker.eqn, operands)
    return made[plan.chain[-1]]


def _taken(eqn: _jax.Eqn, array: Any, at: Any, shape: Sequence[Any]) -> Any:
    """What the gather takes of an operand that may have size 1 where the original one has more."""
    if not jax.numpy.ndim(array):
        return array
    there = [mine == size for mine, size in zip(array.shape, shape, strict=True)]
    params = dict(eqn.params)
    params["slice_sizes"] = tuple(
        size if full else 1 for size, full in zip(params["slice_sizes"], there, strict=True)
    )
    start = [there[axis] for axis in params["dimension_numbers"].start_index_map]
    if not all(start):
        columns = [lax.slice_in_dim(at, i, i + 1, axis=at.ndim - 1) for i in range(len(start))]
        columns = [
            column if full else lax.full_like(column, 0)
            for column, full in zip(columns, start, strict=True)
        ]
        at = lax.concatenate(columns, at.ndim - 1)
        params |= {"unique_indices": False, "indices_are_sorted": False}
    (taken,) = _jax.bind(eqn, [array, at], params)
    return taken
