"""Plans casts: finds the values that are read in another precision than they are stored in.

All readers of a value in one precision and body share one cast. A value that does not change inside
a loop is cast once, before the loop. A body that takes its operands as they are stored (a branch, a
recomputed region) casts inside.

XLA fuses a cast to float32 into the kernels around it, which sometimes costs memory traffic:

- If several operations widen the half result of a dot or a copy, or an operand of dots, XLA widens
  it once and writes the float32 array for all of them (:data:`MATERIALIZE_WIDENED`). This excludes
  the result of a gather: each reader's kernel gathers for itself, and a barrier would only force a
  write.
- If dots read a value in half, sums read it in full (the gradient of a bias), and it is put
  together from parts (the gradient of slices: padded and added), XLA removes the rounding for the
  sum, so it puts the parts together twice (:data:`MATERIALIZE_PARTS`).
- If a value is the sum of several dots (the gradient upstream of queries, keys and values), several
  operations widen it and none reads it in half, the last dot's kernel writes the sum in float32
  (:data:`MATERIALIZE_PARTS`).

In these cases the readers widen the half array that is in memory, through a barrier.
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

MATERIALIZE_WIDENED, MATERIALIZE_PARTS = "materialize_widened", "materialize_parts"
"""The names of the optimizations in which readers widen a half value that is in memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cast:
    """One cast.

    Attributes:
        to: the precision of its result.
        body: index of the body in which it runs.
        readers: nodes that read the result; -1 for an output of the program.
        free: True for a scalar constant, whose cast happens while tracing.
        exact: True for a cast to full of a value from which an operation selects in half. A
            compiler may remove the rounding of a value that is rounded and widened again. Then
            ``x - max(x)`` would be above 0, or far below it for every element.
        materialized: for a cast to full of a half value that its readers read from memory,
            the name of the optimization: :data:`MATERIALIZE_WIDENED`,
            :data:`MATERIALIZE_PARTS` or that of ``optimize/row_statistics.py``; empty for
            most.
    """

    value: int
    to: Paint
    body: int
    readers: tuple[int, ...]
    free: bool
    exact: bool
    materialized: str


@dataclasses.dataclass(frozen=True, slots=True)
class CastPlan:
    """All casts of a painting.

    Attributes:
        casts: the casts, in program order of their first reader.
        hoisted: for each loop body, the (value, precision) pairs of casts that run outside of it
            and whose results it reads.
    """

    casts: tuple[Cast, ...]
    hoisted: dict[int, tuple[tuple[int, Paint], ...]]


def plan_casts(
    graph: Graph, classes: Classes, painting: Painting, on: frozenset[str] = frozenset()
) -> CastPlan:
    """Plans the casts that ``painting`` needs.

    Args:
        graph: the program.
        classes: the class of each node.
        painting: the precisions.
        on: the names of the optimizations in effect.

    Returns:
        The fewest casts for these precisions.
    """
    readers: dict[tuple[int, Paint, int], list[int]] = {}
    hoisted: dict[int, dict[tuple[int, Paint], None]] = {}
    stored, full = [graph.stored(painting.store, value) for value in graph.values], Paint.FULL
    for node in graph.nodes:
        computes = painting.compute[node.index]
        for value, may_be_half in zip(node.inputs, node.half_inputs, strict=True):
            want = computes if may_be_half else full
            if stored[value] is want or not graph.values[value].paintable:
                continue
            body, loops = body_of_cast(graph, graph.values[value].body, node.body)
            readers.setdefault((value, want, body), []).append(node.index)
            for loop in loops:
                hoisted.setdefault(loop, {})[value, want] = None
    for value, boundary in graph.outputs:
        output = graph.values[value]
        wants = {Boundary.FULL: Paint.FULL, Boundary.HALF: Paint.HALF}.get(boundary)
        if not output.paintable or wants is None:
            continue
        if stored[value] is not wants:
            readers.setdefault((value, wants, 0), []).append(-1)
    selected = _selected_in_half(graph, classes, painting)
    casts: list[Cast] = []
    for (value, to, body), nodes in readers.items():
        materialized = ""
        if to is Paint.FULL:
            materialized = _materialized_by(graph, classes, painting, value, nodes, on)
        free = _is_literal(graph.values[value])
        exact = to is Paint.FULL and value in selected
        casts.append(Cast(value, to, body, tuple(nodes), free, exact, materialized))
    return CastPlan(tuple(casts), {loop: tuple(pairs) for loop, pairs in hoisted.items()})


def _materialized_by(
    graph: Graph,
    classes: Classes,
    painting: Painting,
    value: int,
    nodes: Sequence[int],
    on: frozenset[str],
) -> str:
    """Returns the optimization by which ``nodes`` read a half value from memory, if any."""
    several = len({node for node in nodes if node >= 0}) > 1
    if MATERIALIZE_WIDENED in on and (
        (several and _is_in_memory(graph, classes, value)) or _is_operand(graph, painting, value)
    ):
        return MATERIALIZE_WIDENED
    if MATERIALIZE_PARTS in on and (
        _are_sums_of_parts(graph, classes, painting, value, nodes)
        or _is_sum_of_dots(graph, classes, painting, value, nodes)
    ):
        return MATERIALIZE_PARTS
    return ""


def casting_inside(plan: CastPlan, graph: Graph) -> set[int]:
    """Returns nodes that read a cast inside a body that takes its operands as they are stored."""
    casts = [cast for cast in plan.casts if not cast.free]
    barriers = [c for c in casts if graph.bodies[c.body].kind is BodyKind.BARRIER]
    return {reader for cast in barriers for reader in cast.readers if reader >= 0}


def _selected_in_half(graph: Graph, classes: Classes, painting: Painting) -> set[int]:
    """Returns the values from which an operation selects in half."""
    return {
        value
        for node in graph.nodes
        if Trait.SELECTS in classes.nodes[node.index].entry.traits
        and painting.compute[node.index] is Paint.HALF
        for value in node.inputs
    }


def _is_operand(graph: Graph, painting: Painting, value: int) -> bool:
    """Returns True if a value is stored half because dots read it in half."""
    producer = graph.values[value].producer
    return producer >= 0 and painting.rules[producer] is Rule.OPERAND


MULTIPLE = 8
"""XLA pads half dots so that rows and columns are multiples of this, which Tensor Cores need
(NVIDIA, "Matrix Multiplication Background User's Guide")."""
_SIZES_OF_DOT = 4
"""A dot has four sizes: the number of matrix products, rows, terms and columns."""


def _is_in_memory(graph: Graph, classes: Classes, value: int) -> bool:
    """Checks if a value comes, moved at most, from an operation that no kernel extends across.

    Kernels put parts together, gather, and slice the result of a padded dot while they read, so the
    results of these operations are not in memory.
    """
    current = graph.values[value]
    while current.producer >= 0:
        node = graph.nodes[current.producer]
        entry = classes.nodes[node.index].entry
        if entry.pointwise is Pointwise.NO:
            return node.traits.isdisjoint({Trait.GATHERS, Trait.PARTS}) and not _is_padded_dot(node)
        source = graph.values[node.inputs[0]]
        if Trait.RESHAPES not in node.traits or source.size != current.size:
            return False
        current = source
    return False


def _is_padded_dot(node: Node) -> bool:
    """Returns True if a compiler pads a half dot, and slices its result.

    Readers slice inside of their kernels. Materialized, the slice would be a kernel of its own.
    """
    sizes = node.attributes.get("sizes")
    if not isinstance(sizes, tuple) or len(sizes) != _SIZES_OF_DOT:
        return False
    _, rows, _, columns = sizes
    return rows % MULTIPLE > 0 or columns % MULTIPLE > 0


def _are_sums_of_parts(
    graph: Graph, classes: Classes, painting: Painting, value: int, nodes: Sequence[int]
) -> bool:
    """Checks if all ``nodes`` sum up a value whose parts an allow operation reads in half."""
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
    """Checks if a value is a sum of dots with several readers, none of them in half."""
    if len(set(nodes)) < 2 or min(nodes) < 0:
        return False
    if any(painting.compute[reader] is Paint.HALF for reader, _ in graph.consumers[value]):
        return False
    terms = _terms(graph, classes, painting, value)
    return len(terms) > 1 and all(classes.nodes[term].kind is Kind.ALLOW for term in terms)


def _terms(graph: Graph, classes: Classes, painting: Painting, value: int) -> set[int]:
    """Returns the half operations whose sum a value is, through moves; empty for others."""
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


def body_of_cast(graph: Graph, defined: int, read: int) -> tuple[int, list[int]]:
    """Finds the body for a cast of a value that is defined in one body and read in another.

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
