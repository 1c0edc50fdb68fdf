"""Views of rewritten TensorFlow graphs: tables for a terminal, graphs for TensorBoard."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from duotone.explaining import tensorboard
from duotone.explaining.tensorboard import CAST, Shown
from duotone.tensorflow.protos import HALVES, GraphDef, bodies_of
from duotone.tensorflow.rewrite_file import GraphResult
from duotone.tensorflow.rewrite_record import RULES, BodyResult, Decision, RewriteResult
from duotone.text.numbers import add_row, amount

_STYLE = {"f16": "green", "bf16": "green", "f32": "yellow"}
_HALF = {"f16": "half (float16)", "bf16": "half (bfloat16)"}
_FULL = "full (float32)"
_SHOWN = 3


def bodies(result: BodyResult) -> Iterator[tuple[str, BodyResult]]:
    """Yields the graph, named ``""``, and the functions of its library by name."""
    yield "", result
    if isinstance(result, RewriteResult):
        yield from result.functions.items()


class Totals(NamedTuple):
    """The figures of one rewrite, the functions of its library included.

    Attributes:
        half: nodes with a half type.
        nodes: nodes with a type that is or was float32.
        to_half: casts to half.
        to_full: casts to float32.
        bytes: the bytes that casts read and write, as far as shapes are known.
        unknown: casts of unknown shape.
    """

    half: int
    nodes: int
    to_half: int
    to_full: int
    bytes: int
    unknown: int

    @property
    def cast_bytes(self) -> str:
        """The bytes of casts in words."""
        if self.unknown and self.unknown == self.to_half + self.to_full:
            return "unknown, as the shapes are"
        more = f", {self.unknown} of unknown shape not counted" if self.unknown else ""
        return amount(self.bytes, "B") + more


def totals(result: BodyResult) -> Totals:
    """Returns the figures of one rewrite."""
    everything = [body for _, body in bodies(result)]
    casts = [cast for body in everything for cast in body.casts]
    to_half = sum(cast.to != "f32" for cast in casts)
    return Totals(
        sum(body.half_nodes for body in everything),
        sum(len(body.painting) for body in everything),
        to_half,
        len(casts) - to_half,
        sum(cast.bytes or 0 for cast in casts),
        sum(cast.bytes is None for cast in casts),
    )


def summary(graph: GraphResult) -> Table:
    """Returns the totals of one graph: painted nodes, casts and their bytes, changed ops."""
    result = graph.result
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    if graph.tags:
        add_row(table, "tags", ", ".join(graph.tags))
    what = "kept (nothing reads them)" if graph.guessed else "fetched"
    add_row(table, what, _some(graph.fetch))
    if graph.feed:
        add_row(table, "fed", _some(graph.feed))
    t = totals(result)
    add_row(table, "nodes half", f"{t.half} of {t.nodes} with float32 types")
    add_row(table, "casts", f"{t.to_half + t.to_full}: {t.to_half} to half, {t.to_full} to float32")
    add_row(table, "cast bytes", t.cast_bytes)
    before = half_before(graph.before)
    already = ", ".join(f"{count} of {name}" for name, count in sorted(before.items()))
    if already:
        add_row(table, "half already", f"nodes as they were read: {already}")
    everything = [body for _, body in bodies(result)]
    changes = Counter(pair for body in everything for pair in body.op_changes.values())
    shown = (f"{a} to {b} ({count})" for (a, b), count in sorted(changes.items()))
    add_row(table, "op changes", ", ".join(shown) or "none")
    if not t.half:
        rules = Counter(d.rule for body in everything for d in body.decisions)
        reasons = ["the graph is half already"] if already else []
        reasons += [RULES[rule] for rule, _ in rules.most_common(2)]
        add_row(table, "why none", "; ".join(reasons) or "there is no float32 in the graph")
    if result.functions:
        add_row(table, "functions", f"{len(result.functions)}, each painted on its own")
    return table


def half_before(graph: GraphDef) -> Counter[str]:
    """Returns the number of nodes of a graph and its functions that have a half type already.

    Returns:
        Counts by the name of the half type; empty for a float32 graph.
    """
    counts: Counter[str] = Counter()
    for node in (node for _, nodes in bodies_of(graph) for node in nodes):
        types = {t for value in node.attr.values() for t in (value.type, *value.list.type)}
        counts.update(name for name, dtype in HALVES.items() if dtype in types)
    return counts


def table_of(*left: str | Column, right: Iterable[str] = ()) -> Table:
    """Returns a table without rows and lines; the columns in ``right`` are of numbers."""
    numbers = (Column(name, justify="right", overflow="fold") for name in right)
    return Table(*left, *numbers, box=None, pad_edge=False, header_style="bold")


def comparison(results: Mapping[str, RewriteResult]) -> Table:
    """Returns several rewrites of one graph as columns of a table.

    Args:
        results: by the name of the painter.
    """
    table = table_of("painter", right=("nodes half", "casts to half", "to float32", "cast bytes"))
    for name, result in results.items():
        t = totals(result)
        add_row(table, name, str(t.half), str(t.to_half), str(t.to_full), t.cast_bytes)
    return table


def by_op(result: BodyResult) -> Table:
    """Returns a line for each op, list and reason: how many types became half or stayed."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for _, body in bodies(result):
        for decision in body.decisions:
            rows = counts.setdefault((decision.op, decision.list), Counter())
            rows["half" if decision.precision != "f32" else decision.rule] += 1
    table = table_of("op", "list")
    table.add_column("half", justify="right", style="green")
    table.add_column("float32", justify="right", style="yellow")
    table.add_column("why float32", overflow="fold")
    for (op, kind), rows in sorted(counts.items()):
        reasons = [(rule, count) for rule, count in rows.most_common() if rule != "half"]
        add_row(
            table,
            op,
            kind,
            str(rows["half"] or ""),
            str(sum(count for _, count in reasons) or ""),
            "; ".join(RULES[rule] for rule, _ in reasons),
        )
    return table


def by_node(result: BodyResult, pattern: str, most: int | None = None) -> Group:
    """Returns one line for each type attribute of the nodes whose names fit a pattern.

    Args:
        result: the result of a rewrite.
        pattern: shell wildcards; nodes of functions are named ``function/node``.
        most: how many lines are shown.
    """
    names = ("node", "op", "type", "list", "paint", "why")
    table = table_of(*(Column(name, overflow="fold") for name in names))
    rows = [
        (where, decision)
        for where, body in bodies(result)
        for decision in body.decisions
        if fnmatch.fnmatchcase(_path(where, decision.node), pattern)
    ]
    for where, d in rows[:most]:
        paint = Text(d.precision, style=_STYLE[d.precision])
        add_row(table, _path(where, d.node), d.op, d.attribute, d.list, paint, d.words)
    hidden = len(rows) - len(rows[:most])
    more = [Text(f"… and {hidden} more")] if hidden else []
    return Group(table, *more) if rows else Group(Text(f"no node fits {pattern!r}"))


def write_tensorboard(logdir: str | Path, before: Any, result: RewriteResult) -> tuple[Path, Path]:
    """Writes a graph before and after its rewrite, as the runs ``before`` and ``after``.

    Args:
        logdir: folder that TensorBoard is started on; made where missing.
        before: the GraphDef that was rewritten.
        result: the result of :func:`duotone.tensorflow.rewrite`.

    Returns:
        The two event files.

    Raises:
        ArgumentError: the folder is a file, or cannot be made.
    """
    shown: dict[str, Shown] = {}
    for where, body in bodies(result):
        by_node: dict[str, list[Decision]] = {}
        for decision in body.decisions:
            by_node.setdefault(decision.node, []).append(decision)
        shown |= {_path(where, node): _shown(found) for node, found in by_node.items()}
    was = {name: s._replace(precision=_FULL) for name, s in shown.items()}
    first = tensorboard.write_graph(Path(logdir) / "before", tensorboard.painted(before, was))
    for where, body in bodies(result):
        for cast in body.casts:
            why = {"casts": cast.source, "to": cast.to}
            shown[_path(where, cast.name)] = Shown(CAST, "", why)
    after = tensorboard.painted(result.graph_def, shown)
    return first, tensorboard.write_graph(Path(logdir) / "after", after)


def _shown(decisions: list[Decision]) -> Shown:
    """Returns how a node with these decisions is shown."""
    found = {decision.precision for decision in decisions}
    half = next((_HALF[precision] for precision in found if precision in _HALF), "")
    precision = (f"{half} and float32" if "f32" in found else half) if half else _FULL
    kind = decisions[0].list
    why = {f"_paint_{d.attribute}": f"{d.precision}: {d.list}; {d.words}" for d in decisions}
    return Shown(precision, kind if kind == "unlisted" else f"{kind} list", why)


def _path(where: str, node: str) -> str:
    return f"{where}/{node}" if where else node


def _some(names: tuple[str, ...]) -> str:
    """Returns the first few names."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more if names else "nothing"
