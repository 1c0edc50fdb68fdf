"""Sums of dots over the iterations of a loop, as one dot after the loop.

::

    c = c + dot(a[t], b[t])  for every t    =    c + dot(a, b) over t too

The gradient of a weight that a recurrent network uses in every step is a sum over the steps. JAX
carries it through the backward loop: each iteration reads the whole float32 sum, adds one dot to it
and writes it. Instead, the loop can stack the dots' operands in half, and one dot contracts over
the iterations as well. It gives the same sum, accumulated in float32.

This moves fewer bytes if the operands of one iteration are smaller than the sum, as activations are
smaller than a weight matrix. The program writes and reads the half operands once, but it reads and
writes the float32 sum in every iteration. Stacking needs memory for all iterations. The slices that
the loop reads are in memory already. The stacks that all sums of a loop add may be as large as
these slices, or small next to the sums. :mod:`duotone.jaxpr.nesting.sums` applies this.
"""

from __future__ import annotations

from collections.abc import Iterable

from duotone.graph.graph import Node
from duotone.ops.traits import Trait
from duotone.precision.optimize.optimization import Expression, Optimization
from duotone.precision.optimize.painted_view import View

_MOST_READ = 2
"""Limit of the operands of one iteration per element of the sum: 4 bytes of each are moved, and 8
bytes of the sum."""
_LITTLE = 4
"""Limit of the operands of all iterations, in elements of the sum: not much next to the sum."""

_Term = tuple[Node, list[int]]
"""A dot that every iteration adds, and the results of the transposes after it, in order."""


def match(node: Node, view: View) -> Optimization | None:
    """Matches a carry of a loop of known length that only sums up half dots."""
    body, carried = view.graph.bodies[node.body], view.value(node.outputs[0])
    # This excludes sums of integers, sums kept in half by the user, and loops of unknown length.
    if Trait.SUMS not in node.traits or not view.is_full(node) or body.until >= 0:
        return None
    terms = _terms(node, view)
    length = body.trips // view.graph.bodies[body.parent].trips
    read = _size(view, (value for dot, _ in terms for value in dot.inputs))
    if not terms or read >= _MOST_READ * carried.size:
        return None
    if length * read > _LITTLE * carried.size and not _fits(node, view):
        return None
    write = Expression()
    total = write("start")
    for dot, moved in terms:
        added = write("stacked", to=(dot.index,))
        for value in moved:
            added = write("made", added, to=(value,))
        total = write("add", total, added)
    return Optimization("loop_sums", node.index, f"one dot for {length} iterations", write.steps)


def _terms(node: Node, view: View) -> list[_Term]:
    """Returns the dots whose sum with the carry is its next value; empty if something else is."""
    terms: list[_Term] = []
    carried = 0
    open_values = [node.inputs[1]]
    while open_values:
        value = open_values.pop()
        maker = view.maker_in_body(node, value)
        if maker is None or view.only_reader(value) is None:
            return []
        if maker is node:
            carried += 1
        elif maker.traits & {Trait.ADDS, Trait.SUBTRACTS, Trait.SUMS_AXES} == {Trait.ADDS}:
            open_values.extend(maker.inputs)
        else:
            term = _term(node, value, view)
            if term is None:
                return []
            terms.append(term)
    return terms if carried == 1 else []


def _fits(node: Node, view: View) -> bool:
    """Checks if the stacks of all sums of a loop are no larger than the slices that it reads."""
    loop = [other for other in view.having(Trait.CARRIES) if other.body == node.body]
    loop = [other for other in loop if Trait.SUMS in other.traits]
    dots = [dot for other in loop for dot, _ in _terms(other, view)]
    read = {value for dot in dots for value in dot.inputs}
    slices = view.having(Trait.ITERATES)
    sliced = {other.outputs[0] for other in slices if other.body == node.body}
    return _size(view, read - sliced) <= _size(view, sliced)


def _size(view: View, values: Iterable[int]) -> int:
    return sum(view.value(value).size for value in values)


def _term(node: Node, value: int, view: View) -> _Term | None:
    moved: list[int] = []
    while view.only_reader(value) is not None:
        maker = view.maker_in_body(node, value)
        if maker is None:
            break
        if Trait.EINSUM in maker.traits:
            return (maker, moved[::-1]) if view.computes_half(maker) else None
        if Trait.TRANSPOSES not in maker.traits:
            return None
        moved.append(value)
        value = maker.inputs[0]
    return None
