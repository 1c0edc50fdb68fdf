"""Picks, carried out: a gather from half values in memory, then the arithmetic on what it gave.

Which gathers: :mod:`duotone.graph.picks`. Who calls this: :mod:`duotone.jaxpr.half_rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from duotone import _jax
from duotone.graph.graph import FULL_DTYPE, Paint
from duotone.graph.picks import Picked
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
    value, indices = step.inputs
    shape = step.eqn.invars[0].aval.shape
    at = r.read(env, indices, Paint.FULL)
    made: dict[int, Any] = {}

    def operand(reader: int, index: int) -> Any:
        if index not in made:
            place = r.source(env, reader, index)
            full = r.read(place, index, Paint.FULL)
            made[index] = (
                _taken_of_half(step.eqn, full, r.read(place, index, Paint.HALF), at, shape)
                if r.stored(index) is Paint.HALF
                else _taken(step.eqn, full, at, shape)
            )
        return made[index]

    for index in plan.chain:
        maker = r.step_of(index)
        operands = [operand(maker.nodes[0], read) for read in maker.inputs]
        (made[index],) = _jax.bind(maker.eqn, operands)
    return made[value]


def _taken_of_half(eqn: _jax.Eqn, full: Any, half: Any, at: Any, shape: Sequence[Any]) -> Any:
    """What the gather takes of a half value, in full; its derivative is that of the full one.

    The cotangent of the elements that were taken is the difference of almost equal numbers with
    that of all elements (``softmax - 1``), so the two must be added up in full.
    """

    @jax.custom_jvp
    def taken(full: Any, half: Any, at: Any) -> Any:
        del full
        return _jax.convert(_taken(eqn, half, at, shape), FULL_DTYPE)

    @taken.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
        return taken(*primals), _taken(eqn, tangents[0], primals[2], shape)

    return taken(full, jax.lax.stop_gradient(half), at)


def _taken(eqn: _jax.Eqn, array: Any, at: Any, shape: Sequence[Any]) -> Any:
    """What the gather takes of an operand that may have size 1 where the original one has more."""
    if not jax.numpy.ndim(array):
        return array
    there = [mine == size for mine, size in zip(array.shape, shape, strict=True)]
    sizes = eqn.params["slice_sizes"]
    sizes = tuple(size if full else 1 for size, full in zip(sizes, there, strict=True))
    start = [there[axis] for axis in eqn.params["dimension_numbers"].start_index_map]
    if not all(start):
        at = at * np.asarray(start, at.dtype)
    (taken,) = _jax.bind(eqn, [array, at], {**eqn.params, "slice_sizes": sizes})
    return taken
