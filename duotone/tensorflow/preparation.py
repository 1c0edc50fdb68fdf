"""Preparation: the changes to a GraphDef before its units are made.

::

    preserved    fetches, feeds, placeholders and nodes with a keep mark keep their types
    op versions  FusedBatchNorm takes no half; its second version does, with float32 statistics
    types        a missing type attribute is set to its op's default
    controls     a control input from a node that is a data input as well, or twice, is dropped
"""

from __future__ import annotations

from collections.abc import Sequence

from duotone.ops.tensorflow_kinds import PLACEHOLDERS
from duotone.tensorflow.checks import check_names, node_of
from duotone.tensorflow.protos import FLOAT, GraphDef
from duotone.tensorflow.units import FindOp, split_input

SECOND_VERSION = {
    "FusedBatchNorm": "FusedBatchNormV2",
    "FusedBatchNormGrad": "FusedBatchNormGradV2",
}
"""Ops whose second version takes half inputs with float32 statistics."""


def find_preserved(graph: GraphDef, fetch: Sequence[str], feed: Sequence[str]) -> set[str]:
    """Returns the names of the nodes that keep their types."""
    check_names(graph, "fetch", fetch)
    check_names(graph, "feed", feed)
    kept = {node_of(name) for name in (*fetch, *feed)}
    return kept | {node.name for node in graph.node if node.op in PLACEHOLDERS}


def use_second_versions(graph: GraphDef, processed: Sequence[bool]) -> dict[str, tuple[str, str]]:
    """Turns FusedBatchNorm into its second version; returns what changed."""
    changes = {}
    for node, may_change in zip(graph.node, processed, strict=True):
        if may_change and node.op in SECOND_VERSION:
            changes[node.name] = (node.op, SECOND_VERSION[node.op])
            node.op = SECOND_VERSION[node.op]
            node.attr["U"].type = FLOAT
    return changes


def write_default_types(graph: GraphDef, find_op: FindOp) -> None:
    """Writes out type attributes that nodes leave to the defaults of their ops."""
    missing: dict[str, list[tuple[str, int]]] = {}
    for node in graph.node:
        if node.op not in missing:
            definition = find_op(node.op)
            attributes = definition.attributes.values() if definition is not None else ()
            missing[node.op] = [
                (a.name, a.default) for a in attributes if a.kind == "type" and a.has_default
            ]
        for name, default in missing[node.op]:
            if name not in node.attr:
                node.attr[name].type = default


def drop_doubled_controls(graph: GraphDef) -> None:
    """Drops redundant control inputs: duplicates, or from a node whose data is read anyway.

    A Switch makes data on one side only, so a control input from it is not redundant.
    """
    switches = {node.name for node in graph.node if node.op in ("Switch", "RefSwitch")}
    for node in graph.node:
        if len(node.input) < 2 or not node.input[-1].startswith("^"):
            continue
        read = {split_input(text)[0] for text in node.input if not text.startswith("^")}
        seen: set[str] = set()
        kept = []
        for text in node.input:
            name = text.removeprefix("^")
            if name != text and (name in seen or (name in read and name not in switches)):
                continue
            if name != text:
                seen.add(name)
            kept.append(text)
        if len(kept) < len(node.input):
            node.input[:] = kept
