"""Sums of dots over the iterations of a loop, as one dot behind the loop.

::

    c = c + dot(a[t], b[t])  for every t    =    c + dot(a, b) over t too

The gradient of a weight that a recurrent network uses in every step is a sum over the steps. JAX
carries it through the backward loop: each iteration reads the whole float32 sum, adds one dot to it
and writes it. Stacking the dots' operands instead, in half, and contracting over the iterations as
well gives the same sum from one dot, accumulated in float32.

It pays where the operands of all iterations together are smaller than the sums they replace, as the
activations of a sequence are beside a weight matrix. Carried out by
:mod:`duotone.jaxpr.nesting.sums`.
"""

from __future__ import annotations

from duotone.graph.graph import Node
from duotone.graph.reforms.reform import Expression, Reform
from duotone.graph.reforms.view import View

_ADDITIONS = ("add_any", "add")
_MOST_STACKED = 4
"""The operands of all iterations together, in elements of the sum: half of them is written and read
once, the sum is read and written in every iteration."""

_Term = tuple[Node, list[int]]
"""A dot that every iteration adds, and the values to which it is transposed before, in order."""


def match(node: Node, view: View) -> Reform | None:
    """A carry of a loop of known length that only adds up half dots."""
    body, held = view.graph.bodies[node.body], view.value(node.outputs[0])
    if not held.paintable or body.until >= 0:  # a sum of whole numbers; a loop of unknown length
        return None
    terms = _terms(node, view)
    length = body.trips // view.graph.bodies[body.parent].trips
    read = sum(view.value(value).size for dot, _ in terms for value in dot.inputs)
    if not terms or length * read > _MOST_STACKED * held.size:
        return None
    write = Expression()
    total = write("start")
    for dot, moved in terms:
        added = write("stacked", to=(dot.index,))
        for value in moved:
            added = write("made", added, to=(value,))
        total = write("add", total, added)
    return Reform("loop_sums", node.index, f"one dot for {length} iterations", write.steps)


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
        elif maker.op in _ADDITIONS:
            open_values.extend(maker.inputs)
        else:
            term = _term(node, value, view)
            if term is None:
                return []
            terms.append(term)
    return terms if carried == 1 else []


def _term(node: Node, value: int, view: View) -> _Term | None:
    moved: list[int] = []
    while (maker := view.beside(node, value)) is not None and view.only_reader(value) is not None:
        if maker.op == "dot_general":
            return (maker, moved[::-1]) if view.computes_half(maker) else None
        if maker.op != "transpose":
            return None
        moved.append(value)
        value = maker.inputs[0]
    return None
