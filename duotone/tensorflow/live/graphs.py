"""Graphs: what happens to one graph that TensorFlow is about to run."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from duotone.policy.policy import Policy
from duotone.tensorflow.calls import keep_calls, release
from duotone.tensorflow.devices import DEFAULT_DEVICE, Device
from duotone.tensorflow.live.unfuse import unfuse
from duotone.tensorflow.pipeline import rewrite_nodes, rewrite_one_of_many
from duotone.tensorflow.preparation import PLACEHOLDERS
from duotone.tensorflow.protos import BOOL, STRING, GraphDef, library_of, new_graph
from duotone.tensorflow.rewrite_record import BodyResult, RewriteResult

_DONE = "_duotone_done"
"""The attribute of casts that were added here: Grappler calls a plug-in twice for a graph. Casts
without it come from a file that was rewritten before, and the rest of the graph may be float32."""
_FAILED = "duotone/failed"
LARGEST_TEXT = 2**28
"""The size in bytes up to which a graph and its rewritten form are kept for comparisons."""


@dataclasses.dataclass(frozen=True, slots=True)
class LiveSettings:
    """How graphs are rewritten.

    Attributes:
        dtype: ``"float16"`` or ``"bfloat16"``.
        policy: the user's policy; the environment is merged into it.
        device: the device whose rules decide.
        any_device: whether every node counts as one on ``device``, wherever it runs. Tests paint
            for a GPU and run on a CPU.
    """

    dtype: str
    policy: Policy
    device: Device = DEFAULT_DEVICE
    any_device: bool = False

    @property
    def painter(self) -> str:
        """The painter of the policy and the environment."""
        return self.policy.merged_with_environment().painter


@dataclasses.dataclass(frozen=True, slots=True)
class LiveGraph:
    """A graph that was rewritten before it ran.

    Attributes:
        nodes: the number of its nodes before.
        result: the precisions, casts and reasons.
        seconds: the time of the rewrite.
    """

    nodes: int
    result: BodyResult
    seconds: float

    @property
    def half(self) -> int:
        """The number of nodes with a half type."""
        return self.result.half_nodes


@dataclasses.dataclass(frozen=True, slots=True)
class KeptGraph:
    """A graph before and after its rewrite.

    Attributes:
        nodes: the number of its nodes before.
        settings: how it was rewritten.
        preserved: names of nodes that keep their types.
        texts: both graphs, serialized; empty if they are larger than :data:`LARGEST_TEXT`.
        function: the function of their libraries that XLA compiles; empty for the graphs
            themselves.
    """

    nodes: int
    settings: LiveSettings
    preserved: tuple[str, ...] = dataclasses.field(repr=False)
    texts: tuple[bytes, ...] = dataclasses.field(repr=False)
    function: str = ""


def rewrite_live(
    data: bytes, preserved: Sequence[str], settings: LiveSettings
) -> tuple[bytes, LiveGraph] | None:
    """Rewrites a serialized graph.

    Args:
        data: the graph that Grappler passes: placed, inlined, control flow lowered.
        preserved: names of nodes that keep their types.
        settings: how to rewrite.

    Returns:
        The new graph and its record; ``None`` for a graph that stays as it is: it was rewritten
        before, or it belongs to an input pipeline.
    """
    start = time.perf_counter()
    graph = new_graph.FromString(data)
    is_rewritten = any(_DONE in node.attr for node in graph.node)
    if is_rewritten or _is_of_dataset(graph, preserved):
        return None
    count = len(graph.node)
    result = _rewrite(graph, preserved, settings)
    done = LiveGraph(count, result, time.perf_counter() - start)
    return graph.SerializeToString(), done


def find_unsafe(kept: KeptGraph) -> Mapping[str, str]:
    """Returns the half nodes that duotone's safety rules would keep float32, with the reasons."""
    if kept.function or not kept.texts or kept.settings.painter == "duotone":
        return {}
    # Rewritten again, since the first call of a step is not to wait for this.
    graph = new_graph.FromString(kept.texts[0])
    return _rewrite(graph, kept.preserved, kept.settings, checked=True).unsafe


def _rewrite(
    graph: GraphDef, preserved: Collection[str], settings: LiveSettings, *, checked: bool = False
) -> BodyResult:
    """Rewrites a graph in place."""
    unfuse(graph)
    names = {node.name for node in graph.node}
    kept = {name for name in preserved if name in names}
    kept |= {node.name for node in graph.node if node.op in PLACEHOLDERS}
    placed = {node.name: node.device for node in graph.node} if settings.any_device else {}
    for node in graph.node if placed else ():
        node.device = ""
    result = rewrite_nodes(
        graph,
        kept,
        dtype=settings.dtype,
        device=settings.device,
        policy=settings.policy,
        checked=checked,
    )
    made = {cast.name for cast in result.casts}
    for node in graph.node:
        if node.name in made:
            node.attr[_DONE].b = True
    _place(graph, placed)
    return result


def rewrite_traced(graph: GraphDef, name: str, settings: LiveSettings) -> LiveGraph:
    """Rewrites a graph's functions in place: those that XLA compiles."""
    start = time.perf_counter()
    fetched = [node.name for node in graph.node if node.op not in PLACEHOLDERS]
    done = rewrite_unlowered(graph, fetched, settings, compiled=True)
    graph.CopyFrom(done.graph_def)
    result = done.functions[name]
    count = len(library_of(graph)[name].node_def) - len(result.casts)
    return LiveGraph(count, result, time.perf_counter() - start)


def rewrite_unlowered(
    graph: GraphDef, fetched: Sequence[str], settings: LiveSettings, *, compiled: bool
) -> RewriteResult:
    """Rewrites a graph as Python traced it: with functions, and control flow is not lowered."""
    marks = keep_calls(graph)
    done = rewrite_one_of_many(
        graph,
        fetched,
        dtype=settings.dtype,
        device=settings.device,
        policy=settings.policy,
        compiled=compiled,
    )
    release(done.graph_def, marks)
    return done


def _is_of_dataset(graph: GraphDef, preserved: Collection[str]) -> bool:
    """Returns True for a function of ``tf.data``: all its arguments are nodes to keep."""
    arguments = [node.name for node in graph.node if node.op == "_Arg"]
    return bool(arguments) and set(arguments) <= set(preserved)


def _place(graph: GraphDef, placed: dict[str, str]) -> None:
    """Gives nodes their devices back; new ones get the most frequent one."""
    if not placed:
        return
    ((usual, _),) = Counter(placed.values()).most_common(1)
    for node in graph.node:
        node.device = placed.get(node.name, usual)


def failing(data: bytes, preserved: Sequence[str], message: str) -> bytes:
    """Returns a graph that raises an error when it runs.

    If a rewrite fails, TensorFlow runs the original graph, silently in float32.

    Args:
        data: the serialized graph.
        preserved: names of nodes to keep; none of them is computed before the error.
        message: what the error says.
    """
    graph = new_graph.FromString(data)
    if any(node.name == _FAILED for node in graph.node):
        return data  # Grappler calls a plug-in twice for a graph
    device = next((node.device for node in graph.node if "CPU" in node.device), "")
    never = graph.node.add(name=f"{_FAILED}/never", op="Const", device=device)
    never.attr["dtype"].type = never.attr["value"].tensor.dtype = BOOL
    never.attr["value"].tensor.bool_val.append(False)
    never.attr["value"].tensor.tensor_shape.SetInParent()
    words = graph.node.add(name=f"{_FAILED}/words", op="Const", device=device)
    words.attr["dtype"].type = words.attr["value"].tensor.dtype = STRING
    words.attr["value"].tensor.string_val.append(message.encode())
    words.attr["value"].tensor.tensor_shape.SetInParent()
    failed = graph.node.add(
        name=_FAILED, op="Assert", device=device, input=[never.name, words.name]
    )
    failed.attr["T"].list.type.append(STRING)
    failed.attr["summarize"].i = 1
    last = {*preserved} or {node.name for node in graph.node}
    for node in graph.node:
        if node.name in last and node.input and not node.name.startswith(_FAILED):
            node.input.append(f"^{_FAILED}")
    return graph.SerializeToString()
