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

A dot that contracts few elements, or none, is float32 (:mod:`duotone.graph.products`). Over all
iterations it contracts enough of them, so it becomes half as well (rule ``iterations``) if its
operands are half anyway: in memory, or for another dot. An outer product is an example: the
gradient of what a decoder attends to in every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from duotone.graph.graph import Node, Value
from duotone.graph.products import SHORTEST
from duotone.graph.terms import SLICES_OF_LOOPS
from duotone.ops.traits import Trait
from duotone.precision.node_facts import sizes_of
from duotone.precision.optimize.optimization import Expression, Optimization
from duotone.precision.optimize.painted_view import View

_CHANGES = frozenset({Trait.NEGATES, Trait.CONVERTS, Trait.REPEATS, Trait.PARTS, Trait.UNDESCRIBED})
"""Traits of operations that move elements and do something else with them, or may do so."""
_MOST_READ = 2
"""Limit of the operands of one iteration per element of the sum: 4 bytes of each are moved, and 8
bytes of the sum."""
_LITTLE = 4
"""Limit of the operands of all iterations, in elements of the sum: not much next to the sum."""

_Term = tuple[Node, list[int]]
"""A dot that every iteration adds, and the results of the operations that only move its elements
or take a part of them, in order."""


def match(node: Node, view: View) -> Optimization | None:
    """Matches a carry of a loop of known length that only sums up half dots."""
    body, carried = view.graph.bodies[node.body], view.value(node.outputs[0])
    # This excludes sums of integers, sums kept in half by the user, and loops of unknown length.
    if Trait.SUMS not in node.traits or not view.is_full(node) or body.until >= 0:
        return None
    terms = _terms(node, view)
    length = body.trips // view.graph.bodies[body.parent].trips
    read = sum(_read_for(carried, dot, view) for dot, _ in terms)
    if not terms or read >= _MOST_READ * carried.size:
        return None
    short = [dot for dot, _ in terms if not view.computes_half(dot)]
    if any(length * math.prod(sizes_of(dot)[2:3]) < SHORTEST for dot in short):
        return None
    if length * read > _LITTLE * carried.size and node.body not in view.once(_roomy):
        return None
    write = Expression()
    total = write("start")
    for dot, moved in terms:
        added = write("stacked", to=(dot.index,))
        for value in moved:
            added = write("made", added, to=(value,))
        total = write("add", total, added)
    reason, half = f"one dot for {length} iterations", tuple(dot.index for dot in short)
    return Optimization("loop_sums", node.index, reason, write.steps, half=half)


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


def _roomy(view: View) -> frozenset[int]:
    """Returns the loops in which the stacks of all sums are no larger than the slices they read."""
    read: dict[int, set[int]] = {}
    for node in view.graph.having(Trait.CARRIES):
        if Trait.SUMS in node.traits:
            dots = [dot for dot, _ in _terms(node, view)]
            read.setdefault(node.body, set()).update(value for dot in dots for value in dot.inputs)
    sliced: dict[int, set[int]] = {body: set() for body in read}
    for node in view.graph.having(Trait.ITERATES):
        if node.body in sliced:
            sliced[node.body].add(node.outputs[0])
    return frozenset(
        body for body in read if _size(view, read[body] - sliced[body]) <= _size(view, sliced[body])
    )


def _may_be_half(dot: Node, view: View) -> bool:
    """Checks if a dot is half, or would be but for its length: its operands are half anyway."""
    found = view.classes.nodes[dot.index]
    if view.computes_half(dot) or Trait.SHORT not in dot.traits or found.is_users or found.rule:
        return view.computes_half(dot)
    return all(_is_half_anyway(value, dot, view) for value in dot.inputs)


def _is_half_anyway(value: int, dot: Node, view: View) -> bool:
    """Checks if a value, or all that it is put together from, is stored or read in half anyway."""
    parts = {value: None}
    for part in (queue := [value]):
        if any(_is_half(same, dot, view) for same in _in_all_loops(part, view)):
            continue
        maker = view.maker_in_body(dot, part)
        if maker is None or not {Trait.MOVES, Trait.COMMUTES} <= maker.traits:
            return False
        queue += [other for other in maker.inputs if other not in parts]
        parts.update(dict.fromkeys(maker.inputs))
    return True


def _is_half(value: int, dot: Node, view: View) -> bool:
    """Checks if a value is stored in half, or a dot other than ``dot`` reads it in half."""
    readers = [reader for reader, _ in view.readers(value) if reader is not dot]
    dots = [reader for reader in readers if Trait.CONTRACTS in reader.traits]
    return view.is_stored_half(value) or any(map(view.computes_half, dots))


def _in_all_loops(value: int, view: View) -> Iterable[int]:
    """Returns a value, the stack of which it is a slice, and the slices of it in other loops."""
    found = {value: None}
    for same in (queue := [value]):
        maker, readers = view.maker(same), [reader for reader, _ in view.readers(same)]
        slices = [reader for reader in readers if not reader.traits.isdisjoint(SLICES_OF_LOOPS)]
        equal = [reader.outputs[0] for reader in slices]
        if maker is not None and not maker.traits.isdisjoint(SLICES_OF_LOOPS):
            equal.append(maker.inputs[0])
        queue += [other for other in equal if other not in found]
        found.update(dict.fromkeys(equal))
    return found


def _read_for(carried: Value, dot: Node, view: View) -> float:
    """Returns the size of a dot's operands; the share of a sum that takes a part of the dot."""
    return _size(view, dot.inputs) * carried.size / view.value(dot.outputs[0]).size


def _size(view: View, values: Iterable[int]) -> int:
    return sum(view.value(value).size for value in values)


def _term(node: Node, value: int, view: View) -> _Term | None:
    moved: list[int] = []
    while view.only_reader(value) is not None:
        maker = view.maker_in_body(node, value)
        if maker is None:
            break
        if Trait.EINSUM in maker.traits:
            return (maker, moved[::-1]) if _may_be_half(maker, view) else None
        moves = Trait.MOVES in maker.traits and maker.traits.isdisjoint(_CHANGES)
        if not moves or len(maker.inputs) != 1:
            return None
        moved.append(value)
        value = maker.inputs[0]
    return None
