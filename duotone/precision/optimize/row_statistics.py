"""Rows: the maximum and the sum of a softmax, calculated again with the exponentials they are of.

::

    x ─► m = max(x) ─► e = exp(x - m) ─► s = sum(e) ─► e / s       along the last axis
    read again later: e, m, s, all of them from an x that is in memory

Where exponentials are calculated again (``residuals.py``), the kernel that does it holds whole
rows, so it can add them up as well, and a compiler that knows a softmax makes one kernel of the
gradient. If nothing else reads the maximum and the sum later, the softmax itself is one kernel too,
that writes the quotient alone. A row must fit into one kernel for that (:data:`LONGEST_ROW`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Set

from duotone.graph.graph import Paint
from duotone.ops.entries import Pointwise
from duotone.ops.traits import Trait
from duotone.precision.casts.cast_plan import Cast, CastPlan
from duotone.precision.optimize.painted_view import View
from duotone.precision.optimize.residuals import Recompute

ROW_STATISTICS, HOLD_ROWS = "row_statistics", "materialize_rows"
"""The names of these optimizations."""
LONGEST_ROW = 16384
"""Elements of the longest row that XLA makes one kernel around (compiled programs for an H200 and
an A100 with jaxlib 0.10.2 and 0.12.0: 16384 does, 32768 does not)."""
_STATISTICS = frozenset({Trait.EXTREMA, Trait.SUMS_AXES})


def fits_kernel(view: View, value: int, axes: tuple[int, ...]) -> bool:
    """True if a reduction of a value along some axes is one of rows that fit into one kernel."""
    shape = view.shape(value)
    length = shape[-1] if shape else 0
    return axes == (len(shape) - 1,) and isinstance(length, int) and length <= LONGEST_ROW


def with_statistics(view: View, found: Recompute, on: frozenset[str]) -> Recompute:
    """Calculates the statistics of exponentials again where the exponentials are.

    Args:
        view: the program.
        found: what is calculated again.
        on: the names of the optimizations in effect.

    Returns:
        The same, with the maxima and sums of rows that can be had from what is read anyway.
    """
    places = _places(view, found) if ROW_STATISTICS in on else {}
    if not places:
        return found
    reads, rows = dict(found.reads), dict.fromkeys(found.again, frozenset[int]())
    for node in view.graph.nodes:
        place = places.get((node.body, view.levels.nodes[node.index]))
        compares = (
            Trait.EQUALITY in view.classes.nodes[node.index].entry.traits
        )  # `x == max(x)`: first ones only
        if place is None or compares or Trait.STRUCTURAL in node.traits:
            continue
        sources = _sources(found, place)
        for value in node.inputs:
            if (node.index, value) not in reads and view.levels.is_far(value, node.index):
                made = _statistics(view, value, sources)
                if made:
                    reads[node.index, value] = place
                    rows[place] |= made
    for place in set(places.values()):
        makers = (view.maker(value) for value in found.again[place])
        operands = {value for maker in makers if maker for value in maker.inputs}
        sources = _sources(found, place)
        for value in operands - sources:
            rows[place] |= _statistics(view, value, sources)
    again = {place: made | rows[place] for place, made in found.again.items()}
    every = frozenset().union(*rows.values())
    return dataclasses.replace(found, reads=reads, again=again, rows=every)


def _sources(found: Recompute, place: int) -> Set[int]:
    """The values at a place whose rows can be added up there.

    What is calculated from its quotient is not among them: that takes its sum.
    """
    return (found.again[place] | found.roots[place]) - found.products.keys()


def _places(view: View, found: Recompute) -> dict[tuple[int, int], int]:
    """The places at which exponentials are calculated from what they are exponentials of."""
    graph, levels = view.graph, view.levels.nodes
    made = {
        place
        for place, again in found.again.items()
        for value in again - found.products.keys()
        if Trait.EXPONENTIAL in graph.nodes[graph.values[value].producer].traits
    }
    return {(graph.nodes[n].body, levels[n]): p for (n, _), p in found.reads.items() if p in made}


def _statistics(view: View, value: int, sources: Set[int]) -> frozenset[int]:
    """The small values to calculate again for one, all from rows of ``sources``; else none."""
    found: set[int] = set()
    stack, of_rows = [value], False
    while stack:
        index = stack.pop()
        held, node = view.value(index), view.maker(index)
        if held.constant is not None or index in found:
            continue
        if node is None or node.body != held.body or len(node.outputs) > 1:
            return frozenset()
        if not node.traits.isdisjoint(_STATISTICS):
            (rows,) = node.inputs
            if rows not in sources or not fits_kernel(view, rows, view.axes(node)):
                return frozenset()
            of_rows = True
        elif view.classes.nodes[node.index].entry.pointwise is Pointwise.NO:
            return frozenset()
        else:
            stack.extend(node.inputs)
        found.add(index)
    return frozenset(found) if of_rows else frozenset()


def materialize_rows(view: View, plan: CastPlan, found: Recompute, on: frozenset[str]) -> CastPlan:
    """Lets what reads the result of a kernel of whole rows in full read it where it is, in half.

    Others read it in half: dots. Such a kernel has one result: a compiler that drops the rounding
    for a reader in full (the gradient of a bias of scores, a sum over sequences) would write it in
    float32, for both.

    Args:
        view: the program.
        plan: its casts.
        found: what is calculated again.
        on: the names of the optimizations in effect.

    Returns:
        The casts, some more of them held.
    """
    if HOLD_ROWS not in on:
        return plan
    made = _made_of_rows(view, found)

    def is_held(cast: Cast) -> bool:
        return (
            cast.to is Paint.FULL
            and not cast.held
            and cast.value in made
            and view.is_stored_half(cast.value)
            and any(view.computes_half(node) for node, _ in view.readers(cast.value))
        )

    casts = (dataclasses.replace(c, held=HOLD_ROWS) if is_held(c) else c for c in plan.casts)
    return dataclasses.replace(plan, casts=tuple(casts))


def _made_of_rows(view: View, found: Recompute) -> set[int]:
    """The values that are made, in one kernel, of exponentials calculated again in whole rows."""
    graph, levels = view.graph, view.levels
    rows = {place for place, again in found.again.items() if _has_rows(view, found, again)}
    waiting = [
        graph.nodes[node]
        for (node, value), place in found.reads.items()
        if place in rows and Trait.EXPONENTIAL in graph.nodes[graph.values[value].producer].traits
    ]
    made: set[int] = set()
    while waiting:
        node = waiting.pop()
        entry = view.classes.nodes[node.index].entry
        if entry.pointwise is Pointwise.NO and node.traits.isdisjoint(_STATISTICS):
            continue
        for value in set(node.outputs) - made:
            made.add(value)
            waiting.extend(
                reader
                for reader, _ in view.readers(value)
                if not levels.is_far(value, reader.index)
            )
    return made


def _has_rows(view: View, found: Recompute, again: Set[int]) -> bool:
    """True if a kernel that calculates these values again adds up rows of them."""
    return not found.rows.isdisjoint(again) or any(
        fits_kernel(view, value, found.products[value].axes)
        for value in again & found.products.keys()
    )
