"""Recognizes, reads and writes the files of TensorFlow graphs.

::

    a folder         SavedModel: saved_model.pb or saved_model.pbtxt, with variables and assets
    a file           GraphDef, MetaGraphDef or SavedModel, binary or text

The content determines kind and form, never the name: text is UTF-8 without control characters
(every binary graph has some), and the kind is the one that has these fields. A written file has the
kind that was read; its name determines the form (``.pbtxt``, ``.prototxt``, ``.txt`` are text).
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

from google.protobuf import text_format, unknown_fields
from google.protobuf.message import DecodeError, EncodeError

from duotone._checks import path_of
from duotone._files import check_new_folder, check_writable, explained, write_atomically
from duotone.errors import GraphDefError
from duotone.tensorflow.protos import GraphDef, new_graph
from duotone.tensorflow.saved_model import (
    find_saved_model,
    new_meta_graph,
    new_saved_model,
    write_folder,
)

Kind = Literal["GraphDef", "MetaGraphDef", "SavedModel"]

LARGEST = 2**31 - 1
"""The largest size of a protocol buffer, in bytes."""

_CLASSES: dict[Kind, Any] = {
    "SavedModel": new_saved_model,
    "GraphDef": new_graph,
    "MetaGraphDef": new_meta_graph,
}
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\x7f]")
# TensorFlow's dumps start with a debug line that has a random suffix.
_DEBUG_LINE = re.compile(r"\s*goo\.gle/debug\w*[ \t]*\n?")
_FIRST_FIELD = re.compile(r"(?:\s|#[^\n]*\n)*([A-Za-z_]\w*)\s*[:{<]")


@dataclasses.dataclass(frozen=True)
class GraphFile:
    """The graphs of a path.

    Attributes:
        path: the user's path: a file, or the folder of a SavedModel.
        kind: the kind of the message.
        message: the GraphDef, MetaGraphDef or SavedModel.
        file: the file that was read; for a SavedModel folder, the file in it.
    """

    path: Path
    kind: Kind
    message: Any
    file: Path

    @property
    def is_folder(self) -> bool:
        """True if the path is a SavedModel folder."""
        return self.file != self.path

    def meta_graphs(self) -> tuple[Any, ...]:
        """Returns the MetaGraphDefs of the file; none for a GraphDef."""
        if self.kind == "SavedModel":
            return tuple(self.message.meta_graphs)
        return (self.message,) if self.kind == "MetaGraphDef" else ()

    def pairs(self) -> list[tuple[GraphDef, Any]]:
        """Returns each graph of the file with its MetaGraphDef; ``None`` for a GraphDef."""
        if self.kind == "GraphDef":
            return [(self.message, None)]
        return [(meta_graph.graph_def, meta_graph) for meta_graph in self.meta_graphs()]

    def graphs(self) -> tuple[GraphDef, ...]:
        """Returns the graphs of the file, one of each MetaGraphDef."""
        return tuple(graph for graph, _ in self.pairs())


def read(path: str | Path) -> GraphFile:
    """Reads a graph file or SavedModel folder.

    Raises:
        GraphDefError: the path does not exist, or is not a graph that can be read.
    """
    path = path_of("duotone.tensorflow", "path", path)
    file = find_saved_model(path) if path.is_dir() else path
    content = _bytes_of(file)
    text = _text_of(content)
    kind, message = _parse_binary(content, file) if text is None else _parse_text(text, file)
    if file != path and kind != "SavedModel":
        raise GraphDefError(f"{file} is a {kind}, not a SavedModel: the folder is damaged.")
    found = GraphFile(path, kind, message, file)
    if not any(graph.node or graph.library.function for graph in found.graphs()):
        raise GraphDefError(f"{file} is a {kind} without a single node: there is no graph in it.")
    return found


def read_graph(path: str | Path) -> GraphDef:
    """Reads a graph; of a SavedModel the one of its first MetaGraphDef.

    Args:
        path: the path of a file or SavedModel folder.

    Raises:
        GraphDefError: the path does not exist, or is not a graph that can be read.
    """
    return read(path).graphs()[0]


def check_output(path: Path, source: GraphFile, *, overwrite: bool = False) -> None:
    """Raises what :func:`write` would raise for this path, before any work is done for it.

    Args:
        path: the path to write.
        source: the file that was read; it is never overwritten, whatever its name.
        overwrite: whether another file that is there may be replaced.

    Raises:
        WriteError: the path cannot be written to.
        GraphDefError: it is the file that was read, or another file and ``overwrite`` is false.
    """
    with explained(path):
        check_new_folder(path) if source.is_folder else check_writable(path)
    if source.is_folder:
        if source.path.resolve() in path.resolve().parents:
            raise GraphDefError(
                f"cannot write {path} into the SavedModel that is read, {source.path}. "
                "Name a folder outside of it."
            )
    elif not path.exists():
        return
    elif path.samefile(source.file):  # also through a link of either kind
        raise GraphDefError(
            f"{path} is the graph that is read, which is never overwritten, since a rewrite cannot "
            "be undone. Name another file."
        )
    elif not overwrite:
        raise GraphDefError(
            f"{path} exists. Name another file, or have it replaced: --force (in Python "
            "overwrite=True)."
        )


def write(
    path: str | Path, message: Any, source: GraphFile | None = None, *, overwrite: bool = False
) -> None:
    """Writes a graph atomically; equal graphs give equal bytes.

    Args:
        path: the path of the file; for a SavedModel folder, of a folder that does not exist.
        message: GraphDef, MetaGraphDef or SavedModel.
        source: what was read, which is kept; of a SavedModel folder, variables and assets are
            copied. Without it a graph file is written, and one that is there is replaced.
        overwrite: with ``source``, whether another file that is there may be replaced.

    Raises:
        GraphDefError: as :func:`check_output`, or the message has 2 GB or more.
        WriteError: the file system refuses it.
    """
    path = Path(path)
    if source is not None:
        check_output(path, source, overwrite=overwrite)
    folder = source is not None and source.is_folder
    name = source.file.name if source is not None and folder else path.name
    text = Path(name).suffix.lower() in (".pbtxt", ".prototxt", ".txt")
    content = _serialized(path, message, text=text)
    if source is not None and folder:
        write_folder(path, source.path, name, content)
    else:
        write_atomically(path, content)


def _serialized(path: Path, message: Any, *, text: bool) -> bytes:
    problem = f"cannot write {path}: the graph has 2 GB or more, which no protocol buffer can hold."
    try:
        if message.ByteSize() > LARGEST:
            raise GraphDefError(problem)
        if text:
            return text_format.MessageToString(message).encode()
        return message.SerializeToString(deterministic=True)
    except (EncodeError, ValueError) as error:
        if isinstance(error, GraphDefError):
            raise
        raise GraphDefError(problem) from error


def _bytes_of(file: Path) -> bytes:
    """Returns the content of a file of a size that can be a graph."""
    try:
        if not file.is_file():
            what = "is not a regular file" if file.exists() else "does not exist"
            raise GraphDefError(f"{file} {what}. Name a graph file or a SavedModel folder.")
        size = file.stat().st_size
        if size > LARGEST:
            raise GraphDefError(
                f"{file} has {size / 1e9:.1f} GB, and a protocol buffer ends at 2 GB: it is not "
                "a graph. Large weights belong in the variables of a SavedModel."
            )
        content = file.read_bytes()
    except OSError as error:
        raise GraphDefError(f"cannot read {file}: {error.strerror}.") from error
    except ValueError as error:
        if isinstance(error, GraphDefError):
            raise
        raise GraphDefError(f"cannot read {str(file)!r}: {error}.") from error
    if not content:
        raise GraphDefError(f"{file} is empty.")
    return content


def _text_of(content: bytes) -> str | None:
    """Returns the content as text, or None if it is not."""
    if _CONTROL.search(content):
        return None
    try:
        text = content.decode("utf-8-sig")  # editors of Windows begin a file with a mark
    except UnicodeDecodeError:
        return None
    return _DEBUG_LINE.sub("", text, count=1) if _DEBUG_LINE.match(text) else text


def _parse_text(text: str, file: Path) -> tuple[Kind, Any]:
    first = _FIRST_FIELD.match(text)
    for kind, make in _CLASSES.items():
        if first is None or first[1] not in make.DESCRIPTOR.fields_by_name:
            continue
        try:
            return kind, text_format.Parse(text, make())
        except RecursionError as error:
            raise GraphDefError(
                f"{file} nests messages deeper than any graph does: it is damaged, or made to do "
                "harm."
            ) from error
        except (text_format.ParseError, ValueError) as error:
            # ValueError: a number that no field holds, or broken UTF-8 in an escape.
            position = "line " if isinstance(error, text_format.ParseError) else ""
            reason = str(error)[:300]  # the parser repeats a long line
            raise GraphDefError(
                f"{file} is not a valid {kind} in text form: {position}{reason}"
            ) from error
    raise GraphDefError(
        f"{file} is text, not a graph: it does not begin with a field of a GraphDef (node), "
        "a MetaGraphDef or a SavedModel."
    )


def _parse_binary(content: bytes, file: Path) -> tuple[Kind, Any]:
    """Parses the first kind that has no unknown fields, otherwise one that contains a graph."""
    possible: list[tuple[Kind, Any]] = []
    for kind, make in _CLASSES.items():
        message = make()
        try:
            message.ParseFromString(content)
        except DecodeError:
            continue
        if _is_plausible(GraphFile(file, kind, message, file)):
            if not len(unknown_fields.UnknownFieldSet(message)):
                return kind, message
            possible.append((kind, message))
    if possible:
        return possible[0]
    raise GraphDefError(
        f"{file} is not a TensorFlow graph: it is cut short, damaged, or something else."
    )


def _is_plausible(found: GraphFile) -> bool:
    """Returns True if most nodes are nodes. Bytes of one kind may happen to parse as another."""
    nodes = [node for graph in found.graphs() for node in graph.node]
    real = sum(bool(node.name and node.op) for node in nodes)
    return bool(found.graphs()) and 2 * real >= len(nodes)
