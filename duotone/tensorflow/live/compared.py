"""Compared: the largest graph that was rewritten in a running TensorFlow, before and after."""

from __future__ import annotations

import dataclasses
import json

from rich.console import Group
from rich.table import Table
from rich.text import Text

from duotone.errors import ArgumentError, plural
from duotone.tensorflow.figures import GraphFigures, figures_of
from duotone.tensorflow.graph_view import table_of
from duotone.tensorflow.live import switch
from duotone.tensorflow.live.graphs import LARGEST_TEXT
from duotone.tensorflow.live.unfuse import unfuse
from duotone.tensorflow.protos import new_graph
from duotone.text.columns import plain
from duotone.text.numbers import add_row, amount

_MOST_OPS = 10


@dataclasses.dataclass(frozen=True, slots=True)
class LiveComparison:
    """The largest graph that was rewritten since the rewrite was switched on, before and after.

    ``print`` shows both side by side, and the ops whose bytes differ most.

    Attributes:
        dtype: the half type.
        before: the figures of the float32 graph.
        after: those of the graph that runs.
        graphs: the number of graphs that were rewritten.
    """

    dtype: str
    before: GraphFigures
    after: GraphFigures
    graphs: int

    @property
    def changes(self) -> dict[str, tuple[int, int]]:
        """The bytes before and after of each op that moves others, largest difference first."""
        before, after = self.before.bytes_by_op, self.after.bytes_by_op
        found = {op: (before.get(op, 0), after.get(op, 0)) for op in {**before, **after}}
        found = {op: pair for op, pair in found.items() if pair[0] != pair[1]}
        return dict(sorted(found.items(), key=lambda one: (-abs(one[1][0] - one[1][1]), one[0])))

    def to_json(self, *, indent: int | None = None) -> str:
        """Returns the figures as JSON.

        Args:
            indent: spaces of each level, as for ``json.dumps``; ``None`` for one line.
        """
        return json.dumps(dataclasses.asdict(self), indent=indent)

    def __str__(self) -> str:
        """Returns both graphs side by side, and the ops whose bytes differ most."""
        head = f"the largest of {plural(self.graphs, 'graph')} in {self.dtype}"
        note = (
            "Bytes are those that nodes read and write, an upper bound; a loop counts as one "
            "iteration, and a side that is not known as 32."
        )
        return plain(Group(Text(head), self._totals(), Text(), self._ops(), Text(), Text(note)))

    def _totals(self) -> Table:
        one, other = self.before, self.after
        table = table_of("", right=("float32", "rewritten", "ratio"))
        for name in ("nodes", "half", "casts"):
            add_row(table, name, f"{getattr(one, name):,}", f"{getattr(other, name):,}", "")
        for name, field in (("bytes", "bytes"), ("bytes of casts", "cast_bytes")):
            pair = getattr(one, field), getattr(other, field)
            ratio = f"{pair[1] / pair[0]:.2f}" if pair[0] else ""
            add_row(table, name, *(amount(size, "B") for size in pair), ratio)
        counts = (f"{figures.half_products:,} of {figures.products:,}" for figures in (one, other))
        add_row(table, "products in half", *counts, "")
        if one.flops and other.flops:
            shares = (f"{figures.half_flops / figures.flops:.0%}" for figures in (one, other))
            add_row(table, "their FLOPs", *shares, "")
        return table

    def _ops(self) -> Table:
        table = table_of("op", right=("bytes in float32", "rewritten"))
        for op, pair in list(self.changes.items())[:_MOST_OPS]:
            add_row(table, op, *(amount(size, "B") for size in pair))
        return table


def compare_last() -> LiveComparison:
    """Compares the largest rewritten graph with its float32 original.

    It counts nodes, half nodes, casts, products, and the bytes that nodes read and write; it runs
    nothing. :func:`duotone.tensorflow.explain_last` says why each node is half or float32.

    Returns:
        The figures of both graphs.

    Raises:
        ArgumentError: no graph was rewritten since mixed precision was switched on, or its text was
            too large to keep.

    Example:
        >>> import duotone.tensorflow
        >>> duotone.tensorflow.compare_last()
        Traceback (most recent call last):
        duotone.errors.ArgumentError: compare_last: no graph was rewritten ...
    """
    largest = switch.largest_graph()
    if largest is None:
        raise ArgumentError(
            "compare_last: no graph was rewritten since mixed precision was switched on. Run a "
            "step first; duotone.tensorflow.explain_last() says more."
        )
    if not largest.texts:
        raise ArgumentError(
            f"compare_last: graphs above {amount(LARGEST_TEXT, 'B')} are not kept. Save the model "
            "and compare the figures of `duotone rewrite`."
        )
    graphs = tuple(map(new_graph.FromString, largest.texts))
    unfuse(graphs[0])  # as the rewrite did; TensorFlow fuses the nodes of both again
    before, after = (figures_of(graph, largest.function) for graph in graphs)
    return LiveComparison(largest.settings.dtype, before, after, len(switch.rewritten_graphs()))
