"""Files: reads a model, checks its consistency, and writes it atomically."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from duotone._files import check_free, check_writable, write_atomically, write_pieces_atomically
from duotone.errors import ArgumentError, ArgumentTypeError, OnnxError, shown
from duotone.onnx.protos import (
    ONNX,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    domain_of,
    graphs_in,
    named,
    opsets_of,
)
from duotone.onnx.weights import check, is_external

NO_TEXT = "a name in it is not text: the file was damaged, or is something else."
DEEPEST = 64
"""The deepest nesting of graphs; duotone refuses deeper files as hostile."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A model that was read.

    Attributes:
        model: its message.
        path: its file; ``None`` for an ``onnx.ModelProto``.
        external: whether it has external data.
    """

    model: ModelProto
    path: Path | None
    external: bool

    @property
    def folder(self) -> Path | None:
        """The folder of its external data."""
        return None if self.path is None else self.path.parent


def read(model: ModelProto | str | Path) -> Source:
    """Reads a model, and checks its consistency.

    Raises:
        ArgumentTypeError: it is neither.
        OnnxError: the file is damaged, or its graph is invalid.
    """
    path = None
    if isinstance(model, str | Path):
        path = Path(model)
        try:
            found = ONNX.ModelProto.FromString(path.read_bytes())
        except FileNotFoundError as error:
            raise OnnxError(f"{path}: there is no such file.") from error
        except IsADirectoryError as error:
            raise OnnxError(f"{path} is a folder, not an ONNX model.") from error
        except OSError as error:
            raise OnnxError(f"{path} cannot be read: {error.strerror}.") from error
        except Exception as error:  # protobuf's own error has no public class in all versions
            raise OnnxError(
                f"{path} is not an ONNX model: it was cut off, damaged, or is something else."
            ) from error
    elif isinstance(model, ONNX.ModelProto):
        found = model
    else:
        raise ArgumentTypeError(
            f"the model is {shown(model)}; give the path of an ONNX file or an onnx.ModelProto."
        )
    source = Source(found, path, False)
    with naming(source):
        external = any(is_external(tensor) for tensor in tensors(found.graph))
        source = dataclasses.replace(source, external=external)
        _check_model(source)
    return source


@contextlib.contextmanager
def naming(source: Source) -> Iterator[None]:
    """Returns a context that adds the name of the file to errors.

    Raises:
        OnnxError: an error of the block, with the name.
    """
    try:
        yield
    except (OnnxError, UnicodeDecodeError) as error:
        text = str(error) if isinstance(error, OnnxError) else NO_TEXT
        raise OnnxError(text if source.path is None else f"{source.path}: {text}") from error


def tensors(graph: GraphProto, depth: int = 0) -> Iterator[TensorProto]:
    """Yields initializers, sparse ones too, and tensors of attributes, including nested graphs."""
    if depth > DEEPEST:
        raise OnnxError(f"graphs are nested more than {DEEPEST} deep.")
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for found in node.attribute:
            if found.type == ONNX.AttributeProto.TENSOR:
                yield found.t
        for inner in graphs_in(node):
            yield from tensors(inner, depth + 1)


def _check_model(source: Source) -> None:
    """Raises unless a model is consistent."""
    model = source.model
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise OnnxError("it has no graph: the file is empty, cut off, or something else.")
    newest = ONNX.defs.onnx_opset_version()
    opset = opsets_of(model)[""]
    ours = not all(map(domain_of, model.graph.node))
    if ours and not any(o.domain in ("", "ai.onnx") and o.version for o in model.opset_import):
        raise OnnxError(
            "it names no opset of ONNX (opset_import), so it is not known which operations it "
            "means: export it again, or append onnx.helper.make_opsetid('', N) to opset_import."
        )
    if ours and not 1 <= opset <= newest:
        raise OnnxError(
            f"it asks for opset {opset} of ONNX, and the installed onnx knows 1 to "
            f"{newest}: update onnx, or export the model for an older opset."
        )
    for tensor in tensors(model.graph):
        check(tensor, source.folder)
    check_values(model.graph)


def check_values(graph: GraphProto, outer: Collection[str] = ()) -> None:
    """Raises unless each value of a graph is made once, and before it is read.

    Raises:
        OnnxError: a value is made twice, never, or after it is read.
    """
    made = {value.name for value in graph.input}
    made |= {tensor.name for tensor in graph.initializer}
    made |= {tensor.values.name for tensor in graph.sparse_initializer}
    later = {name for node in graph.node for name in node.output}
    for node in graph.node:
        for name in node.input:
            if name and name not in made and name not in outer:
                raise OnnxError(_unmade(node, name, later))
        for inner in graphs_in(node):
            check_values(inner, made.union(outer))
        for name in node.output:
            if name and name in made:
                raise OnnxError(f"{named(node)} makes {name!r}, which there is already.")
            made.add(name)
    for value in graph.output:
        if value.name not in made and value.name not in outer:
            raise OnnxError(f"the result {value.name!r} is made by no node.")


def _unmade(node: NodeProto, name: str, later: set[str]) -> str:
    if name in later:
        return (
            f"{named(node)} reads {name!r} before it is made: the nodes are not in topological "
            "order, or form a circle."
        )
    return f"{named(node)} reads {name!r}, which nothing makes."


def check_output(source: Source, out: Path, *, overwrite: bool) -> None:
    """Raises unless a model may be written there.

    Raises:
        ArgumentError: it is the file that was read.
        WriteError: a file exists there, or cannot be created.
    """
    check_writable(out)
    for path in (out, data_file(out)):
        if source.path is not None and path.exists() and path.samefile(source.path):
            raise ArgumentError(f"{out} is the model that is read: name another file to write.")
        if source.external and path.exists() and source.folder is not None:
            outside = (t for t in tensors(source.model.graph) if is_external(t))
            for name in {e.value for t in outside for e in t.external_data if e.key == "location"}:
                if (source.folder / name).exists() and path.samefile(source.folder / name):
                    raise ArgumentError(f"{path} has the data of the model that is read.")
    check_free(out, overwrite=overwrite)
    if source.external:
        check_free(data_file(out), overwrite=overwrite)


def data_file(out: Path) -> Path:
    """Returns the file of a model's external data."""
    return out.with_name(f"{out.name}.data")


def write(model: ModelProto, out: Path, data: Sequence[Iterator[bytes]] = ()) -> None:
    """Writes a model, its external data first.

    Raises:
        OnnxError: the message is larger than the limit of protobuf.
        WriteError: the file system refuses to write.
    """
    if model.ByteSize() >= 2**31:
        raise OnnxError(
            f"{out} would have {model.ByteSize()} bytes, and a protobuf file ends at 2 GiB: save "
            "the model with external data first (onnx.save(..., save_as_external_data=True))."
        )
    if data:
        write_pieces_atomically(data_file(out), (piece for tensor in data for piece in tensor))
    write_atomically(out, model.SerializeToString(deterministic=True))
