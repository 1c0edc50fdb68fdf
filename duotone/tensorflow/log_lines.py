"""Log lines: what ``TF_CPP_VMODULE=auto_mixed_precision=2`` makes TensorFlow log, in its words.

::

    nodes that are not processed, ops that change      lists of tensors, once for each of their ops
    each pass, and what it painted when it did so      the final pass: types, ports, casts

The lines and their order are TensorFlow's. The exception is an order that TensorFlow takes from a
hash table: that of functions, of the types of one node and the nodes reached from them, of the
ports of one type, and of the ops on one list. A minimum cut, which TensorFlow does not have, adds a
separate part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from duotone.ops.tensorflow_kinds import VARIABLE_VALUES
from duotone.tensorflow.journal import PaintedUnit, Stage
from duotone.tensorflow.passes import Precisions, reads_variable
from duotone.tensorflow.protos import FLOAT
from duotone.tensorflow.rewrite_record import BodyResult
from duotone.tensorflow.tensor_lists import hidden_edges
from duotone.tensorflow.unit_facts import Facts

MAIN_GRAPH = "tf_graph"
"""TensorFlow's name for the graph itself, next to its functions."""

_PASSES: tuple[tuple[str, Stage], ...] = (
    ("pass 1 to add allowlist ops", "allow_list"),
    (
        "pass 2 to propagate deny forwards from denylist ops through clear/inferlist ops",
        "deny",
    ),
    ("Forcing color match between data structure ops", "lists_after_deny"),
    ("pass 3 to set clear and infer nodes to allow if they are between allow ops", "between"),
    ("pass 4 to add infer list ops to allow if they directly follow allow nodes", "follow"),
    ("pass 5 to propagate allow from allow nodes through clearlist ops", "clear"),
    (
        # The missing blank is missing there, too.
        "pass 6 to remove some nodes which could not be changed to F16from allow set",
        "impossible",
    ),
    ("Forcing color match between data structure ops", "lists_after_all"),
    ("Forcing color match on loop edges", "loop"),
    ("Choosing the colors that move the fewest bytes through casts", "cut"),
)


@dataclasses.dataclass(frozen=True)
class Rewrite:
    """The rewrite of one graph or function, as its log tells it."""

    item: str
    level: str
    preserved: Sequence[bool]
    facts: Facts
    precisions: Precisions
    result: BodyResult


def log_lines(done: Rewrite) -> Iterator[str]:
    """Yields the lines that TensorFlow logs of a rewrite."""
    cuda = done.facts.dtype == "float16"
    name = "auto_mixed_precision" + ("" if cuda else "_onednn_bfloat16")
    if cuda:
        yield "No support for auto_mixed_precision_onednn_float16 graph optimizer on CPU"
    where = "" if done.item == MAIN_GRAPH else f" on {done.item}"
    yield f"Running {name} graph optimizer{where}"
    yield f"Optimization Level: {done.level}"
    yield from _preparation(done)
    yield from _tensor_lists(done)
    yield from _passes(done)
    if done.precisions.found_work:
        yield "Finding existing casts that can be made allow"
        yield (
            "Beginning final pass to change type attributes and insert Cast ops at paint boundaries"
        )
        yield from _final_pass(done)
        yield "Finished final pass"


def _preparation(done: Rewrite) -> Iterator[str]:
    """Yields nodes that are not processed, and ops that change."""
    facts = done.facts
    yield "Identifying nodes that should be processed"
    device = "GPU" if facts.dtype == "float16" else "CPU"
    elsewhere = f"is not on the {device}, or the {device} arch is not suitable"
    for position, node in enumerate(facts.units.nodes):
        if not facts.processed[position]:
            reason = "must be preserved" if done.preserved[position] else elsewhere
            yield f"Skipping {node.op} node {node.name} because it {reason}"
    yield "Converting FusedBatchNorm* ops to V2"
    for name, (before, after) in done.result.op_changes.items():
        yield f"Changing op of {before} node {name} to {after}"
    yield "Building node type map for graph"
    yield "Constructing graph type attribute topology view"


def _tensor_lists(done: Rewrite) -> Iterator[str]:
    """Yields the lines of tensor lists; TensorFlow finds each list anew from each of its ops."""
    units = done.facts.units

    def where(unit: int) -> str:
        node = units.nodes[units.node[unit]]
        return f"{node.op} node {node.name}"

    for cluster in done.precisions.clusters:
        lines = [f"Found safe Tensor List cluster of size {len(cluster.members)}"]
        lines += [f"  Cluster member: {where(member)}" for member in cluster.members]
        for writer, reader in hidden_edges(done.facts, [cluster]):
            lines.append(f"Adding ephemeral float32 edge from {where(writer)} to {where(reader)}")
        yield from lines * len(cluster.roots)


def _passes(done: Rewrite) -> Iterator[str]:
    """Returns the log lines of each pass: the nodes that it painted."""
    events: dict[str, list[PaintedUnit]] = {}
    for event in done.precisions.journal:
        events.setdefault(event.stage, []).append(event)
    roots = {m: len(c.roots) for c in done.precisions.clusters for m in c.members}
    for opening, stage in _PASSES:
        if stage == "cut" and stage not in events:
            continue
        number = opening[:6] if opening.startswith("pass") else ""
        yield f"Beginning {opening}" if number else opening
        for event in events.get(stage, ()):
            line = _painting(done, event)
            repeats = roots[event.unit] if stage in ("lists_after_deny", "lists_after_all") else 1
            yield from [line] * repeats
        if number:
            yield f"Finished {number}"
        if not done.precisions.found_work:
            yield "No allowlist ops found, nothing to do"
            return


def _painting(done: Rewrite, event: PaintedUnit) -> str:
    """Returns the line of one event."""
    units = done.facts.units
    node = units.nodes[units.node[event.unit]]
    precision = "DENY" if event.deny else "ALLOW"
    what = f"Painting type {units.attribute[event.unit]} of"
    if event.stage == "allow_list":
        return f"{what} node {node.name} ALLOW because its op {node.op} is on the allowlist"
    if event.stage == "impossible":
        reason = f"because its op {node.op} is not support F16 DataType"
        return f"Un{what} node {node.name} ALLOW {reason}"
    reason = ""
    if event.stage in ("lists_after_deny", "lists_after_all"):
        reason = f" because at least one of its siblings is {precision}"
    elif event.cause is not None:
        other = units.nodes[units.node[event.cause]].name
        reason = (
            f" to match the color of its sibling Merge nodes with common NextIteration node {other}"
        )
    elif event.stage == "loop":
        reason = " to match the color of its output Merge node(s)"
    return f"{what} {node.op} node {node.name} {precision}{reason}"


def _final_pass(done: Rewrite) -> Iterator[str]:
    """Yields the lines of types and casts, in the order of the nodes."""
    units, allow = done.facts.units, done.precisions.allow
    dtype = done.facts.dtype
    half = "half" if dtype == "float16" else dtype
    casts = {cast.source: cast for cast in done.result.casts}
    changed = counted = 0
    yield "Setting emulate_f16 = false"
    for unit, position in enumerate(units.node):
        if units.dtype[unit] != FLOAT:
            continue
        node = units.nodes[position]
        if unit in allow:
            changed += 1
            yield f"Changing type {units.attribute[unit]} of {node.op} node {node.name} to {half}"
        for port, owner in enumerate(units.outputs[position]):
            if owner != unit:
                continue
            source = f"{node.name}:{port}"
            yield f"Cast to required data type at fanout of node {source}"
            if source in casts:
                to_full = casts[source].to == "f32"
                target = "DT_FLOAT" if to_full else half
                yield f"Inserting cast to {target} at {node.op} {source}"
                stored = node.op == "Const" or node.op in VARIABLE_VALUES
                counted += not (to_full or stored or reads_variable(units, position))
    yield (
        f"Converted {changed}/{len(units.nodes)} nodes to {dtype} precision using {counted} "
        f"cast(s) to {dtype} (excluding Const and Variable casts)"
    )
