"""Small TensorFlow graphs, made without TensorFlow, for the tests of this folder."""

from __future__ import annotations

from typing import Any

import duotone.tensorflow  # noqa: F401  (says what to install where the messages are missing)
from duotone.tensorflow.protos import FLOAT, new_graph
from duotone.tensorflow.saved_model import new_meta_graph, new_saved_model


def add(graph: Any, name: str, op: str, *inputs: str, **types: int) -> Any:
    """Adds a node; the type attribute T is float unless others are given."""
    node = graph.add(name=name, op=op, input=inputs)
    for attribute, number in (types or {"T": FLOAT}).items():
        node.attr[attribute].type = number
    return node


def chain() -> Any:
    """x → deny (Exp) → product (MatMul, half) → relu → result."""
    graph = new_graph()
    x = add(graph.node, "x", "Placeholder", dtype=FLOAT)
    for size in (256, 256):
        x.attr["shape"].shape.dim.add(size=size)
    add(graph.node, "deny", "Exp", "x")
    add(graph.node, "product", "MatMul", "deny", "x")
    add(graph.node, "relu", "Relu", "product")
    add(graph.node, "result", "Identity", "relu")
    graph.versions.producer = 1882
    return graph


def while_loop(*, end: str = "NextIteration") -> Any:
    """A loop of TensorFlow 1 around a MatMul; with another op at its end it is a cycle."""
    graph = new_graph()
    add(graph.node, "x", "Placeholder", dtype=FLOAT)
    enter = add(graph.node, "enter", "Enter", "x")
    enter.attr["frame_name"].s = b"frame"
    add(graph.node, "merge", "Merge", "enter", "next").attr["N"].i = 2
    add(graph.node, "product", "MatMul", "merge", "merge")
    add(graph.node, "next", end, "product")
    return graph


def add_function(graph: Any, name: str, calls: str = "") -> Any:
    """A function of one argument: exp, then a product, or another function."""
    function = graph.library.function.add()
    function.signature.name = name
    function.signature.input_arg.add(name="a", type=FLOAT)
    function.signature.output_arg.add(name="r", type=FLOAT)
    if calls:
        function.node_def.add(name="inner", op=calls, input=["a"])
        function.ret["r"] = "inner:r:0"
    else:
        add(function.node_def, "deny", "Exp", "a")
        add(function.node_def, "inner", "MatMul", "deny:y:0", "a")
        function.ret["r"] = "inner:product:0"
    return function


def meta_graph() -> Any:
    """A MetaGraphDef with a signature that names the input and a half node of :func:`chain`."""
    message = new_meta_graph()
    message.meta_info_def.tags.append("serve")
    message.meta_info_def.tensorflow_version = "2.21.0"
    message.graph_def.CopyFrom(chain())
    signature = message.signature_def["serving_default"]
    signature.method_name = "tensorflow/serving/predict"
    signature.inputs["x"].name = "x:0"
    signature.inputs["x"].dtype = FLOAT
    signature.outputs["y"].name = "relu:0"
    signature.outputs["y"].dtype = FLOAT
    return message


def saved_model() -> Any:
    """A SavedModel of one MetaGraphDef."""
    return new_saved_model(saved_model_schema_version=1, meta_graphs=[meta_graph()])


def node_named(graph: Any, name: str) -> Any:
    """The node of a name; fails if there is none."""
    return next(node for node in graph.node if node.name == name)
