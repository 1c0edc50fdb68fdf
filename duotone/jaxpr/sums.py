"""Sums of dots over the iterations of a loop, as one dot behind the loop.

The gradient of a weight that a recurrent network uses in every step is a sum over the steps. JAX
carries it through the backward loop: each iteration reads the whole float32 sum, adds one dot to it
and writes it. Stacking the dots' operands instead, in half, and contracting over the iterations
as well gives the same sum from one dot, accumulated in float32::

    c = c + dot(a[t], b[t])  for every t     ─►     c + dot(a, b) over t too

It pays where the operands of all iterations together are smaller than the sums they replace, as
the activations of a sequence are beside a weight matrix.

Who calls this: the form of ``scan`` in :mod:`duotone.jaxpr.nested`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax import lax

from duotone import _jax
from duotone.graph.graph import FULL_DTYPE
from duotone.jaxpr.program import Program, Step
from duotone.jaxpr.rewrite import Env, Rewriter

_ADDITIONS = ("add_any", "add")
_MOST_STACKED = 4
"""The operands of all iterations together, in elements of the sum: half of them is written and read
once, the sum is read and written in every iteration."""


@dataclasses.dataclass(frozen=True, slots=True)
class Term:
    """One dot that every iteration adds to a carry.

    Attributes:
        dot: its step.
        moves: transpositions between the dot and the addition, in order.
    """

    dot: Step
    moves: tuple[Step, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class DotSum:
    """A carry that only adds up dots.

    Attributes:
        carry: its position among the carries.
        terms: what is added.
    """

    carry: int
    terms: tuple[Term, ...]


def find_sums(r: Rewriter, program: Program, carries: Sequence[int], length: Any) -> list[DotSum]:
    """The carries of a scan that are better made behind the loop.

    Args:
        r: the rewriter.
        program: the body; its carries are the arguments that stand before the slices.
        carries: the node of each carry.
        length: the number of iterations.
    """
    if not isinstance(length, int):
        return []
    makers = {v: step for step in program.steps if step.kind == "leaf" for v in step.outputs}
    found = []
    for position, node in enumerate(carries):
        if r.graph.nodes[node].op != "loop.accumulator":
            continue
        inside = r.graph.nodes[node].outputs[0]
        held = r.graph.values[inside]
        if not held.paintable:  # a sum of whole numbers, or in a dtype that the user chose
            continue
        terms = _terms(r, makers, program.outputs[position], inside)
        if terms and length * sum(_operands_size(r, t) for t in terms) <= _MOST_STACKED * held.size:
            found.append(DotSum(position, terms))
    return found


def _terms(
    r: Rewriter, makers: dict[int, Step], result: int, inside: int
) -> tuple[Term, ...] | None:
    """The dots whose sum with ``inside`` is ``result``; ``None`` if it is not that."""
    terms: list[Term] = []
    carried = 0
    open_values = [result]
    while open_values:
        value = open_values.pop()
        if r.only_reader(value) is None:
            return None
        step = makers.get(value)
        if value == inside:
            carried += 1
        elif step is not None and step.eqn.primitive.name in _ADDITIONS:
            open_values.extend(step.inputs)
        else:
            term = _term(r, makers, value)
            if term is None:
                return None
            terms.append(term)
    return tuple(terms) if carried == 1 else None


def _term(r: Rewriter, makers: dict[int, Step], value: int) -> Term | None:
    moves: list[Step] = []
    while (step := makers.get(value)) is not None and r.only_reader(value) is not None:
        if step.eqn.primitive.name == "dot_general":
            return Term(step, tuple(reversed(moves)))
        if step.eqn.primitive.name != "transpose":
            return None
        moves.append(step)
        value = step.inputs[0]
    return None


def _operands_size(r: Rewriter, term: Term) -> int:
    return sum(r.graph.values[value].size for value in term.dot.inputs)


def stacked_operands(r: Rewriter, sums: Sequence[DotSum], env: Env) -> list[Any]:
    """What one iteration hands on: both operands of every term, as its dot takes them."""
    return [
        r.read(env, value, r.wanted(term.dot.nodes[0], slot))
        for found in sums
        for term in found.terms
        for slot, value in enumerate(term.dot.inputs)
    ]


def total(r: Rewriter, found: DotSum, start: Any, stacks: Sequence[Any]) -> Any:
    """The carry behind the loop.

    Args:
        r: the rewriter.
        found: the sum.
        start: the carry before the loop.
        stacks: both operands of every term, stacked along a new leading axis.
    """
    for position, term in enumerate(found.terms):
        lhs, rhs = stacks[2 * position : 2 * position + 2]
        if r.dots != "plain":
            lhs, rhs = (_jax.convert(operand, FULL_DTYPE) for operand in (lhs, rhs))
        params = term.dot.eqn.params
        with _jax.EquationContext(term.dot.eqn):
            added = lax.dot_general(
                lhs,
                rhs,
                _over_iterations(params["dimension_numbers"]),
                precision=params["precision"],
                preferred_element_type=FULL_DTYPE,
            )
        for move in term.moves:
            with _jax.EquationContext(move.eqn):
                (added,) = _jax.bind(move.eqn, [added])
        start = lax.add(start, added)
    return start


def _over_iterations(dims: Any) -> Any:
    """Dimension numbers of the dot of stacked operands, which contracts the leading axis too."""
    contracted, batch = (tuple(tuple(axis + 1 for axis in axes) for axes in pair) for pair in dims)
    return ((0, *contracted[0]), (0, *contracted[1])), batch
