"""Painted graphs for TensorBoard's *Graphs* dashboard, colored by precision.

TensorBoard colors nodes only by structure, device or XLA cluster. A *copy for display* therefore
stores precision and list in the last two fields::

    Color by: Device         the precision: half, float32, cast ...
    Color by: XLA cluster    the list that the op is on: allow, infer, deny, clear, unlisted

A click on a node shows the reason in its attributes. The copy cannot run: its device fields name
precisions (an attribute has the real device), and it leaves out large constants.
"""

from __future__ import annotations

import io
import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from duotone._files import prepare_folder, write_atomically
from duotone.errors import MissingExtraError
from duotone.explaining.drawn import CAST, DrawnNode, drawn_nodes
from duotone.precision.record import Record

try:
    from tensorboard.compat.proto import event_pb2, graph_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter
except ImportError as error:
    raise MissingExtraError("a graph for TensorBoard", "tensorboard", "tensorboard") from error

_EVENT: Any = event_pb2
_GRAPH: Any = graph_pb2

_LARGEST_ATTRIBUTE = 1024
_numbers = itertools.count()


class Shown(NamedTuple):
    """The display of one node; fields as in ``DrawnNode``."""

    precision: str
    list: str = ""
    why: Mapping[str, str] = {}


def write_graph(folder: str | Path, graph: Any) -> Path:
    """Writes an event file with a GraphDef, and returns the file.

    Args:
        folder: the folder of the run, in the log folder; created if missing.
        graph: a GraphDef.

    Raises:
        ArgumentError: the folder is a file, or cannot be created.
    """
    folder = prepare_folder(Path(folder))
    content = io.BytesIO()
    writer = RecordWriter(content)
    now = time.time()
    for event in (
        _EVENT.Event(wall_time=now, file_version="brain.Event:2"),
        _EVENT.Event(wall_time=now, graph_def=graph.SerializeToString(deterministic=True)),
    ):
        writer.write(event.SerializeToString(deterministic=True))
    # TensorBoard reads files with such names in alphabetical order.
    number = f"{os.getpid()}.{next(_numbers)}"
    file = folder / f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{number}"
    write_atomically(file, content.getvalue())
    return file


def painted(graph_def: Any, shown: Mapping[str, Shown]) -> Any:
    """Makes a copy of a GraphDef for display.

    Args:
        graph_def: the graph, including the functions of its library.
        shown: the display of each node by name, or by ``"function/node"`` in a function.
    """
    graph = _GRAPH.GraphDef.FromString(graph_def.SerializeToString())
    for node in graph.node:
        _paint(node, shown.get(node.name))
    for function in graph.library.function:
        for node in function.node_def:
            _paint(node, shown.get(f"{function.signature.name}/{node.name}"))
    _fix_colors(graph)
    return graph


def _fix_colors(graph: Any) -> None:
    """Puts one node of each precision first, since TensorBoard assigns colors in this order."""
    first: dict[str, int] = {}
    for position, node in enumerate(graph.node):
        first.setdefault(node.device, position)
    wanted = ("full (float32)", "half (float16)", "half (bfloat16)", CAST)
    rank = {first[device]: number for number, device in enumerate(wanted) if device in first}
    order = sorted(range(len(graph.node)), key=lambda i: (rank.get(i, len(wanted)), i))
    nodes = [graph.node[i] for i in order]
    copy = _GRAPH.GraphDef(node=nodes)
    del graph.node[:]
    graph.node.MergeFrom(copy.node)


def _paint(node: Any, shown: Shown | DrawnNode | None) -> None:
    """Stores colors and reasons in the fields that TensorBoard reads."""
    for name in [name for name in node.attr if node.attr[name].ByteSize() > _LARGEST_ATTRIBUTE]:
        del node.attr[name]
    if node.device:
        node.attr["_device"].s = node.device.encode()
    node.device = shown.precision if shown is not None else ""
    if shown is not None:
        if shown.list:
            node.attr["_XlaCluster"].s = shown.list.encode()
        for name, reason in shown.why.items():
            node.attr[name].s = reason.encode()


def write_record(logdir: str | Path, record: Record) -> Path:
    """Writes the graph of a JAX program, one node for each operation and each cast.

    Name scopes become groups. Nodes that only pass a value into or out of a nested program are
    left out. A loop shows as a circle.

    Returns:
        The event file, in the folder of the run ``duotone`` in ``logdir``.
    """
    return write_graph(Path(logdir) / "duotone", graph_of_record(record))


def graph_of_record(record: Record) -> Any:
    """Converts the graph of a record to a GraphDef for display."""
    graph = _GRAPH.GraphDef()
    for drawn in drawn_nodes(record):
        node = graph.node.add(name=drawn.name, op=drawn.operation, input=drawn.reads)
        _paint(node, drawn)
        if drawn.shape and all(dimension.isdigit() for dimension in drawn.shape):
            shape = node.attr["_output_shapes"].list.shape.add()
            for dimension in drawn.shape:
                shape.dim.add(size=int(dimension))
    graph.versions.producer = 1
    _fix_colors(graph)
    return graph
