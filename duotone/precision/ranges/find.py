"""Find: intervals of all values of a graph, in one pass over its nodes.

::

    start with the stated intervals of inputs, and with constants
    for each node, in program order:
        its rule gives the interval of its results from those of its operands
        its fact, if it has one, tightens that by a relation between two values
        a statement or a measurement of a result tightens it further
    a loop's carry starts as its initial value; if the body's result is not within it, the exceeded
        bound is removed and the pass starts again, until nothing exceeds

Values about which nothing is known are absent, so that the pass is cheap in most programs.

References:
    P. Cousot and R. Cousot, "Abstract interpretation", POPL 1977 (intervals and widening).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from duotone.errors import RangeError
from duotone.graph.graph import Graph, Node, Value
from duotone.ops.traits import Trait, Traits
from duotone.precision.ranges.elementwise import IntervalRule
from duotone.precision.ranges.facts import FACTS
from duotone.precision.ranges.interval import (
    Interval,
    Known,
    hull,
    in_float32,
    meet,
    outward,
    widened,
    within,
    words,
)
from duotone.precision.ranges.intervals import DTYPE_RANGES, INTERVAL_RULES, fits
from duotone.precision.ranges.relations import Findings

_FLOATS = ("float32", "float64")
_JOINS = 2
"""Passes in which a carry is extended to contain its next value; saturating states converge so."""
_PASSES = 6
"""Passes after which carries that still change lose their bounds."""

_CARRIES, _BOUNDED, _EXPONENTIAL = Trait.CARRIES, Trait.BOUNDED, Trait.EXPONENTIAL
_ABOUT_ZERO = 2.0**-10
_KEEPS_UNIT = frozenset(
    {Trait.COMMUTES, Trait.CONVERTS, Trait.ADDS, Trait.MULTIPLIES, Trait.SUMS_AXES}
)
FEW = 9
"""The most terms for which a sum of values of scale 1 has scale 1 too (a pooling window)."""
_ADDS_UP = frozenset({Trait.SUMS, Trait.SUMS_AXES, Trait.ADDS_INTO, Trait.CONTRACTS})
"""Traits of operations whose bound (all terms at their bound, with one sign) is far from real
data."""
_ACCUMULATES = frozenset({Trait.RUNNING, Trait.ADDS_INTO, Trait.CARRIES})


def is_sum_of_few(traits: Traits) -> bool:
    """Returns True for a sum along axes or over windows, unless it returns partial sums."""
    return Trait.SUMS_AXES in traits or (Trait.SUMS in traits and traits.isdisjoint(_ACCUMULATES))


def is_of_few(values: Sequence[Value], node: Node) -> bool:
    """Returns True if each element of a result comes from at most ``FEW`` elements."""
    read = max((values[v].size for v in node.inputs), default=0)
    return values[node.outputs[0]].size * FEW >= read


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """The range of a value on calibration data.

    Attributes:
        low: the least finite element.
        high: the greatest finite element.
        small: the share of nonzero elements that are below float16's normal numbers.
    """

    low: float
    high: float
    small: float


@dataclasses.dataclass(frozen=True, slots=True)
class Assumptions:
    """Ranges that the analysis takes as given.

    Attributes:
        stated: intervals that the user states, by value.
        measured: measurements of calibration, by value.
        names: the user's name for a value, for errors.
    """

    stated: Mapping[int, Interval] = dataclasses.field(default_factory=dict)
    measured: Mapping[int, Measured] = dataclasses.field(default_factory=dict)
    names: Mapping[int, str] = dataclasses.field(default_factory=dict)


NO_ASSUMPTIONS = Assumptions()


def measured_values(
    graph: Graph, names: Mapping[int, str], measured: Mapping[str, Measured]
) -> Assumptions:
    """Returns the measurements of calibration by value.

    Args:
        graph: the graph.
        names: by value, its name.
        measured: by name, its measurement.
    """
    values = {v: n for v, n in names.items() if n in measured and graph.values[v].paintable}
    return Assumptions({}, {v: measured[name] for v, name in values.items()}, values)


HEADROOM = 4.0
"""The factor by which a value may exceed its measurement, since training continues after it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ranges:
    """The known ranges of the values of a graph.

    Attributes:
        intervals: the intervals by value; absent if nothing is known.
        unit: values whose scale is about 1, so that only their absolute error counts.
        stated: values whose interval follows from a statement or a measurement without a sum,
            so that values beyond half may really occur there.
        measured: measurements of calibration, by value.
    """

    intervals: Mapping[int, Interval]
    unit: frozenset[int]
    stated: frozenset[int]
    measured: Mapping[int, Measured]

    def of(self, value: int) -> Known:
        """Returns the interval of a value, or ``None``."""
        return self.intervals.get(value)


NO_RANGES = Ranges(MappingProxyType({}), frozenset(), frozenset(), MappingProxyType({}))
"""No range is known."""


def find_ranges(
    graph: Graph,
    assumptions: Assumptions = NO_ASSUMPTIONS,
    rules: Mapping[str, IntervalRule] = INTERVAL_RULES,
) -> Ranges:
    """Finds an interval for each value about which something is known.

    Args:
        graph: the program.
        assumptions: the statements and measurements.
        rules: the interval rule of each operation; JAX's by default.

    Returns:
        Intervals that contain every element that is not NaN, if the assumptions are true.

    Raises:
        RangeError: a statement about a value contradicts what the analysis proves.
    """
    given = _given(assumptions)
    several = len(graph.bodies) > 1
    loops = graph.having(_CARRIES) if several else ()
    carries: dict[int, Known] = {}
    passes = 0
    while True:
        passes += 1
        one = _Pass(graph, assumptions, given, carries, rules)
        one.run()
        if not one.exceeded(loops, passes):
            break
    if one.narrow(loops):
        second = _Pass(graph, assumptions, given, carries, rules)
        second.run()
        one = one if second.exceeded(loops, passes) else second
    return Ranges(
        MappingProxyType(one.findings.known),
        frozenset(one.findings.unit),
        frozenset(one.stated),
        assumptions.measured,
    )


def _keeps_unit(traits: Traits) -> bool:
    """Returns True if results have the scale of the operands."""
    return not traits.isdisjoint(_KEEPS_UNIT) or is_sum_of_few(traits)


def _rounded(number: float, direction: float) -> float:
    """Returns a bound for a literal, whose digits may exceed those of its float32."""
    if math.isinf(number) or (number.is_integer() and abs(number) <= 2.0**24):
        return number
    return number + direction * abs(number) * 2.0**-23


def _given(assumptions: Assumptions) -> dict[int, Interval]:
    """Returns the assumed interval of each value, with room for rounding and growth."""
    given = {v: outward(*interval) or interval for v, interval in assumptions.stated.items()}
    for value, found in assumptions.measured.items():
        low = found.low * HEADROOM if found.low < 0 else found.low / HEADROOM
        high = found.high * HEADROOM if found.high > 0 else found.high / HEADROOM
        measured = outward(low, high)
        if measured is not None:
            given[value] = meet(given.get(value), measured) or measured
    return given


class _Pass:
    """One pass over the nodes.

    Attributes:
        findings: the results so far.
        stated: see :attr:`Ranges.stated`.
    """

    def __init__(
        self,
        graph: Graph,
        assumptions: Assumptions,
        given: Mapping[int, Interval],
        carries: dict[int, Known],
        rules: Mapping[str, IntervalRule],
    ) -> None:
        self._rules = rules
        self.findings = Findings(graph.values)
        self.stated = set(given)
        self._graph = graph
        self._assumptions = assumptions
        self._given = given
        self._carries = carries
        known = self.findings.known
        for value in graph.values:
            constant = value.constant
            if constant is None or not (value.dtype in _FLOATS or value.dtype in DTYPE_RANGES):
                continue
            found = in_float32(_rounded(constant.low, -1.0), _rounded(constant.high, 1.0))
            if found is not None:
                known[value.index] = found
        known.update((v, i) for v, i in given.items() if graph.values[v].producer < 0)

    def run(self) -> None:
        """Visits every node."""
        findings, carries, given = self.findings, self._carries, self._given
        rules = self._rules
        values, unit, get = findings.values, findings.unit, findings.known.get
        for node in self._graph.nodes:
            inputs, traits = node.inputs, node.traits
            rule = rules.get(node.interval)
            if rule is not None:
                operands = [get(v) for v in inputs]
                if _CARRIES in traits:
                    found = carries.get(node.index, operands[0])
                else:
                    found = rule(node, operands, values)
                fact = FACTS.get(node.interval)
                if fact is not None:
                    found = meet(found, fact(findings, node))
                if found is not None:
                    self._write(node, found)
                if _BOUNDED in traits or (
                    unit and not unit.isdisjoint(inputs) and _keeps_unit(traits)
                ):
                    self._spread_unit(node)
                elif _EXPONENTIAL in traits and operands[0] and operands[0][1] <= _ABOUT_ZERO:
                    unit.update(node.outputs)  # of scale 1: a bell, a softmax, an ELU
            if given:
                self._assume(node)

    def _write(self, node: Node, found: Interval) -> None:
        """Records an interval for the results whose dtype computes as float32 does."""
        values, known = self.findings.values, self.findings.known
        first = values[node.outputs[0]].dtype
        outputs = node.outputs
        if len(outputs) > 1 and Trait.SELECTS in node.traits:
            outputs = outputs[:1]  # the others are indices
        for value in outputs:
            dtype = values[value].dtype
            if dtype in _FLOATS or (
                dtype in DTYPE_RANGES and dtype == first and fits(found, dtype)
            ):
                known[value] = found

    def _spread_unit(self, node: Node) -> None:
        """Marks a result as of scale 1 if all its varying operands are."""
        unit, values = self.findings.unit, self.findings.values
        if Trait.BOUNDED not in node.traits:
            if not is_of_few(values, node):
                return  # a statistic: small, and worth keeping in float32
            floats = [v for v in node.inputs if values[v].dtype in _FLOATS]
            varying = [v for v in floats if values[v].constant is None]
            product = Trait.MULTIPLIES in node.traits and len(varying) > 1
            if product or not unit.issuperset(varying):
                return
        unit.update(v for v in node.outputs if values[v].dtype in _FLOATS)

    def _assume(self, node: Node) -> None:
        """Adds the statement and the measurement of a result to its proved interval."""
        known = self.findings.known
        if node.traits.isdisjoint(_ADDS_UP) and not self.stated.isdisjoint(node.inputs):
            self.stated.update(v for v in node.outputs if v in known)
        for value in node.outputs:
            given = self._given.get(value)
            if given is None:
                continue
            proved = known.get(value)
            apart = proved and (proved[0] > given[1] or given[0] > proved[1])
            if apart and value in self._assumptions.stated:
                name = self._assumptions.names.get(value, f"value {value}")
                raise RangeError(
                    f"ranges: {name} is stated to be {words(given)}, but the other ranges prove "
                    f"that it is {words(proved)} ({node.op} at {node.source}); correct one of the "
                    "ranges"
                )
            self.stated.add(value)
            known[value] = meet(proved, given) or given

    def exceeded(self, loops: Sequence[Node], passes: int) -> bool:
        """Extends carries whose interval is exceeded by the body's result; true if any were."""
        known, any_exceeded = self.findings.known, False
        for node in loops:
            inside = node.outputs[0]
            # The initial value counts too: it may come from a carry that was extended.
            needed = hull((known.get(node.inputs[0]), known.get(node.inputs[1])))
            if inside in self._given:
                needed = meet(needed, self._given[inside])
            if within(needed, known.get(inside)):
                continue
            any_exceeded = True
            was = self._carries.get(node.index, known.get(node.inputs[0]))
            if passes <= _JOINS:
                self._carries[node.index] = hull((was, needed))
            else:
                self._carries[node.index] = widened(was, needed) if passes <= _PASSES else None
        return any_exceeded

    def narrow(self, loops: Sequence[Node]) -> bool:
        """Restores removed bounds that the body keeps (a ``min``); true if any were."""
        known, any_narrowed = self.findings.known, False
        for node in loops:
            kept = hull((known.get(node.inputs[0]), known.get(node.inputs[1])))
            if kept is not None and not within(known.get(node.outputs[0]), kept):
                self._carries[node.index] = kept
                any_narrowed = True
        return any_narrowed
