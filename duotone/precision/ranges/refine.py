"""Refine: the consequences of ranges for the classes.

Each of three stages changes the :class:`~duotone.precision.classify.classes.NodeClass` of nodes,
which is all that painters see.

*Lifted.* If a result is bounded, of scale 1 and used for its absolute value (an exponential less
its maximum, a softmax, a tanh, a normalised row), storing it in half loses nothing that matters:
``stores_half``. The operation still computes full. A value keeps its denial if a later operation
divides by it (unless it cannot come near zero), or takes its logarithm or root, or compares it; see
:mod:`duotone.precision.ranges.cancellation`.

*Denied, cancellation.* A saturating function is denied if a later operation reads its distance from
its limit (``log(1 - sigmoid(x))``, or a recurrence that multiplies by it in every step).

*Denied, overflow and underflow.* If a value provably exceeds half, or may exceed it by the user's
statement or by calibration, the operation that makes it and its readers are denied (rule
``overflow``), and so are dots of values that follow from a constant too large for half
(:mod:`duotone.precision.ranges.large_constants`). If most measured elements are smaller than half's
normal numbers, the operation that makes them is denied (rule ``underflow``). A bound that only
follows from a sum of terms at their worst denies nothing, since real sums are far from it.
"""

from __future__ import annotations

import dataclasses
import math

from duotone.graph.graph import Graph, HalfType, Node
from duotone.graph.reach import Walk
from duotone.graph.terms import unscaled
from duotone.ops.entries import Entry, Kind, Taint
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes, NodeClass
from duotone.precision.context import Background
from duotone.precision.ranges.cancellation import (
    POLES,
    before_steep,
    decays_near_constants,
    find_sensitive,
)
from duotone.precision.ranges.decays import find_decays
from duotone.precision.ranges.find import Ranges, is_of_few, is_sum_of_few
from duotone.precision.ranges.heads import find_heads
from duotone.precision.ranges.interval import Interval, bound, words
from duotone.precision.ranges.large_constants import keep_dots_of_large
from duotone.precision.rules import Rule

MOSTLY_SMALL = 0.5
"""The share of measured elements below half's normal numbers from which an operation is denied,
since most of its results would lose digits."""
HARDLY_SMALL = 0.01
"""The largest share of such elements with which a measured range still lifts."""

_LIFTED = frozenset({Trait.EXPONENTIAL, Trait.POWER, Trait.BOUNDED})
"""Traits of operations that are on the deny list because of the range of their results, as sums of
few terms are. The others need the digits of their operands (a pole, a series), or sum up many
terms."""
_SCALES = frozenset({Trait.DIVIDES, Trait.SQUARES, Trait.CONVERTS})


def keep_digits(classes: Classes, background: Background) -> Classes:
    """Denies saturating functions whose distance from the limit matters: ``log(1 - sigmoid(x))``.

    Near its limit such a function rounds to the limit in half. Nothing is left of it after the
    subtraction, nor of its derivative. The gates of a linear recurrence are such functions. This
    stage also denies factors of many that a program adds to a constant, and arithmetic that leads
    to an operation with an infinite slope (:mod:`duotone.precision.ranges.cancellation`), and
    functions between a network and its loss (:mod:`duotone.precision.ranges.heads`).

    Args:
        classes: the class of each node.
        background: the program, and the ranges of its values.

    Returns:
        New classes; the same object if there is no such function.
    """
    graph = background.graph
    denied = dict.fromkeys(before_steep(graph, classes), _STEEP_REASON)
    decays = find_decays(graph, classes)
    denied |= dict.fromkeys(decays_near_constants(graph, classes, decays), _CANCELS_REASON)
    denied |= find_heads(graph, classes)
    classes = classes.with_denied(denied, Rule.CANCELLATION, Taint.DOMINANT)
    nodes = graph.having(Trait.SATURATES)
    saturating = [node for node in nodes if classes.nodes[node.index].kind is Kind.INFER]
    if not saturating:
        return classes
    sensitive = find_sensitive(graph, classes, background.ranges, POLES, decays)
    found = (node.index for node in saturating if not sensitive.isdisjoint(node.outputs))
    return classes.with_denied(dict.fromkeys(found, _CANCELS_REASON), Rule.CANCELLATION)


_STEEP_REASON = "leads to an arccosine or the like, whose slope is infinite at an end of its domain"
_CANCELS_REASON = (
    "a logarithm, a division, a running product or the like reads its distance from its limit"
)


def store_in_half(classes: Classes, background: Background) -> Classes:
    """Marks results of full operations that may be stored in half.

    Args:
        classes: the class of each node.
        background: the program, and the ranges of its values.

    Returns:
        New classes; the same object if ranges prove nothing.
    """
    graph, half, ranges = background.graph, background.half, background.ranges
    if not (ranges.unit or ranges.measured or half.name == "bfloat16"):
        return classes
    touched = (*ranges.unit, *ranges.measured)
    candidates = {graph.values[v].producer for v in touched if _fits(v, ranges, half)} - {-1}
    if half.name == "bfloat16":
        candidates.update(node.index for node in graph.having(Trait.POWER))
    candidates = {
        index
        for index in candidates
        if _may_be_lifted(graph.nodes[index], classes.nodes[index])
        and _holds(graph.nodes[index], graph, ranges, half)
    }
    if not candidates:
        return classes
    changed: dict[int, NodeClass] = {}
    sensitive = find_sensitive(graph, classes, ranges)
    logged = _log_domain(graph, classes)
    squares = any(Trait.POWER in graph.nodes[index].traits for index in candidates)
    summed = _summed(graph, classes, ranges) if squares else set[int]()
    entries: dict[Entry, Entry] = {}
    for index in sorted(candidates):
        node, found = graph.nodes[index], classes.nodes[index]
        if index in logged or not sensitive.isdisjoint(node.outputs):
            continue
        if Trait.POWER in node.traits and not summed.isdisjoint(node.outputs):
            continue
        if found.entry not in entries:
            entries[found.entry] = dataclasses.replace(found.entry, taint=Taint.NONE)
        changed[index] = dataclasses.replace(
            found,
            entry=entries[found.entry],
            stores_half=True,
        )
    return classes.with_changed(changed)


def _holds(node: Node, graph: Graph, ranges: Ranges, half: HalfType) -> bool:
    """Returns True if half represents every result of a node without a loss that matters."""
    if half.name == "bfloat16" and Trait.POWER in node.traits:
        return True  # it has float32's range, and as many digits for small numbers as for large
    if _is_sum(node) and (half.name == "bfloat16" or not is_of_few(graph.values, node)):
        return False  # a statistic: small, and worth keeping in float32
    pairs = zip(node.outputs, node.half_outputs, strict=True)
    return all(_fits(v, ranges, half) for v, ok in pairs if ok)


def _fits(value: int, ranges: Ranges, half: HalfType) -> bool:
    """Checks if half represents all of a value, with a factor of 2 to spare, and resolves it."""
    measured = ranges.measured.get(value) if half.name == "float16" else None
    unit = value in ranges.unit or (measured is not None and measured.small <= HARDLY_SMALL)
    interval = ranges.of(value)
    if not unit or interval is None:
        return False
    most = bound(interval)
    return most <= half.largest / 2 and most * half.epsilon >= half.smallest_normal


def _may_be_lifted(node: Node, found: NodeClass) -> bool:
    """Returns True if the rules decide on a node, and only its range could deny it."""
    entry = found.entry
    if found.is_users or found.rule is not None or node.fixed:
        return False
    if entry.kind in (Kind.ALLOW, Kind.UNLISTED) or entry.taint > Taint.DOMINANT:
        return False
    lifted = not node.traits.isdisjoint(_LIFTED) or is_sum_of_few(node.traits)
    return entry.kind is not Kind.DENY or lifted


def _is_sum(node: Node) -> bool:
    """Returns True for a sum of one operand's elements, including running sums."""
    traits = node.traits
    return Trait.SUMS_AXES in traits or (
        Trait.SUMS in traits and traits.isdisjoint({Trait.ADDS_INTO, Trait.CARRIES})
    )


def _log_domain(graph: Graph, classes: Classes) -> set[int]:
    """Returns the nodes that make logarithms, or sums with one: programs subtract them."""
    found: set[int] = set()
    reached: set[int] = set()
    for node in graph.nodes:
        entry = classes.nodes[node.index].entry
        additive = entry.taint is Taint.ADDITIVE and entry.kind is Kind.DENY
        passes = not reached.isdisjoint(node.inputs) and (
            Trait.COMMUTES in entry.traits or Trait.ADDS in entry.traits
        )
        if additive or passes:
            found.add(node.index)
            reached.update(node.outputs)
    return found


def _summed(graph: Graph, classes: Classes, ranges: Ranges) -> set[int]:
    """Returns values that are summed or subtracted later, directly or weighted.

    A variance is the mean of squares, less a number nearly as large. If the squares were rounded
    before, nothing is left of it. A square that is first multiplied by an activation or a gradient
    is only one of many terms with that much error.
    """
    suspects = graph.having(Trait.SUBTRACTS, Trait.SUMS, Trait.SUMS_AXES)
    cancel = (node for node in suspects if Trait.SUBTRACTS in node.traits or _is_sum(node))
    walk = Walk(graph, (value for node in cancel for value in node.inputs))
    for _, node in walk:
        entry = classes.nodes[node.index].entry
        keeps = (
            Trait.COMMUTES in entry.traits
            or Trait.ADDS in entry.traits
            or entry.kind is Kind.UNLISTED
        )
        if Trait.MULTIPLIES in node.traits:
            one, other = node.inputs
            walk.to(v for v, by in ((one, other), (other, one)) if _weighs(by, graph, ranges))
        elif keeps or _is_scaled(node):
            walk.to(node.inputs)
    return walk.seen


def _is_scaled(node: Node) -> bool:
    """Returns True if a node only scales a square on its way to a sum."""
    carried = Trait.CARRIES in node.traits and Trait.SUMS not in node.traits
    return carried or not node.traits.isdisjoint(_SCALES) or "exponent" in node.attributes


def _weighs(value: int, graph: Graph, ranges: Ranges) -> bool:
    """Returns True if multiplying by ``value`` only scales or masks."""
    interval = ranges.of(value)
    known = interval is not None and interval[0] >= 0.0 and interval[1] <= 1.0
    return known or graph.values[value].constant is not None or graph.values[value].size == 1


def deny_out_of_range(classes: Classes, background: Background) -> Classes:
    """Denies the makers and the readers of values that half may not represent.

    It uses only reliable bounds: stated, measured, or entirely out of range.

    Args:
        classes: the class of each node.
        background: the program, and the ranges of its values.

    Returns:
        New classes; the same object if half represents everything.
    """
    graph, half, ranges = background.graph, background.half, background.ranges
    certain = {v for v, interval in ranges.intervals.items() if _is_beyond(interval, half)}
    changed: dict[int, NodeClass] = {}
    for index in sorted(ranges.stated | certain):
        value = graph.values[index]
        if not value.paintable or value.constant is not None:
            continue  # `classify` decides about constants
        problem = _problem(index, graph, ranges, half)
        if problem is None:
            continue
        rule, reason = problem
        if value.producer >= 0:
            node = graph.nodes[value.producer]
            _deny_node(changed, classes, node, rule, f"its result {reason}", True)
        if rule is Rule.OVERFLOW:
            for reader, slot in graph.consumers[index]:
                node = graph.nodes[reader]
                if node.half_inputs[slot]:
                    read = f"it reads a value that {reason}"
                    _deny_node(changed, classes, node, rule, read, False)
    classes = classes.with_changed(changed)
    if half.name == "float16":
        products = graph.having(Trait.MULTIPLIES)
        squares = (node.index for node in products if _is_scaled_square(node, graph))
        classes = classes.with_denied(dict.fromkeys(squares, _SQUARE_REASON), Rule.OVERFLOW)
    return keep_dots_of_large(classes, background)


def _is_scaled_square(node: Node, graph: Graph) -> bool:
    """Checks if a product is that of a value and a multiple of it: ``0.001 * x * x``."""
    if len(set(node.inputs)) < 2:
        return False
    one, other = (unscaled(graph, v) for v in node.inputs)
    return one == other and not graph.values[one].is_one


_SQUARE_REASON = "a multiple of a square: doubles the exponent's range"


def _is_beyond(interval: Interval, half: HalfType) -> bool:
    """Returns True if no element fits half."""
    return interval[0] > half.largest or -interval[1] > half.largest


def _problem(value: int, graph: Graph, ranges: Ranges, half: HalfType) -> tuple[Rule, str] | None:
    """Returns the rule that a value violates, and the reason."""
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


_HEADROOM_WORDS = "4 times the measurement"


def _is_masked(graph: Graph, node: Node, half: HalfType) -> bool:
    """Checks if a node reads a saturated constant (the -1e9 of a mask), too large for half."""
    constants = graph.constants.get(node.index, ())
    return any(constant.largest > half.largest for _, constant in constants)


def _deny_node(
    changed: dict[int, NodeClass],
    classes: Classes,
    node: Node,
    rule: Rule,
    reason: str,
    makes: bool,
) -> None:
    """Denies a node. Its taint goes everywhere if its own result does not fit."""
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
        origin=found.listed,
    )
