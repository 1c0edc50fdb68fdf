"""Explained: what was rewritten in a running TensorFlow, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rich.console import RenderableType

from duotone.errors import plural
from duotone.precision.classify.classes import Pins
from duotone.precision.classify.unmatched import unmatched
from duotone.tensorflow import graph_view
from duotone.tensorflow.live import switch
from duotone.tensorflow.live.graphs import LiveGraph, find_unsafe
from duotone.text.columns import plain


@dataclasses.dataclass(frozen=True, slots=True)
class LiveExplanation:
    """The graphs that were rewritten since the rewrite was switched on.

    ``print`` shows the totals of each graph, and the ops of the largest one.

    Attributes:
        graphs: the graphs, oldest first; the latest 64.
        unsafe: the half nodes of the largest graph that duotone's safety rules would keep float32,
            with the reasons; always empty for duotone's own painter.
    """

    graphs: tuple[LiveGraph, ...]
    unsafe: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)

    def nodes(self, pattern: str = "*", *, most: int | None = 50) -> str:
        """Returns a line for each node of the largest graph whose name fits a pattern.

        Args:
            pattern: shell wildcards.
            most: the most lines; ``None`` for all.
        """
        if not self.graphs:
            return str(self)
        return plain(graph_view.by_node(self._largest.result, pattern, most))

    @property
    def _largest(self) -> LiveGraph:
        return max(self.graphs, key=lambda graph: graph.nodes)

    def __str__(self) -> str:
        """Returns the totals of each graph, and the ops of the largest one."""
        if not self.graphs:
            return (
                "no graph was rewritten: mixed precision is off, or nothing ran since it was "
                "switched on, or no op of the graphs gains from half."
            )
        lines = [
            f"{plural(graph.nodes, 'node')}: {graph.half} half, "
            f"{plural(len(graph.result.casts), 'cast')}, {graph.seconds:.2f} s"
            for graph in self.graphs
        ]
        table: RenderableType = graph_view.by_op(self._largest.result)
        return "\n".join((*lines, *self._unmatched(), *self._unsafe(), "", plain(table)))

    def _unsafe(self) -> list[str]:
        """Returns a line about the half nodes of another painter that are not safe, if any."""
        if not self.unsafe:
            return []
        node, words = next(iter(self.unsafe.items()))
        return [
            f"{plural(len(self.unsafe), 'half node')} of the largest graph would be float32 by "
            f"duotone's safety rules, such as {node!r} ({words}). Policy(painter='duotone') keeps "
            "them; explain_last().unsafe has all."
        ]

    def _unmatched(self) -> list[str]:
        """Returns a line for each of the user's patterns that no node of the graphs matches."""
        settings = switch.settings()
        if settings is None or settings.policy is None:
            return []
        pins = Pins(full=settings.policy.keep_full)
        names = {name for graph in self.graphs for name in graph.result.painting}
        return [
            f"Policy({field}=[{pattern!r}]) matches no node of these graphs; "
            'explain_last().nodes("*", most=None) shows their names.'
            for field, pattern in unmatched(pins, names)
            if switch.FLOAT32_SCOPE not in pattern
        ]


def explain_last() -> LiveExplanation:
    """Explains what was rewritten since mixed precision was switched on.

    Returns:
        The graphs, with the precision of each operation and its reason.

    Example:
        >>> import duotone.tensorflow
        >>> duotone.tensorflow.explain_last().graphs
        ()
    """
    graphs, largest = switch.rewritten_graphs(), switch.largest_graph()
    if largest is None:
        return LiveExplanation(graphs)
    compiled = next((g.result.unsafe for g in reversed(graphs) if g.nodes == largest.nodes), {})
    return LiveExplanation(graphs, {**compiled, **find_unsafe(largest)})
