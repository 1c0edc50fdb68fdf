"""What the original pass writes down: graphs before and after, paint buckets, lines of its log.

Files have TensorFlow's names, so that scripts which read them go on working::

    graphdef_preop_<item>_<time>.pb            and .pb.txt    before
    graphdef_AutoMixedPrecision_<item>_<time>.pb and .pb.txt  after; not where nothing was allowed
    paintbuckets_AutoMixedPrecision_<item>_<time>.txt         the four lists

The item is ``tf_graph`` or the name of a function of the library, each of which is rewritten on its
own. The time is in milliseconds. Text is parsable: the first line of TensorFlow's own is not, and
is left out. Log lines have TensorFlow's wording; they stand by pass and there in the graph's order,
for float32 types only, and a type that several passes paint is in the line of the last.

Who calls this: ``road``, twice for each body. What goes wrong: a folder that cannot be written to
(``OSError``); the policy has checked that it exists.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from google.protobuf import text_format

from duotone._files import write_atomically
from duotone.policy import Policy
from duotone.tensorflow.checks import node_of
from duotone.tensorflow.lists import Lists
from duotone.tensorflow.protos import GraphDef, NodeDef
from duotone.tensorflow.record import BodyResult, Decision

logger = logging.getLogger("duotone.painter")

_VARIABLES = frozenset(
    {"Variable", "VariableV2", "AutoReloadVariable", "VarHandleOp", "ReadVariableOp"}
)
# The rules of each pass, in the order of the passes, with the line that opens the pass.
_PASSES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Beginning pass 1 to add allowlist ops", ("allow_list", "forced")),
    (
        "Beginning pass 2 to propagate deny forwards from denylist ops through clear/inferlist ops",
        ("deny_list", "deny"),
    ),
    (
        "Beginning pass 3 to set clear and infer nodes to allow if they are between allow ops",
        ("between",),
    ),
    (
        "Beginning pass 4 to add infer list ops to allow if they directly follow allow nodes",
        ("follow",),
    ),
    (
        "Beginning pass 5 to propagate allow from allow nodes through clearlist ops",
        ("clear", "cut"),
    ),
    (
        "Beginning pass 6 to remove some nodes which could not be changed to F16 from allow set",
        ("impossible",),
    ),
    ("Forcing color match between data structure ops", ("tensor_list",)),
    ("Forcing color match on loop edges", ("loop",)),
    ("Finding existing casts that can be made allow", ()),
)


@dataclasses.dataclass(frozen=True)
class Dump:
    """Where and whether the rewrite of one graph or function is written down.

    Attributes:
        item: what is rewritten: ``"tf_graph"`` or the name of a function.
        folder: for the files, or None.
        log: whether lines are logged.
        time: part of the names of the files, milliseconds.
    """

    item: str
    folder: Path | None
    log: bool
    time: int

    def before(self, graph: GraphDef) -> None:
        """Writes the graph as it came."""
        self._write_graph("preop", graph)

    def after(self, graph: GraphDef, lists: Lists, result: BodyResult, dtype: str) -> None:
        """Writes the graph as it is now, the lists, and the lines of the log.

        Args:
            graph: after the rewrite.
            lists: that were painted by.
            result: what was done.
            dtype: ``"float16"`` or ``"bfloat16"``.
        """
        if self.log:
            name = "auto_mixed_precision" + ("_onednn_bfloat16" if dtype == "bfloat16" else "")
            _log([f"Running {name} graph optimizer on {self.item}"])
            _log(log_lines(graph, result, dtype))
        if self.folder is None or not _found_work(result):
            return
        self._write_graph("AutoMixedPrecision", graph)
        name = f"paintbuckets_AutoMixedPrecision_{self.suffix}.txt"
        write_atomically(self.folder / name, paint_buckets(lists))

    def _write_graph(self, stage: str, graph: GraphDef) -> None:
        if self.folder is None:
            return
        file = self.folder / f"graphdef_{stage}_{self.suffix}.pb"
        write_atomically(file, graph.SerializeToString())
        write_atomically(file.with_name(f"{file.name}.txt"), text_format.MessageToString(graph))

    @property
    def suffix(self) -> str:
        """What the names of its files end in."""
        # Names of functions come from the graph: none may lead out of the folder.
        return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', self.item)[:150]}_{self.time}"


def start(policy: Policy, item: str) -> Dump:
    """What will be written down of one graph or function.

    Args:
        policy: with the environment merged in.
        item: ``"tf_graph"`` or the name of a function.
    """
    dump = Dump(item, policy.log_path, policy.log_decisions, time.time_ns() // 1_000_000)
    folder = dump.folder
    while folder is not None and (folder / f"graphdef_preop_{dump.suffix}.pb").exists():
        dump = dataclasses.replace(dump, time=dump.time + 1)  # two graphs within a millisecond
    return dump


def paint_buckets(lists: Lists) -> str:
    """The four lists as TensorFlow writes them, ops in alphabetical order."""
    parts = (
        "\n".join((f"{kind.capitalize()}List:", *sorted(getattr(lists, kind)), ""))
        for kind in ("allow", "deny", "infer", "clear")
    )
    return "\n".join(parts)


def log_lines(graph: GraphDef, result: BodyResult, dtype: str) -> Iterator[str]:
    """The lines that TensorFlow logs of a rewrite.

    Args:
        graph: after the rewrite.
        result: what was done.
        dtype: ``"float16"`` or ``"bfloat16"``.
    """
    half = "half" if dtype == "float16" else dtype
    yield from _skipped(result.decisions)
    yield "Converting FusedBatchNorm* ops to V2"
    for node, (before, after) in result.op_changes.items():
        yield f"Changing op of {before} node {node} to {after}"
    if not _found_work(result):
        yield "No allowlist ops found, nothing to do"
        return
    for number, (opening, rules) in enumerate(_PASSES, start=1):
        yield opening
        for decision in result.decisions:
            if decision.rule in rules:
                yield from _painting(decision)
        if f"pass {number}" in opening:
            yield f"Finished pass {number}"
    yield "Beginning final pass to change type attributes and insert Cast ops at paint boundaries"
    changed = [decision for decision in result.decisions if decision.colour != "f32"]
    for decision in changed:
        where = f"type {decision.attribute} of {decision.op} node {decision.node}"
        yield f"Changing {where} to {half}"
    nodes_by_name = {node.name: node for node in graph.node}
    counted = 0
    for cast in result.casts:
        source = nodes_by_name[cast.source.rpartition(":")[0]]
        dtype_to = "DT_FLOAT" if cast.to == "f32" else half
        yield f"Inserting cast to {dtype_to} at {source.op} {cast.source}"
        counted += cast.to != "f32" and not _is_stored(source, nodes_by_name)
    nodes = len({decision.node for decision in changed})
    yield (
        f"Converted {nodes}/{len(graph.node) - len(result.casts)} nodes to {dtype} precision using "
        f"{counted} cast(s) to {dtype} (excluding Const and Variable casts)"
    )
    yield "Finished final pass"


def _is_stored(node: NodeDef, nodes: Mapping[str, NodeDef]) -> bool:
    """Whether a node gives a constant or a variable, so that its cast is not counted."""
    for op in ("Enter", "Identity"):  # a variable is read through one or both, in this order
        if node.op == op and node.input:
            behind = nodes.get(node_of(node.input[0]))
            node = node if behind is None else behind
    return node.op == "Const" or node.op in _VARIABLES


def _skipped(decisions: Iterable[Decision]) -> Iterator[str]:
    """One line for each node that was not processed."""
    reasons = {
        "preserved": "must be preserved",
        "device": "is not on the GPU, or the GPU arch is not suitable",
    }
    seen: set[str] = set()
    for decision in decisions:
        if decision.rule in reasons and decision.node not in seen:
            seen.add(decision.node)
            reason = reasons[decision.rule]
            yield f"Skipping {decision.op} node {decision.node} because it {reason}"


def _painting(decision: Decision) -> Iterator[str]:
    """The line of one decision, if it is one that TensorFlow logs."""
    attribute, op, node = decision.attribute, decision.op, decision.node
    if decision.rule in ("allow_list", "forced"):
        reason = f"because its op {op} is on the allowlist"
        yield f"Painting type {attribute} of node {node} ALLOW {reason}"
    elif decision.rule == "impossible":
        if decision.list == "allow":
            yield (
                f"UnPainting type {attribute} of node {node} ALLOW because its op {op} is not "
                "support F16 DataType"
            )
    else:
        colour = "DENY" if decision.colour == "f32" else "ALLOW"
        reason = {
            "tensor_list": f" because at least one of its siblings is {colour}",
            "loop": " to match the color of its output Merge node(s)",
        }.get(decision.rule, "")
        yield f"Painting type {attribute} of {op} node {node} {colour}{reason}"


def _found_work(result: BodyResult) -> bool:
    """Whether there was an allow op. Of nodes that are not processed the rule does not tell."""
    idle = {"preserved", "device", "nothing_allowed"}
    return any(decision.rule not in idle for decision in result.decisions)


def _log(lines: Iterable[str]) -> None:
    """Logs to standard error unless logging is set up otherwise."""
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
    for line in lines:
        logger.info(line)
