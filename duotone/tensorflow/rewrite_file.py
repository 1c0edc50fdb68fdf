"""Rewrites a graph file: reads it, runs the pipeline on each graph, and writes it.

::

    read            GraphDef, MetaGraphDef or SavedModel, by content
    for each graph: keep    nodes that signatures, savers and collections name; in a plain graph
                            without named results, the nodes that nothing reads;
                            the operands that a While or If passes to its functions
                    rewrite (which checks the graph first)
    write           atomically, as the same kind of file
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from duotone._checks import check_strings, check_switch, path_of
from duotone.errors import GraphDefError
from duotone.measuring.ranges import NO_MEASUREMENTS
from duotone.policy.arguments import check_callable
from duotone.policy.policy import Policy
from duotone.tensorflow import files
from duotone.tensorflow.calibrate import measured
from duotone.tensorflow.calls import keep_calls, release
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
        tags: the tags of its MetaGraphDef; empty for a plain GraphDef.
        before: the original graph.
        fetch: nodes that were kept as results.
        feed: nodes that were kept as inputs.
        guessed: whether ``fetch`` are the nodes that nothing reads, because none were named.
        result: the result of the rewrite.
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
        path: the path that was read.
        out: the path that was written, or None.
        kind: ``"GraphDef"``, ``"MetaGraphDef"`` or ``"SavedModel"``.
        graphs: one for each graph in the file.
        seconds: the time to rewrite, without reading and writing.
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
    calibration: Any = None,
    on_stage: Listener = lambda stage: None,
) -> FileResult:
    """Rewrites a graph file or SavedModel folder to mixed precision.

    Args:
        path: a GraphDef or MetaGraphDef, binary or text, or a SavedModel folder.
        out: where to write: a file, or for a SavedModel folder a folder that does not exist.
            None writes nothing. The file that is read is never overwritten, even through a link.
        overwrite: whether another existing file may be replaced.
        fetch: nodes that keep their types, in addition to those that signatures name. With None,
            a graph without signatures keeps the nodes that nothing reads; with an empty list, none.
            If the file has several graphs, at least one must have the node.
        feed: nodes that are fed and keep their types, in addition to those that signatures name. If
            the file has several graphs, at least one must have the node.
        dtype: ``"float16"`` or ``"bfloat16"``.
        painter: the painter, as for :func:`duotone.tensorflow.rewrite`.
        device: the default device of nodes, as for :func:`duotone.tensorflow.rewrite`.
        policy: list edits and levels, as for :func:`duotone.tensorflow.rewrite`.
        calibration: inputs to run a frozen graph with, in TensorFlow: by name, a list of such, or
            an ``.npz`` file. Values that do not fit half stay float32.
        on_stage: called with the name of each stage: ``"reading"``, ``"measuring"``,
            ``"rewriting"``, ``"writing"``.

    Returns:
        The result for each graph.

    Raises:
        GraphDefError: the message names the file, the node and the remedy; nothing was written.
        WriteError: the file system refuses to write ``out``; an old file is unchanged.
        DuotoneError: as :func:`duotone.tensorflow.rewrite`.

    Example:
        >>> import tempfile, duotone.tensorflow
        >>> from pathlib import Path
        >>> graph = '''
        ... node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } } }
        ... node { name: "y" op: "MatMul" input: ["x", "x"]
        ...        attr { key: "T" value { type: DT_FLOAT } } }
        ... node { name: "z" op: "Exp" input: "y" attr { key: "T" value { type: DT_FLOAT } } }
        ... '''
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "graph.pbtxt")
        ...     _ = file.write_text(graph)
        ...     done = duotone.tensorflow.rewrite_file(file, f"{folder}/half.pb")
        >>> done.graphs[0].result.painting["y"]
        {'T': 'f16'}
    """
    check_callable("rewrite_file", on_stage, "on_stage")
    on_stage("reading")
    source = files.read(path)
    check_switch("rewrite_file", "overwrite", overwrite)
    check_strings("rewrite_file", "fetch", () if fetch is None else fetch)
    check_strings("rewrite_file", "feed", feed)
    if out is not None:
        files.check_output(path_of("rewrite_file", "out", out), source, overwrite=overwrite)
    found = NO_MEASUREMENTS
    if calibration is not None:
        on_stage("measuring")
        found = measured(source, calibration)
    on_stage("rewriting")
    start = time.perf_counter()
    names = {node.name for graph in source.graphs() for node in graph.node}
    results = []
    for graph, meta_graph in source.pairs():
        try:
            kept, fed, guessed = _kept(graph, meta_graph, names, fetch, feed)
            marked = copy.deepcopy(graph)
            marks = keep_calls(marked)
            result = rewrite(
                marked,
                fetch=kept,
                feed=fed,
                dtype=dtype,
                painter=painter,
                device=device,
                policy=policy,
                measured=found,
                # TensorFlow drops functions that the graph does not reach, but the object graph of
                # a SavedModel calls functions too.
                keep_functions=meta_graph is not None,
            )
        except GraphDefError as error:
            raise GraphDefError(f"{source.file}: {error}") from error
        release(result.graph_def, marks)
        tags = () if meta_graph is None else tuple(meta_graph.meta_info_def.tags)
        results.append(GraphResult(tags, copy.deepcopy(graph), kept, fed, guessed, result))
    seconds = time.perf_counter() - start
    if out is not None:
        on_stage("writing")
        for graph, done in zip(source.graphs(), results, strict=True):
            graph.CopyFrom(done.result.graph_def)
        files.write(out, source.message, source, overwrite=overwrite)
    return FileResult(
        source.path,
        None if out is None else Path(out),
        source.kind,
        tuple(results),
        seconds,
    )


def _kept(
    graph: GraphDef,
    meta_graph: Any,
    names: Collection[str],
    fetch: Sequence[str] | None,
    feed: Sequence[str],
) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Returns the nodes to fetch, those to feed, and whether the former are only those unread.

    ``names`` are those of the nodes of all graphs of the file; a graph ignores those of others.
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
        read = {node_of(text) for node in graph.node for text in node.input}
        fetched = {node.name for node in graph.node} - read
    return tuple(sorted(fetched)), tuple(sorted(fed)), guessed
