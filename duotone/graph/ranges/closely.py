"""Values to look at closely: a small error of theirs is not a small error of what follows.

Who calls this: :mod:`duotone.graph.ranges.refine`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from duotone.graph.classify.classes import Classes
from duotone.graph.graph import Graph, Node
from duotone.graph.ranges.find import Ranges
from duotone.graph.ranges.interval import Interval
from duotone.ops.entries import Kind

_ALL = (0, 1, 2)
POLES: dict[str, tuple[int, ...]] = {
    "div": (1,),
    **dict.fromkeys("sqrt rsqrt cbrt pow atanh acos asin erf_inv lgamma digamma".split(), _ALL),
}
"""Operations, and which operands, that magnify a small error next to some number."""
CLOSELY: dict[str, tuple[int, ...]] = {
    **POLES,
    **dict.fromkeys("rem floor ceil round nextafter cumprod reduce_prod".split(), _ALL),
    **dict.fromkeys("argmax argmin sort top_k eq ne lt le gt ge".split(), _ALL),
}
"""Operations, and which operands, in which a small error of an operand is not a small error of the
result."""
_LOGS = frozenset("log log1p log2 cumlogsumexp".split())
_SUMS = frozenset(
    "reduce_sum cumsum reduce_window_sum scatter-add scatter-sub loop.accumulator".split()
)
_EVENS_OUT = frozenset("exp exp2 logistic cos cosh erfc".split())
"""Functions that are far from 0 where their operand is near it: a small error of the operand is a
small one of the result, relative to it too."""


def looked_at_closely(
    graph: Graph, classes: Classes, ranges: Ranges, by: Mapping[str, tuple[int, ...]] = CLOSELY
) -> set[int]:
    """Values of which some reader, now or later, needs more than their absolute value.

    Backward from ``by`` and logarithms through everything but allow operations, which read half in
    any case, and :data:`_EVENS_OUT`. Sums even out errors, so only what is logged
    afterwards is looked at closely through one.
    """
    close: dict[int, bool] = {}
    queue: list[int] = []

    def mark(value: int, logged: bool) -> None:
        if value not in close or (logged and not close[value]):
            close[value] = logged
            queue.append(value)

    for node in graph.nodes:
        if node.op in _LOGS:
            mark(node.inputs[0], True)
        elif node.op in by or node.op == "integer_pow":
            for value in _close_operands(node, ranges):
                mark(value, False)
    values, nodes = graph.values, graph.nodes
    while queue:
        value = queue.pop()
        producer = values[value].producer
        if producer < 0:
            continue
        op, kind = nodes[producer].op, classes.nodes[producer].kind
        stops = op in _EVENS_OUT or kind is Kind.ALLOW or (op in _SUMS and not close[value])
        if not stops:
            for operand in nodes[producer].inputs:
                if values[operand].constant is None:
                    mark(operand, close[value])
    return set(close)


def _close_operands(node: Node, ranges: Ranges) -> Iterator[int]:
    """Operands that ``node`` looks at closely."""
    if node.op == "integer_pow":
        exponent = node.attributes.get("exponent", 1.0)
        slots: Sequence[int] = (0,) if isinstance(exponent, float) and exponent < 0 else ()
    else:
        slots = CLOSELY[node.op]
    for slot, value in enumerate(node.inputs):
        if slot in slots and not (node.op in _DIVISIONS and _away_from_zero(ranges.of(value))):
            yield value


_DIVISIONS = ("div", "integer_pow", "rsqrt", "sqrt")


def _away_from_zero(interval: Interval | None) -> bool:
    """True if a small absolute error is a small relative one."""
    return interval is not None and (interval[0] >= 0.5 or interval[1] <= -0.5)
