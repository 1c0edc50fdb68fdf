"""Refine: what ranges change in the classes.

Three stages, each of which writes into the :class:`~duotone.precision.classify.classes.NodeClass`
of a node, which is all that painters see.

*Lifted.* A result that is bounded, of scale 1 and used for its absolute value (an exponential less
its maximum, a softmax, a tanh, a normalised row) loses nothing that matters when it is stored in
half: ``stores_half``. The operation still computes full. Not lifted is what is looked at closely
later: divided by (unless it cannot come near zero), logged, rooted, compared; see
:mod:`duotone.precision.ranges.cancellation`.

*Denied.* A saturating function of which something looks closely at what is left of its limit
(``log(1 - sigmoid(x))``). Where a value provably exceeds half, or what the user states or
calibration measured lets it, the operation that makes it and those that read it are denied (rule
``overflow``). Where most measured elements are smaller than half's normal numbers, the operation
that makes them is (rule ``underflow``). A bound that only follows from adding up terms at their
worst denies nothing: real sums are far from it.
"""

from __future__ import annotations

import dataclasses
import math

from duotone.graph.graph import Graph, HalfType, Node
from duotone.ops.entries import Entry, Kind, Taint
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes, NodeClass
from duotone.precision.context import Background
from duotone.precision.ranges.cancellation import POLES, looked_at_closely
from duotone.precision.ranges.find import FEW, Ranges, is_sum_of_few
from duotone.precision.ranges.interval import Interval, bound, words
from duotone.precision.rules import Rule

MOSTLY_SMALL = 0.5
"""Share of measured elements below half's normal numbers from which an operation is denied: most of
what it makes would lose digits."""
HARDLY_SMALL = 0.01
"""Share up to which a measured range lifts."""

_LIFTED = frozenset({Trait.EXPONENTIAL, Trait.POWER, Trait.BOUNDED})
"""Traits of operations on the deny list for what their results are, as sums of few terms are. The
others need the digits of their operands (a pole, a series), or accumulate for long."""
_SCALES = frozenset({Trait.DIVIDES, Trait.SQUARES, Trait.CONVERTS})
_CANCELS = frozenset({Trait.SUBTRACTS, Trait.SUMS, Trait.SUMS_AXES})
_NO_SUMS = frozenset({Trait.ADDS_INTO, Trait.CARRIES})


def keep_digits(classes: Classes, background: Background) -> Classes:
    """Denies saturating functions that are looked at closely: ``log(1 - sigmoid(x))``.

    Near its limits such a function is its limit in half, of which nothing is left after the
    subtraction, nor of its derivative.

    Args:
        classes: what each node is.
        background: the program, and the ranges of its values.

    Returns:
        New classes; the same where there is no such function.
    """
    graph = background.graph
    saturating = [
        node
        for node in graph.nodes
        if Trait.SATURATES in node.traits and classes.nodes[node.index].kind is Kind.INFER
    ]
    if not saturating:
        return classes
    close = looked_at_closely(graph, classes, background.ranges, POLES)
    found = (node.index for node in saturating if not close.isdisjoint(node.outputs))
    return classes.with_denied(dict.fromkeys(found, _CLOSE_WORDS), Rule.CANCELLATION)


_CLOSE_WORDS = "a logarithm, a division or the like looks closely at what is left of its limit"


def store_in_half(classes: Classes, background: Background) -> Classes:
    """Marks results of full operations that may be stored in half.

    Args:
        classes: what each node is.
        background: the program, and the ranges of its values.

    Returns:
        New classes; the same if ranges say nothing.
    """
    graph, half, ranges = background.graph, background.half, background.ranges
    if not (ranges.unit or ranges.measured or half.name == "bfloat16"):
        return classes
    touched = (*ranges.unit, *ranges.measured)
    candidates = {graph.values[v].producer for v in touched if _fits(v, ranges, half)} - {-1}
    if half.name == "bfloat16":
        candidates.update(node.index for node in graph.nodes if Trait.POWER in node.traits)
    candidates = {
        index
        for index in candidates
        if _may_be_lifted(graph.nodes[index], classes.nodes[index])
        and _holds(graph.nodes[index], graph, ranges, half)
    }
    if not candidates:
        return classes
    changed: dict[int, NodeClass] = {}
    close = looked_at_closely(graph, classes, ranges)
    logged = _log_domain(graph, classes)
    squares = any(Trait.POWER in graph.nodes[index].traits for index in candidates)
    summed = _summed(graph, classes, ranges) if squares else set[int]()
    entries: dict[Entry, Entry] = {}
    for index in sorted(candidates):
        node, found = graph.nodes[index], classes.nodes[index]
        if index in logged or not close.isdisjoint(node.outputs):
            continue
        if Trait.POWER in node.traits and not summed.isdisjoint(node.outputs):
            continue
        if found.entry not in entries:
            entries[found.entry] = dataclasses.replace(found.entry, taint=Taint.NONE)
        changed[index] = dataclasses.replace(
            found,
            entry=entries[found.entry],
            stores_half=True,
            range=_known(ranges.of(node.outputs[0]), half),
        )
    return classes.with_changed(changed)


def _known(interval: Interval | None, half: HalfType) -> str:
    """Why half holds a result, in words."""
    return f"within {half.name}'s range" if interval is None else f"it is {words(interval)}"


def _holds(node: Node, graph: Graph, ranges: Ranges, half: HalfType) -> bool:
    """True if half holds every result of a node without a loss that matters."""
    if half.name == "bfloat16" and Trait.POWER in node.traits:
        return True  # has float32's range, and keeps as many digits of the small as of the large
    few = graph.values[node.outputs[0]].size * FEW >= graph.values[node.inputs[0]].size
    if _is_sum(node) and (half.name == "bfloat16" or not few):
        return False  # a statistic: small, and worth its digits
    pairs = zip(node.outputs, node.half_outputs, strict=True)
    return all(_fits(v, ranges, half) for v, ok in pairs if ok)


def _fits(value: int, ranges: Ranges, half: HalfType) -> bool:
    """True if half holds all of a value, with a factor of 2 to spare, and resolves it."""
    measured = ranges.measured.get(value) if half.name == "float16" else None
    unit = value in ranges.unit or (measured is not None and measured.small <= HARDLY_SMALL)
    interval = ranges.of(value)
    if not unit or interval is None:
        return False
    most = bound(interval)
    return most <= half.largest / 2 and most * half.epsilon >= half.smallest_normal


def _may_be_lifted(node: Node, found: NodeClass) -> bool:
    """True if a node's class leaves it to the rules, and only its range speaks against it."""
    entry = found.entry
    if found.is_users or found.rule is not None or node.fixed:
        return False
    if entry.kind in (Kind.ALLOW, Kind.UNLISTED) or entry.taint > Taint.DOMINANT:
        return False
    lifted = not node.traits.isdisjoint(_LIFTED) or is_sum_of_few(node.traits)
    return entry.kind is not Kind.DENY or lifted


def _is_sum(node: Node) -> bool:
    """True for a sum of one operand's elements, running ones included."""
    traits = node.traits
    return Trait.SUMS_AXES in traits or (Trait.SUMS in traits and traits.isdisjoint(_NO_SUMS))


def _log_domain(graph: Graph, classes: Classes) -> set[int]:
    """Nodes whose results are logarithms, or such with something added: used by difference."""
    found: set[int] = set()
    reached: set[int] = set()
    for node in graph.nodes:
        entry = classes.nodes[node.index].entry
        additive = entry.taint is Taint.ADDITIVE and entry.kind is Kind.DENY
        passes = (
            Trait.COMMUTES in entry.traits or Trait.ADDS in entry.traits
        ) and not reached.isdisjoint(node.inputs)
        if additive or passes:
            found.add(node.index)
            reached.update(node.outputs)
    return found


def _summed(graph: Graph, classes: Classes, ranges: Ranges) -> set[int]:
    """Values that are added up or subtracted later, as they are or weighted.

    A variance is the mean of squares, less something nearly as large: squares that were rounded
    before leave nothing of it. Multiplied by an activation or a gradient first, a square is one of
    many terms with that much error.
    """
    found: set[int] = set()
    suspects = [node for node in graph.nodes if not node.traits.isdisjoint(_CANCELS)]
    cancel = (node for node in suspects if Trait.SUBTRACTS in node.traits or _is_sum(node))
    queue = [value for node in cancel for value in node.inputs]
    while queue:
        value = queue.pop()
        producer = graph.values[value].producer
        if value in found:
            continue
        found.add(value)
        if producer < 0:
            continue
        node, entry = graph.nodes[producer], classes.nodes[producer].entry
        keeps = (
            Trait.COMMUTES in entry.traits
            or Trait.ADDS in entry.traits
            or entry.kind is Kind.UNLISTED
        )
        if Trait.MULTIPLIES in node.traits:
            one, other = node.inputs
            queue += [v for v, by in ((one, other), (other, one)) if _weighs(by, graph, ranges)]
        elif keeps or _is_scaled(node):
            queue += node.inputs
    return found


def _is_scaled(node: Node) -> bool:
    """True if a square that a node reads is followed to where it is summed."""
    carried = Trait.CARRIES in node.traits and Trait.SUMS not in node.traits
    return carried or not node.traits.isdisjoint(_SCALES) or "exponent" in node.attributes


def _weighs(value: int, graph: Graph, ranges: Ranges) -> bool:
    """True if multiplying by ``value`` is scaling or masking."""
    interval = ranges.of(value)
    known = interval is not None and interval[0] >= 0.0 and interval[1] <= 1.0
    return known or graph.values[value].constant is not None or graph.values[value].size == 1


def deny_out_of_range(classes: Classes, background: Background) -> Classes:
    """Denies what makes or reads a value that half may not hold.

    Only values whose bounds are to be believed: stated, measured, or wholly out of range.

    Args:
        classes: what each node is.
        background: the program, and the ranges of its values.

    Returns:
        New classes; the same where half holds everything.
    """
    graph, half, ranges = background.graph, background.half, background.ranges
    certain = {v for v, interval in ranges.intervals.items() if _is_beyond(interval, half)}
    suspects = ranges.stated | certain
    changed: dict[int, NodeClass] = {}
    consumers = graph.consumers
    for value in sorted(suspects):
        held = graph.values[value]
        known_to_rule_8 = not held.paintable or held.constant is not None
        reason = None if known_to_rule_8 else _problem(value, graph, ranges, half)
        if reason is None:
            continue
        rule, words_of_it = reason
        if held.producer >= 0:
            made = f"its result {words_of_it}"
            _deny_node(changed, classes, graph.nodes[held.producer], rule, made, True)
        if rule is Rule.OVERFLOW:
            for index, slot in consumers[value]:
                reader = graph.nodes[index]
                if reader.half_inputs[slot]:
                    read = f"it reads what {words_of_it}"
                    _deny_node(changed, classes, reader, rule, read, False)
    return classes.with_changed(changed)


def _is_beyond(interval: Interval, half: HalfType) -> bool:
    """True if no element fits half."""
    return interval[0] > half.largest or -interval[1] > half.largest


def _problem(value: int, graph: Graph, ranges: Ranges, half: HalfType) -> tuple[Rule, str] | None:
    """The rule that a value falls under, and why."""
    interval = ranges.of(value)
    measured = ranges.measured.get(value)
    if interval is not None and (
        half.largest < bound(interval) < math.inf or _is_beyond(interval, half)
    ):
        producer = graph.values[value].producer
        if producer < 0 or not _is_masked(graph, graph.nodes[producer], half):
            return Rule.OVERFLOW, (
                f"is {words(interval)}, and {half.name} ends at {half.largest:.5g}"
                + (f" ({_HEADROOM_WORDS})" if measured else "")
            )
    if measured is not None and half.name == "float16" and measured.small > MOSTLY_SMALL:
        return Rule.UNDERFLOW, (
            f"was measured: {measured.small:.0%} of it is below {half.smallest_normal:.3g}"
        )
    return None


_HEADROOM_WORDS = "4 times what was measured"


def _is_masked(graph: Graph, node: Node, half: HalfType) -> bool:
    """True if a node reads a constant (the -1e9 of a mask) that does not fit and is saturated."""
    return any(constant.largest > half.largest for _, constant in graph.constants(node))


def _deny_node(
    changed: dict[int, NodeClass],
    classes: Classes,
    node: Node,
    rule: Rule,
    reason: str,
    makes: bool,
) -> None:
    """Denies a node; its taint goes everywhere if it is its result that does not fit."""
    found = changed.get(node.index, classes.nodes[node.index])
    entry = found.entry
    if found.pin is not None or entry.kind is Kind.UNLISTED or node.fixed:
        return
    if found.rule in (Rule.OVERFLOW, Rule.UNDERFLOW) and not makes:
        return
    overflows = makes and rule is Rule.OVERFLOW
    taint = Taint.EVERYWHERE if overflows else max(entry.taint, Taint.DOMINANT)
    changed[node.index] = dataclasses.replace(
        found,
        entry=dataclasses.replace(entry, kind=Kind.DENY, reason=reason, taint=taint),
        rule=rule,
        range=reason,
        origin=found.listed,
    )
