"""Tiny graphs, written by hand.

::

    t = Tiny()
    x, w = t.input(64), t.input(16)
    h = t.op("dot", x, w, size=64)
    t.returns(t.op("exp", h))
    painted = t.paint()
    assert painted[h] == "half allow"

``painted[value]`` is the precision and the rule of the node that makes a value: ``"half allow"``,
``"full taint"``; ``"half>full wide"`` where it computes in one precision and stores in the other.
The lists below are a handful of operations, one or two for each thing that a list entry can say.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from duotone.graph.check import check_graph
from duotone.graph.graph import (
    FULL_DTYPE,
    HALF_TYPES,
    Body,
    BodyKind,
    Boundary,
    Graph,
    HalfType,
    Node,
    Paint,
    Value,
)
from duotone.graph.magnitude import Magnitude
from duotone.ops.entries import (
    STRUCTURAL_ENTRIES,
    Entry,
    Kind,
    Pointwise,
    Taint,
    traits_by_name,
    traits_of,
)
from duotone.ops.traits import Trait
from duotone.precision.casts.cast_plan import CastPlan, plan_casts
from duotone.precision.classify.classes import Classes, Pins, classify
from duotone.precision.classify.declining import decline, keep_accumulators
from duotone.precision.classify.lists import OpLists
from duotone.precision.classify.profitability import EVERYTHING, Profitability
from duotone.precision.context import Background
from duotone.precision.painters import PAINTERS
from duotone.precision.painters.painting import Painting, check_painting

_NO_PINS = Pins()
FLOAT16 = HALF_TYPES["float16"]
BFLOAT16 = HALF_TYPES["bfloat16"]


def _entry(op: str, kind: Kind, *traits: Trait, **features: Any) -> Entry:
    reason = f"{op} is on the {kind.value} list"
    return Entry(op, kind, reason, "tests", traits=frozenset(traits), **features)


ENTRIES = (
    _entry("dot", Kind.ALLOW, Trait.CONTRACTS, Trait.WIDE),
    _entry("conv", Kind.ALLOW),
    _entry("add", Kind.INFER, Trait.ADDS, pointwise=Pointwise.CHEAP),
    _entry("mul", Kind.INFER, pointwise=Pointwise.CHEAP),
    _entry("div", Kind.INFER, Trait.DIVIDES),
    _entry("tanh", Kind.INFER),
    _entry("exp", Kind.DENY),
    _entry("sum", Kind.DENY),
    Entry("log", Kind.DENY, "used by difference", "tests", taint=Taint.ADDITIVE),
    _entry("relu", Kind.CLEAR, Trait.COMMUTES),
    _entry("rowmax", Kind.CLEAR, Trait.COMMUTES, Trait.SELECTS),
    _entry("select", Kind.CLEAR, Trait.COMMUTES),
    _entry("reshape", Kind.CLEAR, Trait.COMMUTES, Trait.RESHAPES),
    _entry("name", Kind.CLEAR, Trait.COMMUTES, Trait.NAMES),
    _entry("broadcast", Kind.CLEAR, Trait.COMMUTES),
    _entry("gather", Kind.CLEAR, Trait.COMMUTES, Trait.GATHERS),
    _entry("round", Kind.CLEAR),
    _entry("concat", Kind.CLEAR, Trait.COMMUTES, Trait.PARTS),
    _entry("pad", Kind.CLEAR, Trait.COMMUTES, Trait.PARTS),
)
_TRAITS = traits_by_name((*STRUCTURAL_ENTRIES, *ENTRIES))
SUMS = tuple(
    dataclasses.replace(entry, traits=frozenset({Trait.SUMS, Trait.AVERAGES}))
    if entry.op == "sum"
    else entry
    for entry in ENTRIES
)
"""With sums in which roundings even out."""


@dataclasses.dataclass(frozen=True)
class Painted:
    """A painted tiny graph."""

    graph: Graph
    classes: Classes
    painting: Painting
    plan: CastPlan

    def __getitem__(self, value: int) -> str:
        """Precision and rule of the node that makes ``value``."""
        node = self.graph.values[value].producer
        compute, store = self.painting.compute[node], self.painting.store[node]
        precision = str(compute) if compute is store else f"{compute}>{store}"
        return f"{precision} {self.painting.rules[node]}"

    def detail(self, value: int) -> str:
        """The words that go with the rule."""
        return self.painting.details.get(self.graph.values[value].producer, "")

    def casts(self) -> list[tuple[int, str, int, int]]:
        """Each cast: value, to, body, number of readers."""
        return [(c.value, str(c.to), c.body, len(c.readers)) for c in self.plan.casts if not c.free]


class Tiny:
    """Builds a graph operation by operation; values are plain integers."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._values: list[Value] = []
        self._bodies = [Body(0, -1, BodyKind.ROOT, 1)]
        self._inputs: list[int] = []
        self._outputs: list[tuple[int, Boundary]] = []
        self._body = 0
        self._scope = ""
        self._region = ""

    def _value(self, size: int, dtype: str, body: int, **fields: object) -> int:
        index = len(self._values)
        self._values.append(Value(index, size, (size,), dtype, body=body, **fields))  # type: ignore[arg-type]
        return index

    def input(self, size: int = 64, dtype: str = FULL_DTYPE, given: Paint = Paint.FULL) -> int:
        """An argument of the program."""
        self._inputs.append(self._value(size, dtype, 0, given=given))
        return self._inputs[-1]

    def constant(self, number: float, *, largest: float = 0.0, size: int = 1) -> int:
        """A constant whose elements have magnitudes from ``number`` to ``largest``."""
        magnitude = Magnitude(number, largest) if largest else Magnitude.of(number)
        return self._value(size, FULL_DTYPE, self._body, constant=magnitude)

    def op(
        self,
        name: str,
        *inputs: int,
        size: int = 0,
        dtype: str = FULL_DTYPE,
        fixed: str = "",
        flops: float = 0.0,
    ) -> int:
        """An operation with one result, as large as its largest operand unless ``size`` says."""
        size = size or max(self._values[v].size for v in inputs)
        return self.multi(name, inputs, [(size, dtype, self._body)], fixed=fixed, flops=flops)[0]

    def multi(
        self,
        name: str,
        inputs: Sequence[int],
        results: Sequence[tuple[int, str, int]],
        *,
        fixed: str = "",
        flops: float = 0.0,
    ) -> list[int]:
        """An operation with several results: size, dtype and body of each."""
        index = len(self._nodes)
        outputs = [self._value(s, dtype, body, producer=index) for s, dtype, body in results]
        self._nodes.append(
            Node(
                index=index,
                op=name,
                list_key=name,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                half_inputs=tuple(self._values[v].dtype == FULL_DTYPE for v in inputs),
                half_outputs=tuple(dtype == FULL_DTYPE for _, dtype, _ in results),
                body=self._body,
                scope=self._scope,
                region=self._region,
                source=f"line {index}",
                flops=flops,
                fixed=fixed,
                traits=traits_of(_TRAITS, name),
            )
        )
        return outputs

    def dot(self, *inputs: int, size: int = 64) -> int:
        """An allow operation; with no operands given, of two new inputs."""
        return self.op("dot", *(inputs or (self.input(64), self.input(64))), size=size)

    @contextlib.contextmanager
    def within(self, kind: BodyKind, trips: int = 1) -> Iterator[int]:
        """A nested program; its operations are those added inside."""
        around = self._body
        self._body = len(self._bodies)
        total = trips * self._bodies[around].trips
        self._bodies.append(Body(self._body, around, kind, total))
        yield self._body
        self._body = around

    def loop(self, trips: int = 10) -> contextlib.AbstractContextManager[int]:
        """A loop."""
        return self.within(BodyKind.LOOP, trips)

    def barrier(self) -> contextlib.AbstractContextManager[int]:
        """A branch, or a region that is recomputed."""
        return self.within(BodyKind.BARRIER)

    @contextlib.contextmanager
    def scope(self, scope: str = "", region: str = "") -> Iterator[None]:
        """A name scope or a pinned region."""
        before = self._scope, self._region
        self._scope, self._region = scope or self._scope, region or self._region
        yield
        self._scope, self._region = before

    def carry(self, initial: int, *, op: str = "loop.carry") -> tuple[int, int]:
        """A loop carry, inside the loop: its value inside and after; to be closed."""
        size = self._values[initial].size
        parent = self._bodies[self._body].parent
        places = [(size, FULL_DTYPE, self._body), (size, FULL_DTYPE, parent)]
        inside, after = self.multi(op, [initial], places)
        return inside, after

    def close(self, inside: int, result: int) -> None:
        """Hands the body's result to a carry."""
        index = self._values[inside].producer
        node = self._nodes[index]
        self._nodes[index] = dataclasses.replace(
            node,
            inputs=(*node.inputs, result),
            half_inputs=(*node.half_inputs, self._values[result].dtype == FULL_DTYPE),
        )

    def stack(self, value: int, trips: int = 10) -> int:
        """The stacked results of a loop, inside it."""
        parent = self._bodies[self._body].parent
        size = self._values[value].size * trips
        return self.multi("loop.stack", [value], [(size, FULL_DTYPE, parent)])[0]

    def slice(self, value: int, trips: int = 10) -> int:
        """One iteration's slice of a stacked operand, inside the loop."""
        size = self._values[value].size // trips
        return self.op("loop.slice", value, size=size)

    def join(self, *results: int) -> int:
        """One result of a conditional."""
        return self.op("branch.join", *results)

    def returns(self, *values: int, boundary: Boundary = Boundary.FULL) -> None:
        """Results of the program."""
        self._outputs += [(value, boundary) for value in values]

    def goes_on(self, *values: int) -> None:
        """The program goes on with values: an infer operation reads each, then an allow one.

        So each is neither state nor may a cast move before it for nothing.
        """
        for value in values:
            self.returns(self.dot(self.op("tanh", value), self.input(64), size=32))

    def graph(self) -> Graph:
        """The graph, checked."""
        return check_graph(
            Graph(
                tuple(self._nodes),
                tuple(self._values),
                tuple(self._bodies),
                tuple(self._inputs),
                tuple(self._outputs),
            )
        )

    def paint(
        self,
        painter: str = "duotone",
        *,
        half: HalfType = FLOAT16,
        pins: Pins = _NO_PINS,
        edit: Callable[[OpLists], OpLists] = lambda lists: lists,
        entries: Sequence[Entry] = ENTRIES,
        force_all: bool = False,
        profitability: Profitability = EVERYTHING,
    ) -> Painted:
        """Classifies, declines, paints and plans."""
        graph = self.graph()
        lists = edit(OpLists.for_half(entries, half.name))
        classes = classify(graph, lists, half, pins, force_all=force_all)
        background = Background(graph, half, profitability=profitability)
        classes = decline(classes, background)
        painting = keep_accumulators(PAINTERS[painter](graph, classes, ()), background)
        check_painting(painting, graph)
        return Painted(graph, classes, painting, plan_casts(graph, classes, painting))
