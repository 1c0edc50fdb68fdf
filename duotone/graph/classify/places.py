"""Places and counts: numbers whose absolute error counts, however large they are.

A position of 700 is 700 or 704 in bfloat16, and a box of 10 pixels is lost beside it. The lists
know operations and not what numbers mean, but where they come from and what becomes of them tells.

*Counts* come from counters and from integers by arithmetic (``arange(n) * step``), or are sums of
what is true or false (the running sum of one-hot rows). Denied is a dot of counts with what is made
of no float32 array either (the angles of a rotary embedding), a dot of a counter with anything (the
mean position under a softmax), and the addition of counts to something else (anchors and predicted
offsets), unless they are at most 1.

*Angles* of arguments (random Fourier features, the first layer of a network of sines) are the
result of a dot of arguments that goes into a sine. Denied is that dot: what it would round away may
be several turns.

*Places* are rounded down or become integers: ``floor(x)``, ``x.astype(int32)``. All arithmetic that
leads there from the last dot is denied, but for the sum of two large arrays, which may be a
residual stream.

Who calls this: :mod:`duotone.graph.classify.amendments`.
"""

from __future__ import annotations

from duotone.graph.classify.background import Background
from duotone.graph.classify.classes import Classes
from duotone.graph.classify.rules import Rule
from duotone.graph.graph import Graph, Node, Value
from duotone.graph.ranges.interval import Known
from duotone.ops.entries import Kind, Taint
from duotone.ops.traits import Trait

_ARITHMETIC = frozenset("add sub add_any mul div rem floor ceil round sign integer_pow".split())
_SUMS = frozenset("cumsum reduce_sum reduce_window_sum scatter-add".split())
_SCALES = frozenset({"mul", "div"})
_SINES = frozenset("sin cos tan".split())
_ROUNDS = frozenset("floor ceil round rem".split())
_DOT = "a dot of positions or counts, whose absolute error counts"
_ADD = "adds to a position or a count, whose absolute error counts"
_ANGLE = "a dot of arguments that goes into a sine, which needs the low bits of its operand"
_PLACE = "leads to what is rounded to a whole number: a place, whose absolute error counts"


def keep_places(classes: Classes, background: Background) -> Classes:
    """Denies arithmetic with positions, counts and what becomes an index.

    Args:
        classes: what each node is.
        background: the program, and the ranges of its values.

    Returns:
        New classes; the same where there is no such number.
    """
    graph, ranges = background.graph, background.ranges
    counts, counters, plain = _counts(graph, classes)
    reasons = dict.fromkeys(_before_rounding(graph, classes, plain), _PLACE)
    for node in graph.nodes if counts else ():
        kind, entry = classes.nodes[node.index].kind, classes.nodes[node.index].entry
        counted = [v for v in node.inputs if v in counts]
        if not counted:
            continue
        if kind is Kind.ALLOW:
            if not counters.isdisjoint(counted) or plain.issuperset(node.inputs):
                reasons[node.index] = _DOT
            continue
        adds = (
            kind is Kind.INFER and Trait.ADDS in entry.traits and not plain.issuperset(node.inputs)
        )
        if adds and any(not _is_unit(ranges.of(v)) for v in counted):
            reasons[node.index] = _ADD
    reasons.update(dict.fromkeys(_angles(graph, classes), _ANGLE))
    return classes.with_denied(reasons, Rule.PLACE, Taint.DOMINANT)


def _is_unit(interval: Known) -> bool:
    return interval is not None and interval[0] >= -1.0 and interval[1] <= 1.0


def _counts(graph: Graph, classes: Classes) -> tuple[set[int], set[int], set[int]]:
    """Values that are counts, those that follow from counters alone, and those without data.

    The last are counts, single numbers and what is true or false.
    """
    counts, flags = set[int](), set[int]()
    made = {v.index for v in graph.values if v.constant is not None}
    plain = set(made)
    for node in graph.nodes:
        read = [graph.values[v] for v in node.inputs]
        known = all(v.index in made for v in read)
        for value in node.outputs:
            if known:
                made.add(value)
            if not graph.values[value].paintable:
                continue
            if _is_count(node, read, counts, flags, plain, classes):
                counts.add(value)
            elif _is_flag(node, read, flags, classes):
                flags.add(value)
            else:
                continue
            plain.add(value)
    return counts, counts & made, plain


def _is_count(
    node: Node,
    read: list[Value],
    counts: set[int],
    flags: set[int],
    plain: set[int],
    classes: Classes,
) -> bool:
    if node.op == "iota":
        return True
    if node.op == "convert_element_type" and not read[0].paintable:
        return read[0].dtype in ("int16", "int32", "int64", "uint16", "uint32", "uint64")
    numbers = [v.index for v in read if v.paintable]
    if not numbers or not all(v in plain for v in numbers):
        return False
    if node.op in _SUMS and not flags.isdisjoint(numbers):
        return True
    moves = Trait.COMMUTES in classes.nodes[node.index].entry.traits
    passes = moves or node.op in _ARITHMETIC or node.op in _SUMS
    return passes and not counts.isdisjoint(numbers)


def _is_flag(node: Node, read: list[Value], flags: set[int], classes: Classes) -> bool:
    if node.op == "convert_element_type":
        return read[0].dtype == "bool"
    moves = Trait.COMMUTES in classes.nodes[node.index].entry.traits
    return moves and bool(read) and all(v.index in flags for v in read if v.paintable)


def _before_rounding(graph: Graph, classes: Classes, plain: set[int]) -> set[int]:
    """Arithmetic between the last dot and what rounds."""
    values, found, seen = graph.values, set[int](), set[int]()
    queue = [v for node in graph.nodes if _rounds(node, graph) for v in node.inputs]
    while queue:
        value = values[queue.pop()]
        if value.index in seen or value.index in plain or value.producer < 0:
            continue
        seen.add(value.index)
        node = graph.nodes[value.producer]
        kind, entry = classes.nodes[node.index].kind, classes.nodes[node.index].entry
        if kind is Kind.INFER:
            large = [v for v in node.inputs if v not in plain and values[v].size >= value.size]
            if Trait.ADDS in entry.traits and len(large) > 1:
                continue
            found.add(node.index)
        elif Trait.COMMUTES not in entry.traits:
            continue
        queue += node.inputs
    return found


def _rounds(node: Node, graph: Graph) -> bool:
    made = graph.values[node.outputs[0]].dtype if node.outputs else ""
    return node.op in _ROUNDS or (
        node.op == "convert_element_type" and made.startswith(("int", "uint"))
    )


def _angles(graph: Graph, classes: Classes) -> set[int]:
    """Allow operations of arguments behind which only scaling and shifting comes before a sine."""
    values, found, seen = graph.values, set[int](), set[int]()
    queue = [v for node in graph.nodes if node.op in _SINES for v in node.inputs]
    while queue:
        value = values[queue.pop()]
        if value.index in seen or value.producer < 0:
            continue
        seen.add(value.index)
        node = graph.nodes[value.producer]
        known = classes.nodes[node.index]
        if known.kind is Kind.ALLOW:
            if all(_is_given(values[v], graph, classes) for v in node.inputs):
                found.add(node.index)
        elif (
            Trait.COMMUTES in known.entry.traits
            or Trait.ADDS in known.entry.traits
            or node.op in _SCALES
        ):
            queue += node.inputs
    return found


def _is_given(value: Value, graph: Graph, classes: Classes) -> bool:
    """True if a value is an argument or a constant, moved or scaled by a number at most."""
    while value.producer >= 0:
        node = graph.nodes[value.producer]
        read = [graph.values[v] for v in node.inputs]
        large = [v for v in read if v.paintable and v.size > 1]
        moves = Trait.COMMUTES in classes.nodes[node.index].entry.traits or node.op in _SCALES
        if not moves or len(large) != 1 or node.op == "loop.slice":
            return False
        value = large[0]
    return True
