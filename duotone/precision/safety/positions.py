"""Positions and counts: numbers whose absolute error counts, however large they are.

bfloat16 rounds a position of 703 to 704, and an offset below 2 is lost next to it. The lists know
operations, but not the meaning of numbers. Their sources and their uses reveal it.

*Counts* come from counters and from integers by arithmetic (``arange(n) * step``), whatever made
the integers: an argument, a counter, an index. Sums of truth values (the running sum of one-hot
rows) are counts too. Features are none, also if a mask of integers multiplies them: results of
norms and dots, and what follows from them. This rule denies

- dots of counts that follow from counters alone (the mean position under a softmax), or whose other
  operand is not a float32 array either (the angles of a rotary embedding);
- dots of integers that half may not represent exactly, if nothing proves that they stay below 2048
  (float16) or 256 (bfloat16): neither their dtype nor their range, nor a division (of pixels by
  255);
- dots of truth values that count further than half can (a triangle times one-hot rows), and
  products of bytes (a quantized layer, whose zero points nearly cancel its sums);
- the addition of counts to something else (anchors and predicted offsets), unless they are at
  most 1;
- the addition of a constant near which half is coarse (from 8 in bfloat16, 64 in float16), as in
  coordinates far from the origin. A mask of -1e9 is not one: float32 is coarse there too;
- the addition of a displacement to exact numbers that are subtracted from each other
  (:mod:`duotone.precision.safety.displacements`);
- sums and functions of values with a common term that are subtracted from each other
  (:mod:`duotone.precision.safety.shared_terms`).

*Angles* are values that a sine reads (:mod:`duotone.precision.safety.angles`). A rounding error of
them may be several turns. This rule denies a dot of given numbers (random Fourier features, the
first layer of a network of sines), even if a network moved them, and the arithmetic that leads to
an outer product (a network's result times several rates).

*Positions* are values that the program rounds down or converts to integers (``floor(x)``,
``x.astype(int32)``), and values at which an operation reads another array (the grid of a sampling,
the boxes of a pooling). This rule denies all arithmetic between the last dot and that use. If the
use is a rounding, the rule spares the sum of two large arrays, which may be a residual stream. If
it is a read, the rule denies the last dot too, which predicts the position or a displacement and
has few results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from duotone.graph.graph import Graph, HalfType, Node
from duotone.graph.products import flops_of
from duotone.graph.reach import Walk
from duotone.graph.terms import scales
from duotone.ops.entries import Kind, Taint
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.context import Background
from duotone.precision.ranges.find import Ranges
from duotone.precision.ranges.interval import Known
from duotone.precision.rules import Rule
from duotone.precision.safety.angles import find_angles
from duotone.precision.safety.displacements import Exact, after_half_dots, find_displaced
from duotone.precision.safety.shared_terms import find_shared

_INTEGERS = ("int16", "int32", "int64", "uint16", "uint32", "uint64")
# Bound once: these are hot.
_COMMUTES, _CONVERTS, _COUNTS, _ROUNDS = (
    Trait.COMMUTES,
    Trait.CONVERTS,
    Trait.COUNTS,
    Trait.ROUNDS,
)
_FROM_INTEGERS = frozenset({Trait.CONVERTS, Trait.UNDESCRIBED})
_MAKE_COUNTS = _FROM_INTEGERS | {Trait.COUNTS}
_KEEP_COUNTS = frozenset(
    {
        Trait.COMMUTES,
        Trait.ADDS,
        Trait.MULTIPLIES,
        Trait.DIVIDES,
        Trait.RAISES,
        Trait.ROUNDS,
        Trait.SUMS,
        Trait.UNDESCRIBED,
    }
)
_MAKE_FEATURES = frozenset({Trait.CONTRACTS, Trait.NORMALIZES})
_ADDS = frozenset({Trait.ADDS, Trait.ADDS_INTO})
_ERROR = 1 / 32
"""The rounding error near a number from which half is too coarse for values of scale 1."""
_FULL_EPSILON = 2.0**-23
_DIVISOR = 32.0
"""The least divisor that makes integers small. A position divided by 2 is still a position."""
_DOT = "a dot of positions or counts, whose absolute error counts"
_ADD = "adds to a position or a count, whose absolute error counts"
_ANGLE = "a dot of arguments whose result a sine reads, which needs the low bits of its operand"
_TURNED = "leads to an outer product whose result a sine reads: its absolute error counts"
_POSITION = "leads to a position, which is rounded to an integer: its absolute error counts"
_FLAGS = "a dot of truth values or bytes: half cannot count so far"
_FAR = "adds a large number, near which half is coarse: an absolute error counts"
_MOVED = "moves exact numbers a little, and a difference of such numbers shows its absolute error"
_SHARED = "a term of it is subtracted again: the difference shows its absolute error"
_SAMPLED = "leads to a position at which another array is read: its absolute error counts"


def keep_positions(classes: Classes, background: Background) -> Classes:
    """Denies arithmetic with positions, counts and values that become an index.

    Args:
        classes: the class of each node.
        background: the program, and the ranges of its values.

    Returns:
        New classes; the same object if the program has no such number.
    """
    graph, ranges = background.graph, background.ranges
    found = _Counts(graph, ranges, background.half)
    reasons = dict.fromkeys(_before_rounding(graph, classes, found.plain), _POSITION)
    reasons |= dict.fromkeys(_before_sampling(graph, classes, found.plain), _SAMPLED)
    for node in _candidates(graph, classes, found.counts):
        kind = classes.nodes[node.index].kind
        counted = found.counts.intersection(node.inputs)
        if not counted:
            if kind is Kind.ALLOW and found.counts_flags(node):
                reasons[node.index] = _FLAGS
            elif kind is Kind.INFER and _ADDS & node.traits and found.is_moved_far(node):
                reasons[node.index] = _FAR
            continue
        if kind is Kind.ALLOW:
            only = found.plain.issuperset(node.inputs)
            if only or not counted.isdisjoint(found.counters | found.inexact):
                reasons[node.index] = _DOT
            continue
        adds = not node.traits.isdisjoint(_ADDS) and not found.plain.issuperset(node.inputs)
        if kind is Kind.INFER and adds and any(not _is_unit(ranges.of(v)) for v in counted):
            reasons[node.index] = _ADD
    after = after_half_dots(graph, classes)
    exact = Exact(graph, after)
    angles, factors = find_angles(graph, classes, exact)
    before = _arithmetic_before(factors, graph, classes, found.plain, sampled=False)
    reasons = dict.fromkeys(before, _TURNED) | dict.fromkeys(angles, _ANGLE) | reasons
    reasons = dict.fromkeys(find_displaced(graph, exact), _MOVED) | reasons
    reasons = dict.fromkeys(find_shared(graph, classes, after), _SHARED) | reasons
    return classes.with_denied(reasons, Rule.POSITION, Taint.DOMINANT)


def _candidates(graph: Graph, classes: Classes, counts: set[int]) -> list[Node]:
    """Returns the nodes that read counts, and all dots and additions."""
    found = {reader for value in counts for reader, _ in graph.consumers[value]}
    found.update(node.index for node in graph.having(*_ADDS))
    found |= classes.allowed
    return [graph.nodes[index] for index in sorted(found)]


def _is_unit(interval: Known) -> bool:
    return interval is not None and interval[0] >= -1.0 and interval[1] <= 1.0


class _Counts:
    """The values of a program that are counts.

    Attributes:
        counts: all counts.
        counters: counts that follow from counters alone, so that they are known before any call.
        inexact: values that follow from integers which half may not represent exactly.
        flags: truth values, as numbers.
        bits: numbers chosen from the constants 0 and 1 (a triangle, one-hot rows).
        bytes: integers of 8 bits, as numbers, and sums of these and constants.
        features: results of norms and of dots of other numbers, and values that follow from them.
        plain: counts, flags and single numbers, and values that follow from them alone.
    """

    def __init__(self, graph: Graph, ranges: Ranges, half: HalfType) -> None:
        self._values, self._ranges, self._half = graph.values, ranges, half
        self.counts, self.flags, self.inexact = set[int](), set[int](), set[int]()
        self.bits, self.bytes, self.features = set[int](), set[int](), set[int]()
        self._fixed = {v.index for v in graph.values if v.producer < 0}.difference(graph.inputs)
        self.plain = {v.index for v in graph.values if v.constant is not None}
        # The numbers that are not plain, or not yet: the usual operands.
        self._others = {v.index for v in graph.values if v.paintable} - self.plain
        for node in graph.nodes:
            if self._fixed.issuperset(node.inputs):
                self._fixed.update(node.outputs)
            if (
                not self._others.isdisjoint(node.inputs)
                and node.traits.isdisjoint(_MAKE_COUNTS)
                and self.bytes.isdisjoint(node.inputs)
            ):
                continue  # the usual case
            for value in node.outputs:
                if graph.values[value].paintable:
                    self._add(node, value)
        self.counters = self.counts & graph.known

    def _add(self, node: Node, value: int) -> None:
        """Adds a result of a node to the sets to which it belongs."""
        numbers = [v for v in node.inputs if self._values[v].paintable]
        if self._is_byte(node, numbers):
            self.bytes.add(value)
            return
        if _COMMUTES in node.traits and numbers and all(map(self._is_bit, numbers)):
            self.bits.add(value)
        if self._is_new(node):
            self.counts.add(value)
            if not self._is_exact(node):
                self.inexact.add(value)
        elif self._is_flag(node, numbers):
            self.flags.add(value)
        elif not numbers or not self.plain.issuperset(numbers):
            return
        elif not _KEEP_COUNTS.isdisjoint(node.traits) and not self._masks(node, numbers):
            summed = Trait.SUMS in node.traits and not self.flags.isdisjoint(numbers)
            if summed or not self.counts.isdisjoint(numbers):
                self.counts.add(value)
            if not self.inexact.isdisjoint(numbers) and not self._normalizes(node):
                self.inexact.add(value)
        self.plain.add(value)
        self._others.discard(value)
        if value not in self.counts and self._is_feature(node, numbers):
            self.features.add(value)

    def _is_feature(self, node: Node, numbers: Sequence[int]) -> bool:
        if node.traits.isdisjoint(_MAKE_FEATURES):
            return not self.features.isdisjoint(numbers)
        whole = (self.counts, self.flags, self.bits, self.bytes)
        return all(map(set(numbers).isdisjoint, whole)) and not self._fixed.issuperset(node.inputs)

    def _masks(self, node: Node, numbers: Sequence[int]) -> bool:
        """Checks if a node multiplies or divides features by integers that no counter made."""
        scaled = numbers if Trait.MULTIPLIES in node.traits else node.inputs[:1]
        if self.features.isdisjoint(scaled) or not scales(node):
            return False
        return self._fixed.isdisjoint(self.counts.intersection(numbers))

    def _is_new(self, node: Node) -> bool:
        """Checks if a node counts, or converts integers to numbers; an unknown one may do so."""
        read = [self._values[v].dtype for v in node.inputs]
        if not node.traits.isdisjoint(_FROM_INTEGERS):
            return bool(read) and all(dtype in _INTEGERS for dtype in read)
        return _COUNTS in node.traits

    def counts_flags(self, dot: Node) -> bool:
        """Checks if a dot counts truth values or multiplies bytes, beyond what half can count."""
        if not all(self._is_whole(value) for value in dot.inputs):
            return False
        if not self.bytes.isdisjoint(dot.inputs):
            return True
        made = sum(self._values[value].size for value in dot.outputs)
        return flops_of(dot) / (2.0 * max(made, 1)) > 2.0 / self._half.epsilon

    def _is_whole(self, value: int) -> bool:
        """Checks if all elements are truth values or bytes, as are those of a constant triangle."""
        known = self._values[value].constant
        if known is not None:
            return known.low in (0.0, 1.0) and known.high in (0.0, 1.0)
        return value in self.flags or value in self.bits or value in self.bytes

    def is_moved_far(self, node: Node) -> bool:
        """Checks if a node adds a number near which half is too coarse, and float32 is not.

        A mask of -1e9 is beyond that, and leaves no digits in float32 either.
        """
        if self.plain.issuperset(node.inputs):
            return False
        epsilons = self._half.epsilon, _FULL_EPSILON
        coarse, useless = (2.0 * _ERROR / epsilon for epsilon in epsilons)
        added = (known for v in node.inputs if (known := self._values[v].constant) is not None)
        return any(
            known.largest < useless and (known.low >= coarse or known.high <= -coarse)
            for known in added
        )

    def _normalizes(self, node: Node) -> bool:
        """Checks if a node makes integers small: pixels divided by 255, or by their deviation."""
        for slot, value in enumerate(node.inputs):
            known = self._values[value].constant
            if Trait.DIVIDES in node.traits and slot == 1:
                return known is None or known.smallest >= _DIVISOR
            if Trait.MULTIPLIES in node.traits and known is not None:
                return known.largest <= 1.0 / _DIVISOR
        return False

    def _is_exact(self, node: Node) -> bool:
        """Returns True if half represents every integer that a node may make."""
        interval = self._ranges.of(node.outputs[0])
        most = 2.0 / self._half.epsilon
        return interval is not None and -most <= interval[0] <= interval[1] <= most

    def _is_flag(self, node: Node, numbers: Sequence[int]) -> bool:
        if _CONVERTS in node.traits and node.inputs:
            return self._values[node.inputs[0]].dtype == "bool"
        moves = _COMMUTES in node.traits and bool(node.inputs)
        return moves and self.flags.issuperset(numbers)

    def _is_bit(self, value: int) -> bool:
        """Returns True for the constants 0 and 1, also repeated, and for both together."""
        found = self._values[value]
        known = found.constant
        if known is None or not {known.low, known.high} <= {0.0, 1.0}:
            return value in self.bits
        return known.low == known.high or found.size == 2

    def _is_byte(self, node: Node, numbers: Sequence[int]) -> bool:
        if _CONVERTS in node.traits and node.inputs:
            return self._values[node.inputs[0]].dtype in ("int8", "uint8")
        keeps = _COMMUTES in node.traits or Trait.ADDS in node.traits
        own = self.bytes.intersection(numbers)
        rest = (v for v in numbers if v not in own)
        return keeps and bool(own) and all(self._values[v].constant is not None for v in rest)


def _before_rounding(graph: Graph, classes: Classes, plain: set[int]) -> set[int]:
    """Returns the arithmetic between the last dot and a rounding to integers."""
    rounding = (node for node in graph.having(_CONVERTS, _ROUNDS) if _rounds(node, graph))
    rounded = [v for node in rounding for v in node.inputs]
    return _arithmetic_before(rounded, graph, classes, plain, sampled=False)


def _before_sampling(graph: Graph, classes: Classes, plain: set[int]) -> set[int]:
    """Returns the last dot before the positions of a reading, and the arithmetic after it."""
    positions = [v for n in graph.nodes if "positions" in n.attributes for v in _positions(n)]
    return _arithmetic_before(positions, graph, classes, plain, sampled=True)


def _positions(node: Node) -> list[int]:
    slots = node.attributes["positions"]
    return [node.inputs[slot] for slot in slots] if isinstance(slots, tuple) else []


def _arithmetic_before(
    read: Iterable[int], graph: Graph, classes: Classes, plain: set[int], *, sampled: bool
) -> set[int]:
    """Finds the arithmetic between the last dot and some values; for reads, that dot too."""
    found, walk = set[int](), Walk(graph, (v for v in read if v not in plain))
    for value, node in walk:
        kind = classes.nodes[node.index].kind
        if kind is Kind.ALLOW and sampled:
            found.add(node.index)
            continue
        if kind is Kind.INFER:
            others = (v for v in node.inputs if v not in plain)
            large = [v for v in others if graph.values[v].size >= value.size]
            if not sampled and Trait.ADDS in node.traits and len(large) > 1:
                continue
            found.add(node.index)
        elif node.traits.isdisjoint({Trait.COMMUTES, Trait.UNDESCRIBED}):
            continue
        walk.to(v for v in node.inputs if v not in plain)
    return found


def _rounds(node: Node, graph: Graph) -> bool:
    made = graph.values[node.outputs[0]].dtype if node.outputs else ""
    converts = _CONVERTS in node.traits and made.startswith(("int", "uint"))
    return converts or _ROUNDS in node.traits
