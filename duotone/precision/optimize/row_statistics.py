"""Row statistics: recomputes the maximum and the sum of a softmax with its exponentials.

::

    x ─► m = max(x) ─► e = exp(x - m) ─► s = sum(e) ─► e / s       along the last axis
    read again later: e, m, s, all of them recomputed from an x that is in memory

A kernel that recomputes exponentials (``residuals.py``) holds whole rows. So it can sum them up as
well, and a compiler that recognises a softmax makes one kernel of the gradient. If nothing else
reads the maximum and the sum later, the softmax itself is one kernel too, which writes only the
normalized values. A row must fit into one kernel for that (:data:`LONGEST_ROW`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Set

from duotone.graph.graph import Paint
from duotone.ops.entries import Pointwise
from duotone.ops.traits import Trait
from duotone.precision.casts.cast_plan import Cast, CastPlan
from duotone.precision.optimize.painted_view import View
from duotone.precision.optimize.residuals import Recompute, Site

ROW_STATISTICS, MATERIALIZE_ROWS = "row_statistics", "materialize_rows"
"""The names of these optimizations."""
LONGEST_ROW = 16384
"""The number of elements of the longest row that XLA makes one kernel around (programs compiled for
an H200 and an A100 with jaxlib 0.10.2 and 0.12.0: 16384 fits, 32768 does not)."""
_STATISTICS = frozenset({Trait.EXTREMA, Trait.SUMS_AXES})


def fits_kernel(view: View, value: int, axes: tuple[int, ...]) -> bool:
    """Checks if a reduction of a value is along its last axis, and a row fits into one kernel."""
    shape = view.shape(value)
    length = shape[-1] if shape else 0
    return axes == (len(shape) - 1,) and isinstance(length, int) and length <= LONGEST_ROW


def with_statistics(view: View, found: Recompute, on: frozenset[str]) -> Recompute:
    """Recomputes the statistics of exponentials where their readers recompute the exponentials.

    Args:
        view: the program.
        found: the values that are recomputed.
        on: the names of the optimizations in effect.

    Returns:
        The same plan, with the maxima and sums of rows that follow from values at the same site.
    """
    if ROW_STATISTICS not in on:
        return found
    indices = {
        (site.body, site.level): index
        for index, site in enumerate(found.sites)
        if _has_exponentials(view, found, site)
    }
    if not indices:
        return found
    reads = dict(found.reads)
    statistics = [frozenset[int]() for _ in found.sites]
    for node in view.graph.nodes:
        index = indices.get((node.body, view.levels.nodes[node.index]))
        # An equality such as `x == max(x)` must see the values of the first computation.
        compares = Trait.EQUALITY in view.classes.nodes[node.index].entry.traits
        if index is None or compares or Trait.STRUCTURAL in node.traits:
            continue
        sources = _sources(found, found.sites[index])
        for value in node.inputs:
            if (node.index, value) not in reads and view.levels.is_far(value, node.index):
                made = _statistics(view, value, sources)
                if made:
                    reads[node.index, value] = index
                    statistics[index] |= made
    for index in indices.values():
        site = found.sites[index]
        makers = (view.maker(value) for value in site.recomputed)
        operands = {value for maker in makers if maker for value in maker.inputs}
        sources = _sources(found, site)
        for value in operands - sources:
            statistics[index] |= _statistics(view, value, sources)
    sites = tuple(
        dataclasses.replace(site, recomputed=site.recomputed | made)
        for site, made in zip(found.sites, statistics, strict=True)
    )
    every = frozenset().union(*statistics)
    return dataclasses.replace(found, reads=reads, sites=sites, statistics=every)


def _sources(found: Recompute, site: Site) -> Set[int]:
    """Returns the values at a site whose rows can be summed up there.

    A value that is recomputed from its normalized form is not a source, since that needs its sum.
    """
    return (site.recomputed | site.roots) - found.products.keys()


def _has_exponentials(view: View, found: Recompute, site: Site) -> bool:
    """Returns True if a site recomputes an exponential from its operand."""
    graph = view.graph
    return any(
        Trait.EXPONENTIAL in graph.nodes[graph.values[value].producer].traits
        for value in site.recomputed - found.products.keys()
    )


def _statistics(view: View, value: int, sources: Set[int]) -> frozenset[int]:
    """Returns the small values to recompute for one from rows of ``sources``; else empty."""
    found: set[int] = set()
    stack, of_rows = [value], False
    while stack:
        index = stack.pop()
        operand, node = view.value(index), view.maker(index)
        if operand.constant is not None or index in found:
            continue
        if node is None or node.body != operand.body or len(node.outputs) > 1:
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
    """Lets full readers read the result of a kernel of whole rows in half, where it is in memory.

    This concerns results that dots read in half. Such a kernel has one result. A compiler that
    removes the rounding for a full reader (the gradient of a bias of scores, a sum over sequences)
    would write the result in float32, for both.

    Args:
        view: the program.
        plan: its casts.
        found: the values that are recomputed.
        on: the names of the optimizations in effect.

    Returns:
        The casts, of which some more read a materialized value.
    """
    if MATERIALIZE_ROWS not in on:
        return plan
    made = _made_of_rows(view, found)

    def reads_rows(cast: Cast) -> bool:
        return (
            cast.to is Paint.FULL
            and not cast.materialized
            and cast.value in made
            and view.is_stored_half(cast.value)
            and any(view.computes_half(node) for node, _ in view.readers(cast.value))
        )

    casts = (
        dataclasses.replace(cast, materialized=MATERIALIZE_ROWS) if reads_rows(cast) else cast
        for cast in plan.casts
    )

    return dataclasses.replace(plan, casts=tuple(casts))


def _made_of_rows(view: View, found: Recompute) -> set[int]:
    """Returns the values that one kernel makes from exponentials recomputed in whole rows."""
    graph, levels = view.graph, view.levels
    rows = {index for index, site in enumerate(found.sites) if _has_rows(view, found, site)}
    waiting = [
        graph.nodes[node]
        for (node, value), site in found.reads.items()
        if site in rows and Trait.EXPONENTIAL in graph.nodes[graph.values[value].producer].traits
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


def _has_rows(view: View, found: Recompute, site: Site) -> bool:
    """Returns True if a kernel that recomputes the values of a site sums up rows of them."""
    return not found.statistics.isdisjoint(site.recomputed) or any(
        fits_kernel(view, value, found.products[value].axes)
        for value in site.recomputed & found.products.keys()
    )
