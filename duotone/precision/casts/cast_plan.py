"""Plan casts: where a painting needs a value in another precision than it is stored in.

One cast for each value, target precision and body: all readers share it. A value that does not
change inside a loop is cast before the loop, once; a body that takes its operands as they are
stored (a branch, a recomputed region) casts inside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from duotone.graph.graph import BodyKind, Boundary, Graph, Node, Paint, Value
from duotone.ops.entries import Kind, Pointwise
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.painters.painting import Painting
from duotone.precision.rules import Rule

HOLD_WIDENED, HOLD_PARTS = "materialize_widened", "materialize_parts"
"""The optimizations by which half values are read where they are in memory, see :class:`Cast`.

By the first, what dots or copies gave in half and several operations widen, and operands of dots: a
compiler would rather widen it once, in memory, for all of them. What a gather gives is not meant:
each reader's kernel picks for itself from what is in memory, and would only have it written.

By the second, what is put together of parts (the gradient of slices: padded and added up), where
dots read it in half and sums in full (the gradient of the bias): a compiler drops the rounding for
a sum, so it would put the parts together twice, once for the sum alone. Likewise what several dots
add up to (the gradient behind queries, keys and values), if several operations widen it and none
reads it half: the last dot's kernel would write the sum in float32."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cast:
    """One cast.

    Attributes:
        value: index of the value.
        to: the precision asked for.
        body: index of the body in which it stands.
        readers: nodes that read the result; -1 stands for the program's own output.
        free: of a scalar constant: the cast happens while tracing.
        exact: to full, of a value from which an operation selects in half. A compiler may drop the
            rounding of a value that is rounded and widened again; ``x - max(x)`` would then be
            above 0, or far below it for every element.
        held: to full, of a value that is in memory in half: the optimization by which it is read
        there,
            :data:`HOLD_WIDENED`, :data:`HOLD_PARTS` or that of ``optimizations/rows.py``; empty for
            most.
    """

    value: int
    to: Paint
    body: int
    readers: tuple[int, ...]
    free: bool
    exact: bool
    held: str


@dataclasses.dataclass(frozen=True, slots=True)
class CastPlan:
    """All casts of a painting.

    Attributes:
        casts: in program order of their first reader.
        hoisted: for each loop body, the (value, precision) pairs that stand outside of it and are
            read inside.
    """

    casts: tuple[Cast, ...]
    hoisted: dict[int, tuple[tuple[int, Paint], ...]]


def plan_casts(
    graph: Graph, classes: Classes, painting: Painting, on: frozenset[str] = frozenset()
) -> CastPlan:
    """Plans the casts that ``painting`` needs.

    Args:
        graph: the program.
        classes: what each node is.
        painting: its precisions.
        on: the names of the optimizations in effect.

    Returns:
        The fewest casts for these precisions.
    """
    readers: dict[tuple[int, Paint, int], list[int]] = {}
    hoisted: dict[int, dict[tuple[int, Paint], None]] = {}
    for node in graph.nodes:
        for value, may_be_half in zip(node.inputs, node.half_inputs, strict=True):
            held = graph.values[value]
            if not held.paintable:
                continue
            want = painting.compute[node.index] if may_be_half else Paint.FULL
            if graph.stored(painting.store, held) is want:
                continue
            body, loops = _body_of_cast(graph, held.body, node.body)
            readers.setdefault((value, want, body), []).append(node.index)
            for loop in loops:
                hoisted.setdefault(loop, {})[value, want] = None
    for value, boundary in graph.outputs:
        held = graph.values[value]
        wants = {Boundary.FULL: Paint.FULL, Boundary.HALF: Paint.HALF}.get(boundary)
        if not held.paintable or wants is None:
            continue
        if graph.stored(painting.store, held) is not wants:
            readers.setdefault((value, wants, 0), []).append(-1)
    selected = _selected_in_half(graph, classes, painting)

    def held_by(value: int, nodes: Sequence[int]) -> str:
        several = len({node for node in nodes if node >= 0}) > 1
        if HOLD_WIDENED in on and (
            (several and _is_in_memory(graph, classes, value))
            or _is_operand(graph, painting, value)
        ):
            return HOLD_WIDENED
        if HOLD_PARTS in on and (
            _are_sums_of_parts(graph, classes, painting, value, nodes)
            or _is_sum_of_dots(graph, classes, painting, value, nodes)
        ):
            return HOLD_PARTS
        return ""

    casts = tuple(
        Cast(
            value,
            to,
            body,
            tuple(nodes),
            free=_is_literal(graph.values[value]),
            exact=to is Paint.FULL and value in selected,
            held=held_by(value, nodes) if to is Paint.FULL else "",
        )
        for (value, to, body), nodes in readers.items()
    )
    return CastPlan(casts, {loop: tuple(pairs) for loop, pairs in hoisted.items()})


def casting_inside(plan: CastPlan, graph: Graph) -> set[int]:
    """Nodes that read a cast within a body that takes its operands as they are stored."""
    casts = [cast for cast in plan.casts if not cast.free]
    barriers = [c for c in casts if graph.bodies[c.body].kind is BodyKind.BARRIER]
    return {reader for cast in barriers for reader in cast.readers if reader >= 0}


def _selected_in_half(graph: Graph, classes: Classes, painting: Painting) -> set[int]:
    """Values from which an operation selects in half."""
    return {
        value
        for node in graph.nodes
        if Trait.SELECTS in classes.nodes[node.index].entry.traits
        and painting.compute[node.index] is Paint.HALF
        for value in node.inputs
    }


def _is_operand(graph: Graph, painting: Painting, value: int) -> bool:
    """True if a value is stored half because dots read it so."""
    producer = graph.values[value].producer
    return producer >= 0 and painting.rules[producer] is Rule.OPERAND


MULTIPLE = 8
"""Rows and columns of a half dot are multiples of this on Tensor Cores (NVIDIA, "Matrix
Multiplication Background User's Guide"): XLA pads others."""
_OF_A_DOT = 4
"""Sizes of products of matrices: how many, rows, terms, columns."""


_INSIDE_READERS = frozenset({Trait.GATHERS, Trait.PARTS})


def _is_in_memory(graph: Graph, classes: Classes, value: int) -> bool:
    """True if a value comes, moved at most, from an operation that no kernel reaches across.

    What is put together of parts is put together by the kernels that read it; what is gathered, or
    cut out of a padded dot, they gather or cut out.
    """
    held = graph.values[value]
    while held.producer >= 0:
        node = graph.nodes[held.producer]
        entry = classes.nodes[node.index].entry
        if entry.pointwise is Pointwise.NO:
            inside = not node.traits.isdisjoint(_INSIDE_READERS) or _is_cut_out(node)
            return not inside
        source = graph.values[node.inputs[0]]
        if Trait.RESHAPES not in node.traits or source.size != held.size:
            return False
        held = source
    return False


def _is_cut_out(node: Node) -> bool:
    """True if a compiler pads a dot in half, and cuts what was asked for out of its result.

    Readers do that inside of their kernels; held, it would be a kernel of its own.
    """
    sizes = node.attributes.get("sizes")
    if not isinstance(sizes, tuple) or len(sizes) != _OF_A_DOT:
        return False
    _, rows, _, columns = sizes
    return rows % MULTIPLE > 0 or columns % MULTIPLE > 0


def _are_sums_of_parts(
    graph: Graph, classes: Classes, painting: Painting, value: int, nodes: Sequence[int]
) -> bool:
    """True if all of ``nodes`` add up a value made of parts that an allow operation reads half."""
    if not all(node >= 0 and Trait.AVERAGES in classes.nodes[node].entry.traits for node in nodes):
        return False
    read_half = any(
        classes.nodes[reader].kind is Kind.ALLOW and painting.compute[reader] is Paint.HALF
        for reader, _ in graph.consumers[value]
    )
    if not read_half:
        return False
    terms = _terms(graph, classes, painting, value)
    return bool(terms) and all(Trait.PARTS in classes.nodes[term].entry.traits for term in terms)


def _is_sum_of_dots(
    graph: Graph, classes: Classes, painting: Painting, value: int, nodes: Sequence[int]
) -> bool:
    """True if a value adds up several dots, and several of ``nodes`` read it, none of them half."""
    if len(set(nodes)) < 2 or min(nodes) < 0:
        return False
    if any(painting.compute[reader] is Paint.HALF for reader, _ in graph.consumers[value]):
        return False
    terms = _terms(graph, classes, painting, value)
    return len(terms) > 1 and all(classes.nodes[term].kind is Kind.ALLOW for term in terms)


def _terms(graph: Graph, classes: Classes, painting: Painting, value: int) -> set[int]:
    """The operations whose results a value adds up, moved at most; empty if not all are half."""
    stack, found = [value], set[int]()
    seen: set[int] = set()
    while stack:
        index = stack.pop()
        if index in seen:
            continue
        seen.add(index)
        producer = graph.values[index].producer
        if producer < 0 or painting.compute[producer] is not Paint.HALF:
            return set()
        node, entry = graph.nodes[producer], classes.nodes[producer].entry
        if Trait.ADDS in entry.traits:
            stack.extend(node.inputs)
        elif Trait.RESHAPES in node.traits:
            stack.append(node.inputs[0])
        else:
            found.add(producer)
    return found


def _is_literal(value: Value) -> bool:
    return value.constant is not None and value.producer < 0 and value.size == 1


def _body_of_cast(graph: Graph, defined: int, read: int) -> tuple[int, list[int]]:
    """Where a cast of a value defined in one body and read in another stands.

    Returns:
        The body of the cast, and the loops between it and the reader.
    """
    around = set()
    body = defined
    while body >= 0:
        around.add(body)
        body = graph.bodies[body].parent
    loops: list[int] = []
    body = read
    while body not in around:
        if graph.bodies[body].kind is BodyKind.BARRIER:
            return body, loops
        loops.append(body)
        body = graph.bodies[body].parent
    return body, loops
