"""The SavedModel message, the nodes that a MetaGraphDef must keep, and writing a SavedModel folder.

``tensorboard`` ships the messages inside a SavedModel, but not the SavedModel message itself. It
has two fields and is defined here.

A SavedModel folder has ``saved_model.pb`` (or the text form ``saved_model.pbtxt``), variables,
assets, and since TensorFlow 2.12 a ``fingerprint.pb``. A rewrite changes only the graphs. All other
files are copied, except the fingerprint of the old graph, which TensorFlow does not need.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, message_factory
from tensorboard.compat.proto import meta_graph_pb2

from duotone._files import check_new_folder, folder_in_one_step, write_atomically
from duotone.errors import GraphDefError
from duotone.tensorflow.checks import node_of

MetaGraphDef = Any
"""A ``tensorflow.MetaGraphDef``."""

FILE_NAMES = ("saved_model.pb", "saved_model.pbtxt")
_FINGERPRINT = "fingerprint.pb"


_META: Any = meta_graph_pb2


def _make_class() -> Any:
    """Returns the class of the SavedModel message, in a separate protobuf package."""
    file: Any = descriptor_pb2.FileDescriptorProto(
        name="duotone/saved_model.proto",
        package="duotone",
        syntax="proto3",
        dependency=[_META.DESCRIPTOR.name],
    )
    message = file.message_type.add(name="SavedModel")
    kinds: Any = descriptor_pb2.FieldDescriptorProto
    message.field.add(
        name="saved_model_schema_version",
        number=1,
        label=kinds.LABEL_OPTIONAL,
        type=kinds.TYPE_INT64,
    )
    message.field.add(
        name="meta_graphs",
        number=2,
        label=kinds.LABEL_REPEATED,
        type=kinds.TYPE_MESSAGE,
        type_name="." + _META.MetaGraphDef.DESCRIPTOR.full_name,
    )
    pool = _META.DESCRIPTOR.pool
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("duotone.SavedModel"))


new_meta_graph: Any = _META.MetaGraphDef
new_saved_model: Any = _make_class()
"""Makes a ``SavedModel``: ``saved_model_schema_version`` and ``meta_graphs``."""


def signature_nodes(meta_graph: MetaGraphDef) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the nodes that users of a MetaGraphDef name, which a rewrite must keep.

    These are the outputs and inputs of the signatures, the nodes for saving and restoring, and the
    nodes of the collections (a training operation, losses, initializers).

    Returns:
        Node names to fetch, and node names to feed; sorted, those that the graph has.
    """
    fetch: set[str] = set()
    feed: set[str] = set()
    for signature in meta_graph.signature_def.values():
        for tensors, names in ((signature.outputs, fetch), (signature.inputs, feed)):
            for tensor in tensors.values():
                names.update(_tensor_names(tensor))
    saver = meta_graph.saver_def
    fetch.update((saver.save_tensor_name, saver.restore_op_name))
    feed.add(saver.filename_tensor_name)
    feed.update(asset.tensor_info.name for asset in meta_graph.asset_file_def)
    for collection in meta_graph.collection_def.values():
        fetch.update(collection.node_list.value)
    known = {node.name for node in meta_graph.graph_def.node}

    def kept(names: set[str]) -> tuple[str, ...]:
        return tuple(sorted(known.intersection(map(node_of, names))))

    return kept(fetch), kept(feed)


def _tensor_names(tensor: Any) -> list[str]:
    """Returns the tensors that a TensorInfo names: one, or the parts of a composite one."""
    sparse = tensor.coo_sparse
    names = [
        tensor.name,
        sparse.values_tensor_name,
        sparse.indices_tensor_name,
        sparse.dense_shape_tensor_name,
    ]
    # One level: the parts of a composite tensor are plain tensors.
    names += [part.name for part in tensor.composite_tensor.components]
    return [name for name in names if name]


def find_saved_model(folder: Path) -> Path:
    """Returns the file of a SavedModel folder that has the graphs.

    Raises:
        GraphDefError: the folder has none.
    """
    for name in FILE_NAMES:
        if (folder / name).is_file():
            return folder / name
    raise GraphDefError(
        f"{folder} is a folder without {' or '.join(FILE_NAMES)}, so it is not a SavedModel. "
        "Name a SavedModel folder or the file of a graph."
    )


def write_folder(folder: Path, source: Path, graph_file: str, content: bytes) -> None:
    """Copies a SavedModel folder with other graphs; the new folder appears in one step.

    Raises:
        ArgumentError: as :func:`duotone._files.check_new_folder`.
        WriteError: the file system refuses it.
    """
    check_new_folder(folder)
    own = {*FILE_NAMES, _FINGERPRINT}  # in the folder itself, not in subfolders

    def ignored(inside: str, names: list[str]) -> set[str]:
        return own.intersection(names) if Path(inside) == source else set()

    with folder_in_one_step(folder) as copy:
        try:
            shutil.copytree(source, copy, ignore=ignored, dirs_exist_ok=True)
        finally:
            _let_owner_write(copy)
        write_atomically(copy / graph_file, content)


def _let_owner_write(folder: Path) -> None:
    """Makes the folders of a copy writable, since a model in a store may be read-only."""
    for name, _, _ in os.walk(folder):
        Path(name).chmod(Path(name).stat().st_mode | stat.S_IRWXU)
