"""Sums of dots over the iterations of a loop, as one dot behind the loop.

::

    c = c + dot(a[t], b[t])  for every t    =    c + dot(a, b) over t too

The gradient of a weight that a recurrent network uses in every step is a sum over the steps. JAX
carries it through the backward loop: each iteration reads the whole float32 sum, adds one dot to it
and writes it. Stacking the dots' operands instead, in half, and contracting over the iterations as
well gives the same sum from one dot, accumulated in float32.

It moves fewer bytes where the operands of one iteration are smaller than the sum, as activations
are beside a weight matrix: half of them is written and read once, the float32 sum is read and
written in every iteration. It needs memory for all iterations. What the loop reads in slices is
there already; all else that the sums of a loop stack may be as much as its slices again, or little
beside the sums themselves. Carried out by :mod:`duotone.jaxpr.nesting.sums`.
"""

from __future__ import annotations

from collections.abc import Iterable

from duotone.graph.graph import Node
from duotone.ops.traits import Trait
from duotone.precision.optimize.optimization import Expression, Optimization
from duotone.precision.optimize.painted_view import View

_NO_ADDITIONS = frozenset({Trait.SUBTRACTS, Trait.SUMS_AXES})
_MOST_READ = 2
"""Operands of one iteration, in elements of the sum: 4 bytes of each are moved, 8 of the sum."""
_LITTLE = 4
"""Operands of all iterations together, in elements of the sum: not much beside the sum itself."""

_Term = tuple[Node, list[int]]
"""A dot that every iteration adds, and the values to which it is transposed before, in order."""


def match(node: Node, view: View) -> Optimization | None:
    """A carry of a loop of known length that only adds up half dots."""
    body, held = view.graph.bodies[node.body], view.value(node.outputs[0])
    # Not a sum of whole numbers, or one that the user keeps half; nor of a loop of unknown length.
    if Trait.SUMS not in node.traits or not view.is_full(node) or body.until >= 0:
        return None
    terms = _terms(node, view)
    length = body.trips // view.graph.bodies[body.parent].trips
    read = _size(view, (value for dot, _ in terms for value in dot.inputs))
    if not terms or read >= _MOST_READ * held.size:
        return None
    if length * read > _LITTLE * held.size and not _fits(node, view):
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
    """The dots whose sum with the carry is its next value; none if it is not that."""
    terms: list[_Term] = []
    carried = 0
    open_values = [node.inputs[1]]
    while open_values:
        value = open_values.pop()
        maker = view.beside(node, value)
        if maker is None or view.only_reader(value) is None:
            return []
        if maker is node:
            carried += 1
        elif Trait.ADDS in maker.traits and maker.traits.isdisjoint(_NO_ADDITIONS):
            open_values.extend(maker.inputs)
        else:
            term = _term(node, value, view)
            if term is None:
                return []
            terms.append(term)
    return terms if carried == 1 else []


def _fits(node: Node, view: View) -> bool:
    """True if what the sums of a loop stack is no larger than the slices that the loop reads."""
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
    while (maker := view.beside(node, value)) is not None and view.only_reader(value) is not None:
        if Trait.EINSUM in maker.traits:
            return (maker, moved[::-1]) if view.computes_half(maker) else None
        if Trait.TRANSPOSES not in maker.traits:
            return None
        moved.append(value)
        value = maker.inputs[0]
    return None
