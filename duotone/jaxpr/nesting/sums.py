"""Sums of dots over the iterations of a loop, computed by one dot after the loop.

:mod:`duotone.precision.optimize.loop_sums` decides which sums.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jax import lax

from duotone import _jax
from duotone.graph.graph import FULL_DTYPE, Paint
from duotone.jaxpr.rules.expressions import evaluate
from duotone.jaxpr.rules.optimizations import bind_maker
from duotone.jaxpr.running.env import Env
from duotone.jaxpr.running.rewrite import Rewriter
from duotone.precision.optimize.optimization import Optimization

Operand = tuple[int, Paint]
"""A value, and the precision in which a dot reads it."""


def _dots(sums: Iterable[Optimization]) -> list[int]:
    return [step.to[0] for found in sums for step in found.steps if step.name == "stacked"]


def _operands(r: Rewriter, sums: Iterable[Optimization]) -> dict[Operand, None]:
    """Returns the operands of the dots, each once."""
    return {
        (value, r.wanted(dot, slot)): None
        for dot in _dots(sums)
        for slot, value in enumerate(r.graph.nodes[dot].inputs)
    }


def stacked_operands(
    r: Rewriter, sums: Iterable[Optimization], env: Env, sliced: Mapping[int, int]
) -> list[Any]:
    """Returns the operands of the dots that one iteration stacks, without slices of a stack."""
    asked = _operands(r, sums)
    return [r.read(env, value, paint) for value, paint in asked if value not in sliced]


def with_sums(
    r: Rewriter,
    sums: dict[int, Optimization],
    first: Sequence[Any],
    last: Any,
    stacked: Any,
    stacks: Callable[[int, Paint], Any],
    sliced: Mapping[int, int],
) -> tuple[list[Any], list[Any]]:
    """Returns all carries after a loop, and the stacks of the original loop.

    Args:
        r: the rewriter.
        sums: the sums, by the position of the carry.
        first: the carries before the loop.
        last: the other carries, after the loop.
        stacked: the stacks of the original loop, then those of :func:`stacked_operands`.
        stacks: reads a stack outside of the loop.
        sliced: the stack of each slice.
    """
    asked = _operands(r, sums.values())
    own = len(stacked) - sum(value not in sliced for value, _ in asked)
    new, carried = iter(stacked[own:]), iter(last)
    whole = {
        (value, paint): stacks(sliced[value], paint) if value in sliced else next(new)
        for value, paint in asked
    }

    @functools.cache
    def contracted(dot: int) -> Any:
        inputs = enumerate(r.graph.nodes[dot].inputs)
        lhs, rhs = (whole[value, r.wanted(dot, slot)] for slot, value in inputs)
        return _over_iterations(r, dot, lhs, rhs)

    after = [
        evaluate(
            sums[position].steps,
            {"start": lambda start=start: start, "stacked": contracted, "made": bind_maker(r)},
        )
        if position in sums
        else next(carried)
        for position, start in enumerate(first)
    ]
    return after, list(stacked[:own])


def _over_iterations(r: Rewriter, dot: int, lhs: Any, rhs: Any) -> Any:
    """Returns the dot of stacked operands, which also contracts the leading axis, in float32.

    Only devices that accept every dot layout use this optimization.
    """
    eqn = r.step_of(r.graph.nodes[dot].outputs[0]).eqn
    (left, right), (first, second) = (
        [[axis + 1 for axis in axes] for axes in pair] for pair in eqn.params["dimension_numbers"]
    )
    with _jax.EquationContext(eqn):
        return lax.dot_general(
            lhs,
            rhs,
            (((0, *left), (0, *right)), (first, second)),
            precision=eqn.params["precision"],
            preferred_element_type=FULL_DTYPE,
        )
