"""TensorLists: the ops of one list of tensors agree on a precision, and readers depend on writers.

A TensorList is a variant: its handle passes from op to op, and each op has the type of its elements
in an attribute (``element_dtype``). No port joins these attributes, so::

    cluster   = float32 TensorList ops joined through variant units, whatever op carries the handle
    unsafe    = a member is not processed, or the handle comes from or goes to an argument, a
                result, a function call or an Optional: other uses of the list are unknown
    edge      = writer -> reader, where the reader's handle comes from the writer's
    agree     : one member denied, all are; otherwise one allowed, all are
"""

from __future__ import annotations

import dataclasses

from duotone.errors import GraphDefError
from duotone.graph.reach import reach
from duotone.ops.tensorflow_kinds import LIST_ENDS, LIST_READERS, LIST_WRITERS
from duotone.tensorflow.journal import Journal, PaintedUnit, Stage
from duotone.tensorflow.protos import FLOAT, VARIANT
from duotone.tensorflow.unit_facts import Facts
from duotone.tensorflow.units import TypeAttribute, Units

_HANDLE = TypeAttribute("", -1, VARIANT)


@dataclasses.dataclass(frozen=True, slots=True)
class ListCluster:
    """The ops of one list.

    Attributes:
        members: units of their element types.
        roots: the members of processed nodes.
        unsafe: whether the list must keep its type.
    """

    members: tuple[int, ...]
    roots: tuple[int, ...]
    unsafe: bool


def element_unit(units: Units, node: int) -> int | None:
    """Returns the unit of a TensorList op's float32 element type, or None for any other node."""
    if "TensorList" not in units.nodes[node].op:
        return None
    for unit in units.of_node[node]:
        attribute = units.attribute[unit]
        if attribute.name and attribute.position < 0 and units.dtype[unit] == FLOAT:
            return unit
    return None


def find_clusters(facts: Facts) -> list[ListCluster]:
    """Returns all clusters of a graph that have a processed member."""
    units = facts.units
    if not any("TensorList" in node.op for node in units.nodes):
        return []
    neighbours = [b + a for b, a in zip(units.before, units.after, strict=True)]
    seen: set[int] = set()
    clusters = []
    for root in range(len(units)):
        node = units.node[root]
        if root in seen or units.attribute[root] != _HANDLE or not facts.processed[node]:
            continue
        if element_unit(units, node) is None:
            continue
        joined = {root} | reach([root], neighbours, lambda _: True)
        seen |= joined
        clusters.append(_cluster(facts, sorted(joined)))
    return clusters


def _cluster(facts: Facts, joined: list[int]) -> ListCluster:
    """Returns the cluster of a connected set of units."""
    units = facts.units
    members: dict[int, None] = {}
    roots: dict[int, None] = {}
    unsafe = False
    for unit in joined:
        node = units.node[unit]
        element = element_unit(units, node)
        if element is None:
            op = units.nodes[node].op
            unsafe = unsafe or op in LIST_ENDS or op in facts.functions
            continue
        members[element] = None
        if not facts.processed[node]:
            unsafe = True
        elif units.attribute[unit] == _HANDLE:
            roots[element] = None
    return ListCluster(tuple(members), tuple(roots), unsafe)


def hidden_edges(facts: Facts, clusters: list[ListCluster]) -> list[tuple[int, int]]:
    """Yields, for each reader, an edge from every writer upstream of its handle.

    Raises:
        GraphDefError: a float32 reader reads what was written with another element type.
    """
    units = facts.units
    edges = []
    for cluster in clusters:
        for reader in cluster.members:
            node = units.node[reader]
            if units.nodes[node].op not in LIST_READERS or not facts.processed[node]:
                continue
            handles = [u for u in units.of_node[node] if units.attribute[u] == _HANDLE]
            for unit in sorted(reach(handles, units.before, facts.is_processed)):
                writer = units.node[unit]
                if units.nodes[writer].op in LIST_WRITERS:
                    edges.append((_written(units, writer, node), reader))
    return edges


def _written(units: Units, writer: int, reader: int) -> int:
    element = element_unit(units, writer)
    if element is None:
        raise GraphDefError(
            f"node {units.nodes[reader].name!r} reads a list of float32 tensors that "
            f"{units.nodes[writer].name!r} writes with another element type: such a graph fails at "
            "run time."
        )
    return element


def agree(
    cluster: ListCluster,
    allow: dict[int, str],
    deny: dict[int, str],
    journal: Journal,
    stage: Stage,
) -> None:
    """Gives all members one precision; changes ``allow`` and ``deny``, and writes the journal."""
    if any(member in deny for member in cluster.members):
        for member in cluster.members:
            allow.pop(member, None)
            deny.setdefault(member, "tensor_list")
    elif any(member in allow for member in cluster.members):
        for member in cluster.members:
            allow.setdefault(member, "tensor_list")
    else:
        return
    journal.extend(PaintedUnit(stage, member, deny=member in deny) for member in cluster.members)
