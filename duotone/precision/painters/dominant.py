"""duotone's painter; :mod:`duotone.precision.rules` lists its rules.

::

    allow operations are half                                     (allow)
    deny operations are full; taint runs forward from them        (deny, taint)
        along dominant operands, and stops at allow
    half runs forward from allow operations                       (downstream)
        along dominant operands, through infer and clear that are not tainted
    nodes that lead to an output with no allow operation in       (state)
        between are full again, if only such nodes read them
    arithmetic with a float32 operand next to the half one        (mixed, full_readers)
        computes full and stores half, and so does a sum of such arithmetic for dots;
        arithmetic whose one reader computes full is full itself, and so is a product
        with full readers only
    values that only dots and sums read are stored half           (operand)
    an allow operation whose readers are all full keeps its       (wide)
        float32 accumulator
    nodes that move, select or clip a full value for full         (full_readers)
        readers are full
    casts move backward through clear operations that commute     (upstream)
        with them, if all readers are half; not through those that
        repeat elements, whose transpose would then sum in half

The readers of a value are always those after nodes that move, select, clip or compare it, so an
identity between two operations changes nothing. Each step is one work list over the graph.

References:
    Two choices were measured, see ``docs/measured.md``: dominant operands, and painting all nodes
    downstream of allow operations instead of only those between two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from duotone.graph.graph import SMALL, Boundary, Graph, Node, Paint
from duotone.ops.entries import PASSIVE, Kind, Taint
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.painters.circles import store_circles_half
from duotone.precision.painters.mixed import (
    compute_full_store_half,
    follow_full,
    store_operands_half,
)
from duotone.precision.painters.painting import Canvas, Painting, may_store_half
from duotone.precision.painters.taints import spread_taint
from duotone.precision.rules import Rule

_COMMUTES, _NOT_MOVING = Trait.COMMUTES, frozenset({Trait.SELECTS, Trait.REPEATS})


def paint_dominant(graph: Graph, classes: Classes, off: Collection[str] = ()) -> Painting:
    """Paints a graph by duotone's rules.

    Args:
        graph: the program.
        classes: the class of each node.
        off: rules of :data:`STEPS` that are switched off.

    Returns:
        A precision and a rule for every node.
    """
    canvas = Canvas(graph, classes)
    paint_allow(canvas)
    tainted = spread_taint(canvas, through_denied=Rule.MIXED in off)
    spread_half(canvas, tainted)
    for rule, step in STEPS.items():
        if rule not in off:
            step(canvas)
    name_the_rest(canvas, tainted)
    return canvas.finish()


def paint_allow(canvas: Canvas) -> None:
    """Paints half what the allow list names."""
    for index in sorted(canvas.classes.allowed):
        if canvas.open[index]:
            canvas.paint(index, Paint.HALF, Rule.ALLOW)


def spread_half(canvas: Canvas, tainted: list[Taint]) -> None:
    """Paints nodes half forward along dominant operands."""
    graph, half = canvas.graph, Paint.HALF
    queue = deque(value.index for value in graph.values if canvas.stored(value.index) is half)
    while queue:
        for reader, slot in canvas.consumers[queue.popleft()]:
            node = graph.nodes[reader]
            if canvas.compute[reader] is half or not canvas.open[reader]:
                continue
            if canvas.kind(reader) not in PASSIVE or tainted[reader]:
                continue
            if not node.half_inputs[slot] or not _becomes_half(canvas, node, slot):
                continue
            asked = canvas.kind(reader) is Kind.INFER and Trait.ADDS_INTO in node.traits
            detail = canvas.entry(reader).reason if asked else ""  # no table infers such a sum
            canvas.paint(reader, half, Rule.DOWNSTREAM, detail)
            queue.extend(v for v in node.outputs if canvas.stored(v) is half)


def _becomes_half(canvas: Canvas, node: Node, slot: int) -> bool:
    """Returns True if ``node`` becomes half because the operand in ``slot`` is."""
    entry = canvas.entry(node.index)
    if canvas.dominates(node, slot, parts=Trait.PARTS in entry.traits):
        return True
    pairs = zip(node.inputs, node.half_inputs, strict=True)
    varying = [v for v, ok in pairs if ok and canvas.graph.values[v].constant is None]
    return all(canvas.stored(value) is Paint.HALF for value in varying)


def keep_state_full(canvas: Canvas) -> None:
    """Paints full the nodes that lead to an output with no allow operation in between.

    The canvas remembers all these nodes, including those that were full before.
    """
    state = _state(canvas)
    for index in sorted(state):
        if canvas.compute[index] is Paint.HALF and canvas.rules[index] is Rule.DOWNSTREAM:
            if _sums_inside(canvas, canvas.graph.nodes[index]):
                continue
            op = canvas.graph.nodes[index].op
            canvas.paint(index, Paint.FULL, Rule.STATE, f"{op} leads to an output")
    canvas.state = frozenset(state)


def _sums_inside(canvas: Canvas, node: Node) -> bool:
    """Returns True for a sum that its kernel computes in float32, like a dot, over many elements.

    Its result is rounded once. In float32 its large operand would be cast instead.
    """
    values = canvas.graph.values
    shrinks = values[node.outputs[0]].size * SMALL <= values[node.inputs[0]].size
    inside = Trait.SUMS in node.traits and Trait.ADDS_INTO not in node.traits
    return inside and canvas.kind(node.index) is Kind.INFER and shrinks


def _state(canvas: Canvas) -> set[int]:
    """Returns the nodes that are state.

    The search starts with all nodes from which a value reaches an output without an allow operation
    and without getting smaller on the way. (A bias gradient is a sum over an activation's gradient,
    and that activation is not state.) Then it repeatedly removes nodes that a half operation
    outside of the set reads too, unless they are outputs themselves. A removed node is an
    activation that happens to be returned late.
    """
    graph = canvas.graph
    outputs = {value for value, boundary in graph.outputs if boundary is Boundary.FULL}
    reached = _leading_to(canvas, outputs, _computes)
    state = {index for index in reached if _computes(canvas, graph.nodes[index])}
    returned = _leading_to(canvas, outputs, _is_moving)
    queue, waiting = sorted(state - returned), state - returned  # readers first
    while queue:
        index = queue.pop()
        waiting.discard(index)
        if index not in state:
            continue
        readers = canvas.readers(graph.nodes[index].outputs, but=state)
        only_state = all(r in state or canvas.compute[r] is Paint.FULL for r in readers)
        if only_state and any(r in state for r in readers):
            continue
        state.discard(index)
        producers = (graph.values[value].producer for value in graph.nodes[index].inputs)
        again = {p for p in producers if p in state} - waiting - returned
        queue += again
        waiting |= again
    return state


def _maker(graph: Graph, value: int) -> int:
    """Returns the node whose precision decides on a value, or -1.

    The statistics of a norm and their gradients are float32 whatever the precision of the node's
    other results.
    """
    found = graph.values[value]
    if found.producer < 0 or not found.paintable:
        return -1
    node = graph.nodes[found.producer]
    next_to_half = any(node.half_outputs) and not node.half_outputs[node.outputs.index(value)]
    return -1 if next_to_half else found.producer


def _computes(canvas: Canvas, node: Node) -> bool:
    return canvas.kind(node.index) is not Kind.ALLOW


def _leading_to(
    canvas: Canvas, outputs: set[int], passes: Callable[[Canvas, Node], bool]
) -> set[int]:
    """Returns the nodes from which a value reaches an output without getting smaller.

    Pieces of a value (slices, parts of a split) count together: all of them are as large as it.

    Args:
        canvas: precisions.
        outputs: the outputs, as values.
        passes: whether the walk goes on upstream of a node.
    """
    graph, values = canvas.graph, canvas.graph.values
    found: set[int] = set()
    taken: dict[int, int] = {}
    queue = deque(maker for v in outputs if (maker := _maker(graph, v)) >= 0)
    while queue:
        index = queue.popleft()
        node = graph.nodes[index]
        if index in found:
            continue
        found.add(index)
        if not passes(canvas, node):
            continue
        sizes = [values[v].size for v in node.outputs]
        takes = _is_moving(canvas, node)
        for value in node.inputs:
            operand = values[value]
            if takes:
                taken[value] = taken.get(value, 0) + sum(sizes)
            whole = operand.size <= max(0, *sizes, taken.get(value, 0))
            if whole and (maker := _maker(graph, value)) >= 0:
                queue.append(maker)
    return found


def _is_moving(canvas: Canvas, node: Node) -> bool:
    """Returns True if a node returns all or a part of one large value, or puts parts together."""
    traits, values = canvas.entry(node.index).traits, canvas.graph.values
    if _COMMUTES not in traits or not traits.isdisjoint(_NOT_MOVING):
        return False
    read = [values[v] for v in node.inputs if values[v].paintable and values[v].constant is None]
    return Trait.PARTS in traits or sum(value.size > 1 for value in read) == 1


def move_casts_up(canvas: Canvas) -> None:
    """Paints a clear operation half if it commutes with casts and all its readers are half."""
    store_circles_half(canvas)
    graph, values = canvas.graph, canvas.graph.values
    kept = {value for value, boundary in graph.outputs if boundary is Boundary.FULL}
    half = [n.index for n in graph.nodes if canvas.compute[n.index] is Paint.HALF]
    queue = deque(half)
    while queue:
        for value in graph.nodes[queue.pop()].inputs:
            index = values[value].producer
            if index < 0 or canvas.compute[index] is Paint.HALF or not canvas.open[index]:
                continue
            if _can_take_the_cast(canvas, graph.nodes[index], kept):
                canvas.paint(index, Paint.HALF, Rule.UPSTREAM)
                queue.append(index)


def _can_take_the_cast(canvas: Canvas, node: Node, kept: set[int]) -> bool:
    """Returns True if casting the operands of ``node`` gives the same result and costs no more."""
    values = canvas.graph.values
    if canvas.kind(node.index) is not Kind.CLEAR or not node.paintable:
        return False
    if (
        Trait.COMMUTES not in canvas.entry(node.index).traits
        or canvas.rules[node.index] is Rule.STATE
    ):
        return False
    made = [value for value in node.outputs if values[value].paintable]
    if not may_store_half(node, values) or any(value in kept for value in made):
        return False
    for value in made:
        for reader, slot in canvas.consumers[value]:
            reads_half = canvas.graph.nodes[reader].half_inputs[slot]
            if canvas.compute[reader] is not Paint.HALF or not reads_half:
                return False
    if Trait.ITERATES in node.traits:
        # A cast of a whole argument (stacked weights) before the loop would keep a second copy of
        # it. A result that only loops read may be stored half at once.
        stack = node.inputs[0]
        readers = [canvas.graph.nodes[reader] for reader, _ in canvas.consumers[stack]]
        return values[stack].producer >= 0 and all(
            Trait.ITERATES in reader.traits for reader in readers
        )
    read = [
        values[v].size
        for v, ok in zip(node.inputs, node.half_inputs, strict=True)
        if ok and canvas.stored(v) is Paint.FULL
    ]
    if Trait.SHARDS in node.traits:  # each device casts its own part
        return True
    # Only one branch runs, so only one of the casts before a join runs.
    cost = max(read, default=0) if Trait.JOINS in node.traits else sum(read)
    size = sum(values[v].size for v in made)
    return cost == size or (cost < size and Trait.REPEATS not in canvas.entry(node.index).traits)


def keep_wide(canvas: Canvas) -> None:
    """Lets an allow operation that only full nodes read keep its float32 accumulator.

    The operation must lead to an output. Elsewhere, storing half writes fewer bytes, and the
    reader's cast is fused at no cost.
    """
    graph = canvas.graph
    outputs = {value for value, boundary in graph.outputs if boundary is Boundary.FULL}
    for index in sorted(canvas.classes.allowed):
        node = graph.nodes[index]
        if canvas.rules[index] is not Rule.ALLOW or Trait.WIDE not in canvas.entry(index).traits:
            continue
        readers = canvas.readers(node.outputs)
        if any(canvas.compute[r] is Paint.HALF for r in readers):
            continue
        if _leads_to_an_output(canvas, node, outputs):
            canvas.store[index] = Paint.FULL
            canvas.rules[index] = Rule.WIDE


def _leads_to_an_output(canvas: Canvas, node: Node, outputs: Collection[int]) -> bool:
    """Returns True if a result is an output, moved or not, or arithmetic of the state reads it."""
    queue = list(node.outputs)
    while queue:
        value = queue.pop()
        if value in outputs:
            return True
        for reader, _ in canvas.consumers[value]:
            if reader in canvas.state and canvas.kind(reader) is Kind.INFER:
                return True
            if reader in canvas.state and canvas.kind(reader) is Kind.CLEAR:
                queue += canvas.graph.nodes[reader].outputs
    return False


def name_the_rest(canvas: Canvas, tainted: list[Taint]) -> None:
    """Sets the rule of nodes that stayed full because no rule made them half."""
    for index, rule in enumerate(canvas.rules):
        if rule is None:
            canvas.rules[index] = Rule.TAINT if tainted[index] else Rule.NO_HALF_OPERAND
            if tainted[index] is Taint.EVERYWHERE:
                canvas.details[index] = "half may not hold the numbers that it reads"


STEPS: Mapping[Rule, Callable[[Canvas], None]] = MappingProxyType(
    {
        Rule.STATE: keep_state_full,
        Rule.MIXED: compute_full_store_half,
        Rule.OPERAND: store_operands_half,
        Rule.WIDE: keep_wide,
        Rule.FULL_READERS: follow_full,
        Rule.UPSTREAM: move_casts_up,
    }
)
"""The steps after half and taint, by rule, in order."""
