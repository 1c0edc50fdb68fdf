"""Sums of dots over the iterations of a loop, carried out behind it.

Which: :mod:`duotone.graph.reforms.loop_sums`. Who calls this: the handler of ``scan`` in
:mod:`duotone.jaxpr.nesting.nested`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jax import lax

from duotone import _jax
from duotone.graph.graph import FULL_DTYPE
from duotone.graph.reforms.reform import Reform
from duotone.jaxpr.rules.expressions import evaluate
from duotone.jaxpr.rules.reforms import made_again
from duotone.jaxpr.running.rewrite import Env, Rewriter


def _dots(sums: Iterable[Reform]) -> list[int]:
    return [step.to[0] for found in sums for step in found.steps if step.name == "stacked"]


def stacked_operands(r: Rewriter, sums: Iterable[Reform], env: Env) -> list[Any]:
    """The operands that one iteration stacks: both of every dot, as it takes them."""
    return [
        r.read(env, value, r.wanted(dot, slot))
        for dot in _dots(sums)
        for slot, value in enumerate(r.graph.nodes[dot].inputs)
    ]


def with_sums(
    r: Rewriter, sums: dict[int, Reform], first: Sequence[Any], last: Any, stacked: Any
) -> tuple[list[Any], list[Any]]:
    """All carries behind a loop, and the stacks that are its own.

    Args:
        r: the rewriter.
        sums: by the position of the carry.
        first: the carries before the loop.
        last: those carries behind it that are no such sums.
        stacked: the loop's own stacks; behind them both operands of every dot, stacked along a new
            leading axis.
    """
    own = len(stacked) - 2 * len(_dots(sums.values()))
    operands, carried = iter(stacked[own:]), iter(last)

    def contracted(dot: int) -> Any:
        return _over_iterations(r, dot, next(operands), next(operands))

    after = [
        evaluate(
            sums[position].steps,
            {"start": lambda start=start: start, "stacked": contracted, "made": made_again(r)},
        )
        if position in sums
        else next(carried)
        for position, start in enumerate(first)
    ]
    return after, list(stacked[:own])


def _over_iterations(r: Rewriter, dot: int, lhs: Any, rhs: Any) -> Any:
    """The dot of stacked operands, which contracts the leading axis too."""
    eqn = r.step_of(r.graph.nodes[dot].outputs[0]).eqn
    if r.dots != "plain":
        lhs, rhs = (_jax.convert(operand, FULL_DTYPE) for operand in (lhs, rhs))
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
