"""duotone's painter; the rules have the names of ``duotone.graph.painting.RULES``.

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
    casts move backward through clear operations that commute     (fewer bytes cast)
        with them, if all readers are half; not through those that
        repeat elements, whose transpose would then add up in half
    an allow operation whose readers are all full keeps its float32 accumulator

Each step is one work list over the graph: linear in its edges.

References:
    Dominant operands, and painting everything downstream of allow instead of only what lies between
    allow operations, were measured: see ``docs/architecture.md``.
"""

from __future__ import annotations

from collections import deque

from duotone.graph.classes import Classes
from duotone.graph.graph import SMALL, STRUCTURAL, Boundary, Graph, Node, Paint
from duotone.graph.lists import Kind, Pointwise, Taint
from duotone.graph.painting import Canvas, Painting

PASSIVE = (Kind.INFER, Kind.CLEAR)


def paint_dominant(graph: Graph, classes: Classes) -> Painting:
    """Paints a graph by duotone's rules.

    Args:
        graph: the program.
        classes: what each node is.

    Returns:
        A colour and a rule for every node.
    """
    canvas = Canvas(graph, classes)
    paint_allow(canvas)
    tainted = spread_taint(canvas)
    spread_half(canvas, tainted)
    keep_state_full(canvas)
    compute_full_store_half(canvas)
    store_operands_half(canvas)
    move_casts_up(canvas)
    keep_wide(canvas)
    name_the_rest(canvas, tainted)
    return canvas.finish()


def paint_allow(canvas: Canvas) -> None:
    """What the allow list names."""
    for node in canvas.graph.nodes:
        if canvas.open[node.index] and canvas.kind(node.index) is Kind.ALLOW:
            canvas.paint(node.index, Paint.HALF, "allow")


def spread_taint(canvas: Canvas) -> list[Taint]:
    """Denies, and spreads taints. Returns the taint of each node's results."""
    nodes, classes = canvas.graph.nodes, canvas.classes.nodes
    taints = [Taint.NONE] * len(nodes)
    queue: deque[int] = deque()
    for node in nodes:
        if canvas.open[node.index] and canvas.kind(node.index) is Kind.DENY:
            found = classes[node.index]
            canvas.paint(node.index, Paint.FULL, found.rule or "deny", found.entry.reason)
            if found.entry.taint:
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


def _arriving(canvas: Canvas, node: Node, slot: int, taint: Taint) -> Taint:
    """The taint that ``node`` takes over from the operand in ``slot``."""
    if not canvas.open[node.index] or canvas.kind(node.index) not in PASSIVE:
        return Taint.NONE
    if not node.half_inputs[slot]:
        return Taint.NONE
    entry = canvas.classes.nodes[node.index].entry
    if taint is Taint.EVERYWHERE:
        return taint
    if taint is Taint.ADDITIVE and (entry.commutes or entry.additive):
        return taint
    if slot in canvas.dominant(node, parts=entry.parts):
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
            canvas.paint(reader, Paint.HALF, "downstream")
            queue.extend(v for v in node.outputs if canvas.stored(v) is Paint.HALF)


def follows(canvas: Canvas, node: Node, slot: int) -> bool:
    """Whether ``node`` becomes half because the operand in ``slot`` is."""
    entry = canvas.classes.nodes[node.index].entry
    if slot in canvas.dominant(node, parts=entry.parts):
        return True
    pairs = zip(node.inputs, node.half_inputs, strict=True)
    varying = [v for v, ok in pairs if ok and canvas.graph.values[v].constant is None]
    return all(canvas.stored(value) is Paint.HALF for value in varying)


def keep_state_full(canvas: Canvas) -> set[int]:
    """What leads to an output with no allow operation in between is computed full.

    Returns the nodes that are state, those that were full before included.

    First everything from which an output is reached without an allow operation and without getting
    smaller on the way (a bias gradient is a sum over an activation's gradient; that activation is
    no state). Then, until nothing changes, what a half operation outside of this reads as well is
    taken out, unless it is itself an output: it is an activation that happens to be returned late.
    """
    graph = canvas.graph
    outputs = {value for value, boundary in graph.outputs if boundary is Boundary.FULL}
    reaching = _reaching(canvas, outputs)
    queue = deque(reaching)
    while queue:
        index = queue.popleft()
        if index not in reaching or any(v in outputs for v in graph.nodes[index].outputs):
            continue
        readers = [r for v in graph.nodes[index].outputs for r, _ in canvas.consumers[v]]
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
        if canvas.compute[index] is Paint.HALF and canvas.rules[index] == "downstream":
            canvas.paint(index, Paint.FULL, "state", f"{node.op} leads to an output")
    return reaching


def _reaching(canvas: Canvas, outputs: set[int]) -> set[int]:
    """Nodes from which an output is reached without allow and without getting smaller."""
    graph, values = canvas.graph, canvas.graph.values
    found: set[int] = set()
    queue = deque(p for v in outputs if (p := values[v].producer) >= 0 and values[v].paintable)
    while queue:
        index = queue.popleft()
        if index in found or canvas.kind(index) is Kind.ALLOW:
            continue
        found.add(index)
        node = graph.nodes[index]
        result = max((values[v].size for v in node.outputs), default=0)
        for value in node.inputs:
            held = values[value]
            if held.producer >= 0 and held.paintable and held.size <= result:
                queue.append(held.producer)
    return found


def compute_full_store_half(canvas: Canvas) -> None:
    """Of arithmetic: what people write by hand in a layer norm.

    A statistic, a scale or a bias is small and float32; cast to half it would be rounded for
    nothing, since it is the large values that cost bytes. It also keeps its gradient (a sum over
    what it was broadcast to) in float32. Walks backward: readers first.
    """
    graph = canvas.graph
    outputs = {value for value, _ in graph.outputs}
    picked = _picked(canvas)
    for node in reversed(graph.nodes):
        index = node.index
        arithmetic = canvas.kind(index) is Kind.INFER
        unstored = arithmetic or node.op == "neg" or index in picked
        if canvas.rules[index] != "downstream" or not unstored:
            continue
        readers = [r for v in node.outputs for r, _ in canvas.consumers[v]]
        returned = any(v in outputs for v in node.outputs)
        all_full = not returned and all(_reads_at_once(canvas, node, r) for r in readers)
        mixed = arithmetic and (reads_full(canvas, node) or _adds_mixed(canvas, node, readers))
        alone = len(readers) == 1 or index in picked
        # With several readers where each of them may as well calculate it for itself.
        if all_full and (mixed or alone or _costs_nothing(canvas, node)):
            canvas.paint(index, Paint.FULL, "inner")
        elif mixed:
            canvas.paint(index, Paint.FULL, "mixed")
            canvas.store[index] = Paint.HALF


def _adds_mixed(canvas: Canvas, node: Node, readers: list[int]) -> bool:
    """Whether a node adds up what arithmetic with small full operands gives it alone, for dots.

    Two parts of the gradient behind a batch norm, three behind a cosine: rounded before they are
    added, what is left of them may be lost. Not within a longer sum (the residual stream behind a
    layer norm), which compilers then write in full.
    """
    if not canvas.classes.nodes[node.index].entry.additive:
        return False
    for_dots = _are_for_dots(canvas, node, set(readers), with_sums=False)
    return for_dots and all(_is_mixed(canvas, node, value) for value in node.inputs)


def _is_mixed(canvas: Canvas, node: Node, value: int) -> bool:
    """Whether arithmetic with small full operands, or a sum of it, makes it for ``node`` alone."""
    queue = [value]
    while queue:
        asked = queue.pop()
        producer = canvas.graph.values[asked].producer
        if producer < 0 or len(canvas.consumers[asked]) != 1:
            return False
        made, entry = canvas.graph.nodes[producer], canvas.classes.nodes[producer].entry
        arithmetic = canvas.kind(producer) is Kind.INFER and canvas.rules[producer] == "downstream"
        full = reads_full(canvas, made)
        if not (arithmetic and made.body == node.body and (full or entry.additive)):
            return False
        queue += () if full else made.inputs
    return True


def _picked(canvas: Canvas) -> set[int]:
    """What picks few elements of a large value (the maximum of rows), and what only moves these.

    To read the value in full costs no more there, and what is subtracted from it then need not see
    the same rounding of it.
    """
    graph = canvas.graph
    found: set[int] = set()
    for node in graph.nodes:
        entry = canvas.classes.nodes[node.index].entry
        if canvas.rules[node.index] != "downstream" or not entry.commutes:
            continue
        read = [graph.values[v] for v in node.inputs if graph.values[v].constant is None]
        size = max(graph.values[v].size for v in node.outputs)
        few = entry.selects and all(size * SMALL <= value.size for value in read)
        if few or (read and all(value.producer in found for value in read)):
            found.add(node.index)
    return found


def _costs_nothing(canvas: Canvas, node: Node) -> bool:
    """Whether each reader of ``node`` calculates it at no cost, instead of reading it.

    A sum of two large values is worth its bytes (a residual stream that several norms read); what
    differs from one large value by small ones (logits less their maximum) is read as that value.
    """
    entry, values = canvas.classes.nodes[node.index].entry, canvas.graph.values
    slots = canvas.dominant(node, parts=False)
    large = [slot for slot in slots if values[node.inputs[slot]].constant is None]
    return entry.pointwise is Pointwise.CHEAP and (not entry.additive or len(large) == 1)


def reads_full(canvas: Canvas, node: Node) -> bool:
    """Whether an operand of ``node`` that is no constant is stored full."""
    return any(
        canvas.stored(v) is Paint.FULL and canvas.graph.values[v].constant is None
        for v, ok in zip(node.inputs, node.half_inputs, strict=True)
        if ok
    )


def _reads_at_once(canvas: Canvas, node: Node, reader: int) -> bool:
    """Whether ``reader`` computes full right where ``node`` does, so that they are one kernel."""
    same_body = canvas.graph.nodes[reader].body == node.body
    known = canvas.graph.nodes[reader].op not in STRUCTURAL and canvas.open[reader]
    return same_body and known and canvas.compute[reader] is Paint.FULL


def store_operands_half(canvas: Canvas) -> None:
    """Of operands of allow operations: these are in memory in half anyway.

    So what else reads such a value reads it in half too, if it only adds up its elements (the bias
    gradient beside a weight gradient): in a sum, roundings even out. In full it would be in memory
    a second time, twice as large.
    """
    outputs = {value for value, _ in canvas.graph.outputs}
    for node in canvas.graph.nodes:
        full = canvas.compute[node.index] is Paint.FULL and canvas.store[node.index] is None
        passive = canvas.open[node.index] and canvas.kind(node.index) in PASSIVE
        if not (full and passive) or canvas.rules[node.index] == "state":
            continue
        if len(node.outputs) == 1 and all(node.half_outputs) and outputs.isdisjoint(node.outputs):
            readers = {reader for reader, _ in canvas.consumers[node.outputs[0]]}
            if _are_for_dots(canvas, node, readers, with_sums=True):
                canvas.rules[node.index] = "operand"
                canvas.store[node.index] = Paint.HALF


def _are_for_dots(canvas: Canvas, node: Node, readers: set[int], *, with_sums: bool) -> bool:
    """Whether there are allow operations in half among ``readers``, and else only sums."""
    sums = {reader for reader in readers if canvas.classes.nodes[reader].entry.adds_up}
    dots = readers - sums
    half = all(canvas.kind(r) is Kind.ALLOW and canvas.compute[r] is Paint.HALF for r in dots)
    here = all(canvas.graph.nodes[r].body == node.body for r in readers)
    return bool(dots) and half and here and (bool(sums) or not with_sums)


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
                canvas.paint(index, Paint.HALF, "upstream")
                queue.append(index)


def _can_take_the_cast(canvas: Canvas, node: Node, kept: set[int]) -> bool:
    """Whether casting the operands of ``node`` gives the same and costs no more."""
    values = canvas.graph.values
    if canvas.kind(node.index) is not Kind.CLEAR or not node.paintable:
        return False
    if not canvas.classes.nodes[node.index].entry.commutes or canvas.rules[node.index] == "state":
        return False
    if not all(node.half_outputs) or any(value in kept for value in node.outputs):
        return False
    for value in node.outputs:
        for reader, slot in canvas.consumers[value]:
            reads_half = canvas.graph.nodes[reader].half_inputs[slot]
            if canvas.compute[reader] is not Paint.HALF or not reads_half:
                return False
    if node.op == "loop.slice":
        # A cast of a whole argument (stacked weights) outside the loop would keep a second copy of
        # it. What an operation of this program makes for loops only may be stored half at once.
        stack = node.inputs[0]
        readers = [canvas.graph.nodes[reader] for reader, _ in canvas.consumers[stack]]
        return values[stack].producer >= 0 and all(r.op == "loop.slice" for r in readers)
    read = [
        values[v].size
        for v, ok in zip(node.inputs, node.half_inputs, strict=True)
        if ok and canvas.stored(v) is Paint.FULL
    ]
    # Only one branch runs, so only one of the casts before a join does.
    cost = max(read, default=0) if node.op == "branch.join" else sum(read)
    made = sum(values[v].size for v in node.outputs)
    return cost == made or (cost < made and not canvas.classes.nodes[node.index].entry.repeats)


def keep_wide(canvas: Canvas) -> None:
    """An allow operation read only in full hands on its float32 accumulator.

    Only where it leads to an output: elsewhere half is less to write, and a reader's cast free.
    """
    graph = canvas.graph
    outputs = {value for value, boundary in graph.outputs if boundary is Boundary.FULL}
    for node in graph.nodes:
        if canvas.rules[node.index] != "allow" or not canvas.classes.nodes[node.index].entry.wide:
            continue
        readers = [r for v in node.outputs for r, _ in canvas.consumers[v]]
        if any(canvas.compute[r] is Paint.HALF for r in readers):
            continue
        if any(v in outputs for v in node.outputs) or any(
            canvas.rules[r] == "state" for r in readers
        ):
            canvas.store[node.index] = Paint.FULL
            canvas.rules[node.index] = "wide"


def name_the_rest(canvas: Canvas, tainted: list[Taint]) -> None:
    """Nodes that stayed full because no rule made them half."""
    for index, rule in enumerate(canvas.rules):
        if not rule:
            canvas.rules[index] = "taint" if tainted[index] else "outside"
