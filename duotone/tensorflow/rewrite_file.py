"""Rewriting a file: what is in it, what must stay, each graph on the road, and writing it.

::

    read            GraphDef, MetaGraphDef or SavedModel, by content
    for each graph: keep    what signatures, savers and collections name; of a plain graph
                            whose results nobody named, the nodes that nothing reads
                            and what a While or If hands to its functions
                    rewrite (which checks the graph first)
    write           whole or not at all, in the kind that was read
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from duotone.errors import GraphDefError
from duotone.policy.policy import Policy
from duotone.tensorflow import files
from duotone.tensorflow.calls import function_names, keep_calls, release
from duotone.tensorflow.checks import node_of
from duotone.tensorflow.devices import DEFAULT_DEVICE, Device
from duotone.tensorflow.pipeline import rewrite
from duotone.tensorflow.protos import GraphDef
from duotone.tensorflow.rewrite_record import RewriteResult
from duotone.tensorflow.saved_model import signature_nodes

Listener = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class GraphResult:
    """The result of rewriting one graph of a file.

    Attributes:
        tags: of its MetaGraphDef; none of a plain GraphDef.
        before: the graph as it was read.
        fetch: nodes that were kept as results.
        feed: nodes that were kept as inputs.
        guessed: whether ``fetch`` are the nodes that nothing reads, since nobody named any.
        result: what was done.
    """

    tags: tuple[str, ...]
    before: GraphDef
    fetch: tuple[str, ...]
    feed: tuple[str, ...]
    guessed: bool
    result: RewriteResult


@dataclasses.dataclass(frozen=True)
class FileResult:
    """The result of :func:`rewrite_file`.

    Attributes:
        path: what was read.
        out: what was written, or None.
        kind: ``"GraphDef"``, ``"MetaGraphDef"`` or ``"SavedModel"``.
        graphs: one for each graph in the file.
        seconds: that rewriting took, without reading and writing.
    """

    path: Path
    out: Path | None
    kind: files.Kind
    graphs: tuple[GraphResult, ...]
    seconds: float


def rewrite_file(
    path: str | Path,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    fetch: Sequence[str] | None = None,
    feed: Sequence[str] = (),
    dtype: str = "float16",
    painter: str | None = None,
    device: Device = DEFAULT_DEVICE,
    policy: Policy | None = None,
    on_stage: Listener = lambda stage: None,
) -> FileResult:
    """Rewrites a graph file or SavedModel folder to mixed precision.

    Args:
        path: a GraphDef or MetaGraphDef, binary or text, or a SavedModel folder.
        out: where to write: a file, or for a SavedModel folder a folder that does not exist.
            None writes nothing. What is read is never overwritten, by whatever name or link.
        overwrite: whether another file that is there may be replaced.
        fetch: nodes that keep their types, beside those that signatures name. None keeps, of a
            graph without signatures, the nodes that nothing reads; an empty list keeps none.
            Of several graphs in a file, one of them must have the node.
        feed: nodes that are fed and keep their types, beside those of signatures; likewise.
        dtype: as :func:`duotone.tensorflow.rewrite` takes it.
        painter: likewise.
        device: likewise.
        policy: likewise.
        on_stage: is told what begins: ``"reading"``, ``"rewriting"``, ``"writing"``.

    Returns:
        What was done to each graph.

    Raises:
        GraphDefError: names the file and the node, and what to do; nothing has been written.
        WriteError: the file system refuses to write ``out``; what was there is there.
        DuotoneError: as :func:`duotone.tensorflow.rewrite`.
    """
    on_stage("reading")
    source = files.read(path)
    if out is not None:
        files.check_output(Path(out), source, overwrite=overwrite)
    on_stage("rewriting")
    start = time.perf_counter()
    names = {node.name for graph in source.graphs() for node in graph.node}
    results = []
    for graph, meta_graph in _graphs_of(source):
        try:
            kept = _kept(graph, meta_graph, names, fetch, feed)
            marked = type(graph)()
            marked.CopyFrom(graph)
            marks = keep_calls(marked)
            result = rewrite(
                marked,
                fetch=kept.fetch,
                feed=kept.feed,
                dtype=dtype,
                painter=painter,
                device=device,
                policy=policy,
                # TensorFlow drops functions that the graph does not reach; a SavedModel's own
                # object graph calls functions as well.
                keep_functions=meta_graph is not None,
            )
        except GraphDefError as error:
            raise GraphDefError(f"{source.file}: {error}") from error
        release(result.graph_def, marks, function_names(graph))
        tags = () if meta_graph is None else tuple(meta_graph.meta_info_def.tags)
        before = type(graph)()
        before.CopyFrom(graph)
        results.append(GraphResult(tags, before, kept.fetch, kept.feed, kept.guessed, result))
    seconds = time.perf_counter() - start
    if out is not None:
        on_stage("writing")
        for (graph, _), done in zip(_graphs_of(source), results, strict=True):
            graph.CopyFrom(done.result.graph_def)
        files.write(out, source.message, source, overwrite=overwrite)
    return FileResult(
        source.path,
        None if out is None else Path(out),
        source.kind,
        tuple(results),
        seconds,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    """Names of nodes that keep their types, and whether the fetched ones are a guess."""

    fetch: tuple[str, ...]
    feed: tuple[str, ...]
    guessed: bool


def _graphs_of(source: files.GraphFile) -> list[tuple[GraphDef, Any]]:
    """Each graph of a file with its MetaGraphDef, if it has one."""
    if source.kind == "GraphDef":
        return [(source.message, None)]
    return [(meta_graph.graph_def, meta_graph) for meta_graph in source.meta_graphs()]


def _kept(
    graph: GraphDef,
    meta_graph: Any,
    names: Collection[str],
    fetch: Sequence[str] | None,
    feed: Sequence[str],
) -> _Kept:
    """Nodes that a graph must keep. A node that only other graphs of the file have is theirs.

    Args:
        graph: the graph.
        meta_graph: its MetaGraphDef, or None.
        names: of the nodes of all graphs of the file.
        fetch: as :func:`rewrite_file` takes it.
        feed: likewise.
    """
    elsewhere = {*names} - {node.name for node in graph.node}
    fetched = {node_of(name) for name in fetch or ()}
    fed = {node_of(name) for name in feed} - elsewhere
    asked = fetch is not None and (not fetched or bool(fetched - elsewhere))
    fetched -= elsewhere
    if meta_graph is not None:
        outputs, inputs = signature_nodes(meta_graph)
        fetched.update(outputs)
        fed.update(inputs)
    guessed = not asked and not fetched
    if guessed:
        fetched = _unread(graph)
    return _Kept(tuple(sorted(fetched)), tuple(sorted(fed)), guessed)


def _unread(graph: GraphDef) -> set[str]:
    """The nodes whose results, and whose having run, nothing waits for."""
    read = {node_of(text) for node in graph.node for text in node.input}
    return {node.name for node in graph.node} - read
