"""duotone's painter; the rules are those of :mod:`duotone.precision.rules`.

::

    allow operations are half                                     (allow)
    deny operations are full; taint runs forward from them        (deny, taint)
        along dominant operands, and stops at allow
    half runs forward from allow operations                       (downstream)
        along dominant operands, through infer and clear that are not tainted
    what leads to an output with no allow operation in between    (state)
        is full again, if only such operations read it
    arithmetic with a float32 operand beside the half one         (mixed, inner)
        computes full and stores half, and so does a sum of such arithmetic for dots;
        arithmetic whose one reader computes full is full itself, and so is a product
        that only full ones read
    what only dots and sums read is stored half
    an allow operation whose readers are all full keeps its float32 accumulator
    what moves, selects or clips a full value for full readers    (inner)
        is full
    casts move backward through clear operations that commute     (fewer bytes cast)
        with them, if all readers are half; not through those that
        repeat elements, whose transpose would then add up in half

In all of this the readers of a value are those behind what only moves, selects, clips or compares
it: an identity that somebody writes between two operations changes nothing. Each step is one work
list over the graph.

References:
    Dominant operands, and painting everything downstream of allow instead of only what lies between
    allow operations, were measured: see ``docs/measured.md``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from duotone.graph.graph import Boundary, Graph, Node, Paint
from duotone.ops.entries import PASSIVE, Kind, Taint
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.painters.mixed import (
    compute_full_store_half,
    follow_full,
    store_operands_half,
)
from duotone.precision.painters.painting import Canvas, Painting
from duotone.precision.rules import Rule
from duotone.precision.safety.terms import following


def paint_dominant(graph: Graph, classes: Classes, off: Collection[str] = ()) -> Painting:
    """Paints a graph by duotone's rules.

    Args:
        graph: the program.
        classes: what each node is.
        off: rules of :data:`STEPS` that are switched off.

    Returns:
        A precision and a rule for every node.
    """
    canvas = Canvas(graph, classes)
    paint_allow(canvas)
    tainted = spread_taint(canvas)
    spread_half(canvas, tainted)
    for rule, step in STEPS.items():
        if rule not in off:
            step(canvas)
    name_the_rest(canvas, tainted)
    return canvas.finish()


def paint_allow(canvas: Canvas) -> None:
    """Paints half what the allow list names."""
    for node in canvas.graph.nodes:
        if canvas.open[node.index] and canvas.kind(node.index) is Kind.ALLOW:
            canvas.paint(node.index, Paint.HALF, Rule.ALLOW)


def spread_taint(canvas: Canvas) -> list[Taint]:
    """Denies, and spreads taints. Returns the taint of each node's results."""
    nodes, classes = canvas.graph.nodes, canvas.classes.nodes
    taints = [Taint.NONE] * len(nodes)
    inside = _in_networks(canvas)
    queue: deque[int] = deque()
    for node in nodes:
        if canvas.open[node.index] and canvas.kind(node.index) is Kind.DENY:
            found = classes[node.index]
            canvas.paint(node.index, Paint.FULL, found.rule or Rule.DENY, found.entry.reason)
            if found.entry.taint and (found.rule is not None or node.index not in inside):
                taints[node.index] = found.entry.taint
                queue.append(node.index)
    while queue:
        index = queue.popleft()
        for value in nodes[index].outputs:
            if not canvas.graph.values[value].paintable:
                continue
            for reader, slot in canvas.consumers[value]:
                arriving = _arriving(canvas, nodes[reader], slot, taints[index])
                if arriving > taints[reader]:
                    taints[reader] = arriving
                    queue.append(reader)
    return taints


def _in_networks(canvas: Canvas) -> set[int]:
    """Short dots that follow from allow operations: inside of a network (LoRA, a head).

    Such a dot computes full and taints nothing: what is added to its result may be a residual
    stream.
    """
    nodes = canvas.graph.nodes
    short = {node.index for node in nodes if _SHORT in node.traits}
    if not short:
        return short
    after = following(canvas.graph, lambda node: canvas.kind(node.index) is Kind.ALLOW)
    return {index for index in short if not after.isdisjoint(nodes[index].inputs)}


_SHORT = Trait.SHORT  # bound once: looking up a member takes its time


def _arriving(canvas: Canvas, node: Node, slot: int, taint: Taint) -> Taint:
    """The taint that ``node`` takes over from the operand in ``slot``."""
    if not canvas.open[node.index] or canvas.kind(node.index) not in PASSIVE:
        return Taint.NONE
    if not node.half_inputs[slot]:
        return Taint.NONE
    entry = canvas.entry(node.index)
    if taint is Taint.EVERYWHERE:
        return taint
    if taint is Taint.ADDITIVE and (Trait.COMMUTES in entry.traits or Trait.ADDS in entry.traits):
        return taint
    if slot in canvas.dominant(node, parts=Trait.PARTS in entry.traits):
        return Taint.DOMINANT
    return Taint.NONE


def spread_half(canvas: Canvas, tainted: list[Taint]) -> None:
    """Half runs forward along dominant operands."""
    graph = canvas.graph
    queue = deque(value.index for value in graph.values if canvas.stored(value.index) is Paint.HALF)
    while queue:
        for reader, slot in canvas.consumers[queue.popleft()]:
            node = graph.nodes[reader]
            if canvas.compute[reader] is Paint.HALF or not canvas.open[reader]:
                continue
            if canvas.kind(reader) not in PASSIVE or tainted[reader]:
                continue
            if not node.half_inputs[slot] or not follows(canvas, node, slot):
                continue
            canvas.paint(reader, Paint.HALF, Rule.DOWNSTREAM)
            queue.extend(v for v in node.outputs if canvas.stored(v) is Paint.HALF)


def follows(canvas: Canvas, node: Node, slot: int) -> bool:
    """True if ``node`` becomes half because the operand in ``slot`` is."""
    entry = canvas.entry(node.index)
    if slot in canvas.dominant(node, parts=Trait.PARTS in entry.traits):
        return True
    pairs = zip(node.inputs, node.half_inputs, strict=True)
    varying = [v for v, ok in pairs if ok and canvas.graph.values[v].constant is None]
    return all(canvas.stored(value) is Paint.HALF for value in varying)


def keep_state_full(canvas: Canvas) -> None:
    """Paints full what leads to an output with no allow operation in between.

    The nodes that are state, those that were full before included, are kept on the canvas.

    First everything from which an output is reached without an allow operation and without getting
    smaller on the way (a bias gradient is a sum over an activation's gradient; that activation is
    no state). Then, until nothing changes, what a half operation outside of this reads as well is
    taken out, unless it is itself an output: it is an activation that happens to be returned late.
    """
    graph = canvas.graph
    outputs = {value for value, boundary in graph.outputs if boundary is Boundary.FULL}

    def calculates(node: Node) -> bool:
        return canvas.kind(node.index) is not Kind.ALLOW

    def is_passive(node: Node) -> bool:
        return canvas.kind(node.index) in PASSIVE or Trait.STRUCTURAL in node.traits

    reached = _before(canvas, outputs, calculates) | _before(canvas, outputs, is_passive, True)
    reaching = {i for i in reached if calculates(graph.nodes[i])}
    returned = _before(canvas, outputs, lambda node: _is_moving(canvas, node), True)
    queue = deque(reaching)
    while queue:
        index = queue.popleft()
        if index not in reaching or index in returned:
            continue
        readers = canvas.readers(graph.nodes[index].outputs, but=reaching)
        only_state = all(canvas.compute[r] is Paint.FULL or r in reaching for r in readers)
        if only_state and any(r in reaching for r in readers):
            continue
        reaching.discard(index)
        queue.extend(
            producer
            for v in graph.nodes[index].inputs
            if (producer := graph.values[v].producer) in reaching
        )
    for index in sorted(reaching):
        node = graph.nodes[index]
        if canvas.compute[index] is Paint.HALF and canvas.rules[index] is Rule.DOWNSTREAM:
            canvas.paint(index, Paint.FULL, Rule.STATE, f"{node.op} leads to an output")
    canvas.state = frozenset(reaching)


def _before(
    canvas: Canvas, outputs: set[int], passes: Callable[[Node], bool], pieces: bool = False
) -> set[int]:
    """Nodes from which an output is reached without getting smaller, through what passes.

    Args:
        canvas: precisions.
        outputs: values.
        passes: what is looked behind.
        pieces: whether pieces (slices, parts of a split) that are as large together as what they
            are taken from are that again. Not where something is added up on the way: the rows of
            an embedding that a batch reads are activations.
    """
    graph, values = canvas.graph, canvas.graph.values
    found: set[int] = set()
    taken: dict[int, int] = {}
    queue = deque(p for v in outputs if (p := values[v].producer) >= 0 and values[v].paintable)
    while queue:
        index = queue.popleft()
        node = graph.nodes[index]
        if index in found:
            continue
        found.add(index)
        if not passes(node):
            continue
        result = max((values[v].size for v in node.outputs), default=0)
        takes = pieces and _is_moving(canvas, node)
        for value in node.inputs:
            held = values[value]
            if takes:
                taken[value] = taken.get(value, 0) + sum(values[v].size for v in node.outputs)
            whole = held.size <= max(result, taken.get(value, 0))
            if held.producer >= 0 and held.paintable and whole:
                queue.append(held.producer)
    return found


def _is_moving(canvas: Canvas, node: Node) -> bool:
    """True if a node gives all or a part of one large value, or puts parts together."""
    entry, values = canvas.entry(node.index), canvas.graph.values
    read = [values[v] for v in node.inputs if values[v].paintable and values[v].constant is None]
    one = Trait.PARTS in entry.traits or sum(value.size > 1 for value in read) == 1
    return (
        one
        and Trait.COMMUTES in entry.traits
        and Trait.SELECTS not in entry.traits
        and Trait.REPEATS not in entry.traits
    )


def move_casts_up(canvas: Canvas) -> None:
    """A clear operation that commutes with casts becomes half if all its readers are."""
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
    """True if casting the operands of ``node`` gives the same and costs no more."""
    values = canvas.graph.values
    if canvas.kind(node.index) is not Kind.CLEAR or not node.paintable:
        return False
    if (
        Trait.COMMUTES not in canvas.entry(node.index).traits
        or canvas.rules[node.index] is Rule.STATE
    ):
        return False
    if not all(node.half_outputs) or any(value in kept for value in node.outputs):
        return False
    for value in node.outputs:
        for reader, slot in canvas.consumers[value]:
            reads_half = canvas.graph.nodes[reader].half_inputs[slot]
            if canvas.compute[reader] is not Paint.HALF or not reads_half:
                return False
    if Trait.ITERATES in node.traits:
        # A cast of a whole argument (stacked weights) outside the loop would keep a second copy of
        # it. What an operation of this program makes for loops only may be stored half at once.
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
    # Only one branch runs, so only one of the casts before a join does.
    cost = max(read, default=0) if Trait.JOINS in node.traits else sum(read)
    made = sum(values[v].size for v in node.outputs)
    return cost == made or (cost < made and Trait.REPEATS not in canvas.entry(node.index).traits)


def keep_wide(canvas: Canvas) -> None:
    """An allow operation read only in full hands on its float32 accumulator.

    Only where it leads to an output: elsewhere half is less to write, and a reader's cast free.
    """
    graph = canvas.graph
    outputs = {value for value, boundary in graph.outputs if boundary is Boundary.FULL}
    for node in graph.nodes:
        if (
            canvas.rules[node.index] is not Rule.ALLOW
            or Trait.WIDE not in canvas.entry(node.index).traits
        ):
            continue
        readers = canvas.readers(node.outputs)
        if any(canvas.compute[r] is Paint.HALF for r in readers):
            continue
        if _leads_to_an_output(canvas, node, outputs):
            canvas.store[node.index] = Paint.FULL
            canvas.rules[node.index] = Rule.WIDE


def _leads_to_an_output(canvas: Canvas, node: Node, outputs: Collection[int]) -> bool:
    """True if a result is an output, moved or not, or arithmetic of the state reads it."""
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
    """Nodes that stayed full because no rule made them half."""
    for index, rule in enumerate(canvas.rules):
        if rule is None:
            canvas.rules[index] = Rule.TAINT if tainted[index] else Rule.NO_HALF_OPERAND


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
"""By rule, in order: what follows once half and taint have run."""
