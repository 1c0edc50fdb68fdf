"""Drawn: the operations and casts of a record as the nodes of a graph with edges, for viewers.

Name scopes become groups. A cast stands beside the first operation that reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from duotone.precision.record import CastRecord, OperationRecord, Record

CAST = "cast"
"""The operation and the precision of a cast."""


class DrawnNode(NamedTuple):
    """One node.

    Attributes:
        name: of its own; groups by slashes, without spaces and colons.
        operation: of JAX, or :data:`CAST`.
        reads: names of the nodes whose results it reads.
        precision: what it is coloured by, such as ``"half (float16)"``.
        list: the list that the operation is on, in words; empty for a cast.
        why: more, by name: the rule, its reason, the source line.
        shape: of its result; empty for a cast and a scalar.
    """

    name: str
    operation: str
    reads: tuple[str, ...]
    precision: str
    list: str
    why: Mapping[str, str]
    shape: tuple[str, ...] = ()


def drawn_nodes(record: Record) -> list[DrawnNode]:
    """The graph of a record: its casts, then its operations, in their order."""
    names = {o.index: _name(o.scope, f"{o.operation}.{o.index}") for o in record.operations}
    between: dict[tuple[int, int], str] = {}
    beforehand: dict[int, list[str]] = {}  # casts of what no operation makes, by their readers
    found: list[DrawnNode] = []
    for number, cast in enumerate(record.casts):
        drawn = _cast(number, cast, names)
        found.append(drawn)
        for target in cast.targets:
            between.update({(source, target): drawn.name for source in cast.sources})
            if not cast.sources:
                beforehand.setdefault(target, []).append(drawn.name)
    for operation in record.operations:
        index = operation.index
        reads = [between.get((source, index), names[source]) for source in operation.reads]
        reads += beforehand.get(index, [])
        found.append(_operation(operation, names[index], reads, record.summary.half_dtype))
    return found


def _cast(number: int, cast: CastRecord, names: Mapping[int, str]) -> DrawnNode:
    first = next((names[target] for target in cast.targets), "")
    name = _name(first.rpartition("/")[0], f"cast.{number}_to_{cast.to}")
    reads = tuple(names[source] for source in cast.sources)
    why = {"to": cast.to, "value": f"{cast.maker}[{','.join(cast.shape)}]"}
    return DrawnNode(name, CAST, reads, CAST, "", why)


def _operation(operation: OperationRecord, name: str, reads: list[str], half: str) -> DrawnNode:
    o = operation
    why = {
        "rule": o.rule,
        "reason": o.reason,
        "source": o.source,
        "result": f"{o.dtype}[{','.join(o.shape)}]",
        "runs": str(o.runs),
        "FLOPs": f"{o.flops:.6g}",
        "bytes": f"{o.bytes} ({o.bytes_full} in float32)",
        **dict(o.optimizations),
    }
    listed = f"{o.list} list" if o.list != "unlisted" else o.list
    precision = _precision(o.paint, o.stored, half)
    read_once = tuple(dict.fromkeys(reads))
    return DrawnNode(name, o.operation, read_once, precision, listed, why, o.shape)


def _precision(compute: str, stored: str, half: str) -> str:
    """The words by which a node is coloured."""
    words = {"half": f"half ({half})", "full": "full (float32)"}
    if compute == stored:
        return words[compute]
    return f"computes {compute}, stores {stored}"


def _name(scope: str, last: str) -> str:
    """A name as viewers take it: no spaces, no colons, groups by slashes."""
    parts = [part for part in scope.split("/") if part]
    return "/".join(re.sub(r"[^A-Za-z0-9_.()\-]", "_", part) for part in (*parts, last))
