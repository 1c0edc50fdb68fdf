"""Converts the operations and casts of a record to nodes and edges for graph viewers.

Name scopes become groups. A cast goes into the group of the first operation that reads it.
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
        name: a unique name without spaces and colons; slashes separate groups.
        operation: the JAX operation, or :data:`CAST`.
        reads: names of the nodes whose results it reads.
        precision: the precision that sets its color, such as ``"half (float16)"``.
        list: the list that the operation is on, in words; empty for a cast.
        why: further attributes by name: the rule, its reason, the source line.
        shape: the shape of its result; empty for a cast and a scalar.
    """

    name: str
    operation: str
    reads: tuple[str, ...]
    precision: str
    list: str
    why: Mapping[str, str]
    shape: tuple[str, ...] = ()


def drawn_nodes(record: Record) -> list[DrawnNode]:
    """Returns the graph of a record: its casts, then its operations in program order."""
    names = {o.index: _name(o.scope, f"{o.operation}.{o.index}") for o in record.operations}
    between: dict[tuple[int, int], str] = {}
    of_arguments: dict[int, list[str]] = {}  # casts of values that no operation makes, by reader
    found: list[DrawnNode] = []
    for number, cast in enumerate(record.casts):
        drawn = _cast(number, cast, names)
        found.append(drawn)
        for target in cast.targets:
            between.update({(source, target): drawn.name for source in cast.sources})
            if not cast.sources:
                of_arguments.setdefault(target, []).append(drawn.name)
    for operation in record.operations:
        index = operation.index
        reads = [between.get((source, index), names[source]) for source in operation.reads]
        reads += of_arguments.get(index, [])
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
    """Returns the words that set the color of a node."""
    words = {"half": f"half ({half})", "full": "full (float32)"}
    if compute == stored:
        return words[compute]
    return f"computes {compute}, stores {stored}"


def _name(scope: str, last: str) -> str:
    """Returns a name that viewers accept: no spaces, no colons, slashes between groups."""
    parts = [part for part in scope.split("/") if part]
    return "/".join(re.sub(r"[^A-Za-z0-9_.()\-]", "_", part) for part in (*parts, last))
