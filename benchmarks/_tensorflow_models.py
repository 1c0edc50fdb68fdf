"""TensorFlow models to rewrite: observed graphs, Keras exports, and those of PyPI packages.

Each is a file or a SavedModel folder, as a user has it. Keras models have random weights.
"""

from __future__ import annotations

import importlib
import json
import lzma
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.tensorflow_live import MODELS, application
from duotone.tensorflow.protos import new_graph

_OBSERVED = Path(__file__).parents[1] / "tests" / "data" / "tensorflow_amp"
_STATE = frozenset("Variable VariableV2 VarHandleOp".split())
_RESOURCE = 20


def observed(folder: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """The graphs of ``tests/data/tensorflow_amp`` without variables: name, file, fetched nodes."""
    for file in sorted(_OBSERVED.glob("*.pb.xz")):
        name, text = file.name.removesuffix(".pb.xz"), lzma.decompress(file.read_bytes())
        if not any(map(_is_state, new_graph.FromString(text).node)):
            path = folder / f"{name}.pb"
            path.write_bytes(text)
            answer = lzma.decompress(file.with_name(f"{name}.json.xz").read_bytes())
            yield name, path, json.loads(answer)["fetch"]


def _is_state(node: Any) -> bool:
    """True for a variable, and for an input that is one."""
    return node.op in _STATE or (node.op == "Placeholder" and node.attr["dtype"].type == _RESOURCE)


def _gru(keras: Any) -> Any:
    layers = keras.layers
    gru = [layers.GRU(256, return_sequences=True), layers.GRU(256)]
    return keras.Sequential([keras.Input((32, 64)), *gru, layers.Dense(100)]), 16


KERAS = {
    **{name: MODELS[name] for name in "convnet dense lstm transformer unet mixer".split()},
    "gru": _gru,
    "resnet50": application("ResNet50", 96, 2),
    "mobilenetv3": application("MobileNetV3Small", 96, 2),
    "efficientnetb0": application("EfficientNetB0", 96, 2),
    "convnext": application("ConvNeXtTiny", 64, 2),
}
"""Keras models by name: each function takes ``keras`` and returns a model and a batch."""


def exported(folder: Path) -> Iterator[tuple[str, Path]]:
    """The models of :data:`KERAS`, exported by Keras and frozen: name and file."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    for name, make in KERAS.items():
        keras.utils.set_random_seed(0)
        model, batch = make(keras)
        _fill_averages(model, batch)
        saved = folder / f"{name}.saved"
        model.export(saved, verbose=False)
        yield f"keras {name}", frozen_model(saved, folder / f"{name}.pb")


def _fill_averages(model: Any, batch: int) -> None:
    """Gives batch norms the averages of a random batch, as training does.

    With those that they start with, the activations of a deep network vanish.
    """
    import numpy as np

    norms = [layer for layer in model._flatten_layers() if hasattr(layer, "moving_mean")]
    if not norms:
        return
    for layer in norms:
        layer.momentum = 0.0
    shape = (batch, *model.input_shape[1:])
    model(np.random.default_rng(0).standard_normal(shape).astype(np.float32), training=True)


def frozen_model(saved: Path, out: Path) -> Path:
    """Freezes the signature of a SavedModel; its loops stay functions."""
    import tensorflow as tf

    freezing = importlib.import_module("tensorflow.python.framework.convert_to_constants")
    model = tf.saved_model.load(saved)  # its variables live as long as it does
    signature = model.signatures["serving_default"]
    frozen = freezing.convert_variables_to_constants_v2(signature, lower_control_flow=False)
    out.write_bytes(frozen.graph.as_graph_def().SerializeToString())
    return out


def packaged(source: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """The SavedModels and checkpoints below ``source``: name, and folder or frozen file."""
    for found in sorted(source.rglob("saved_model.pb")):
        yield _name(source, found), found.parent
    for found in sorted(source.rglob("*.meta")):
        name = _name(source, found)
        yield name, frozen_checkpoint(found, folder / f"{name.replace('/', '_')}.pb")


def inputs_of(name: str) -> dict[str, Any] | None:
    """The inputs of a model that takes no numbers, or None."""
    import numpy as np

    lines = ["import os\nprint(os.getcwd())\n", "#include <stdio.h>\nint main() { return 0; }\n"]
    return {"inputs": np.array(lines, object)} if name.startswith("guesslang") else None


def _name(source: Path, found: Path) -> str:
    parts = found.relative_to(source).parts
    return f"{parts[0]}/{parts[-2]}"


def frozen_checkpoint(meta: Path, out: Path) -> Path:
    """Freezes a checkpoint of TensorFlow 1 to its forward graph.

    Truth values that are fed, such as ``is_training``, become false. The results are the nodes
    before the loss: those of the name scope ``model`` that no node but a gradient or a loss reads.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    graph_def = v1.MetaGraphDef.FromString(meta.read_bytes()).graph_def
    for node in graph_def.node:
        node.attr.pop("_output_shapes", None)
        if node.op == "Placeholder" and node.attr["dtype"].type == tf.bool.as_datatype_enum:
            false = tf.make_tensor_proto(False)
            node.op = "Const"
            node.attr.pop("shape", None)
            node.attr["value"].tensor.CopyFrom(false)
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.import_graph_def(graph_def, name="")
        restore = graph.get_operation_by_name("save/restore_all")
        session.run(restore, {"save/Const:0": str(meta).removesuffix(".meta")})
        frozen = v1.graph_util.convert_variables_to_constants(
            session, graph.as_graph_def(), _results(graph)
        )
    out.write_bytes(frozen.SerializeToString())
    return out


def _results(graph: Any) -> list[str]:
    """The activations of the last layer: sigmoids and softmaxes that no gradient makes."""
    return [
        node.name
        for node in graph.get_operations()
        if node.type in ("Sigmoid", "Softmax") and "gradients" not in node.name
    ]
