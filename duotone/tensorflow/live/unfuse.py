"""Unfuse: takes the operations apart that TensorFlow's remapper fused before.

The remapper runs first and makes ``_FusedConv2D`` and ``_FusedMatMul``, which have no half
kernel of their own on every device. After the rewrite it runs again and fuses the half ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from duotone.tensorflow.protos import GraphDef, NodeDef
from duotone.tensorflow.shapes.find import shape_of_port

_BASES = {
    "_FusedConv2D": (
        "Conv2D",
        ("T", "strides", "padding", "data_format", "dilations", "explicit_paddings"),
    ),
    "_FusedMatMul": ("MatMul", ("T", "transpose_a", "transpose_b")),
}
_ADDS = {"BiasAdd": "BiasAdd", "Add": "AddV2"}
"""Fused operations with an operand of their own, and their ops. The remapper also takes an addition
of ``[1, 1, 1, n]`` for a BiasAdd, whose kernel takes vectors only."""
_ACTIVATIONS = frozenset({"Relu", "Relu6", "Elu", "Tanh", "Sigmoid", "LeakyRelu"})


def unfuse(graph: GraphDef) -> int:
    """Takes fused operations apart and returns their number; the last part of each has its name."""
    fused = [node for node in graph.node if node.op in _BASES and _is_known(node)]
    by_name = {node.name: node for node in graph.node} if fused else {}
    biases = [_has_vector(node, by_name) for node in fused]
    for node, is_vector in zip(fused, biases, strict=True):
        _unfuse(graph, node, is_vector)
    return len(fused)


def _is_known(node: NodeDef) -> bool:
    parts = _parts(node)
    return bool(parts) and all(part in _ADDS or part in _ACTIVATIONS for part in parts)


def _has_vector(node: NodeDef, by_name: Mapping[str, NodeDef]) -> bool:
    """Returns True if the bias of a fused node, if any, is a vector.

    If its rank is not known, an addition does what a BiasAdd does, unless features come first.
    """
    if "BiasAdd" not in _parts(node):
        return True
    features_first = node.attr["data_format"].s == b"NCHW" if "data_format" in node.attr else False
    shape = shape_of_port(node.input[2], by_name)
    return features_first if shape is None else len(shape) == 1


def _parts(node: NodeDef) -> list[str]:
    return [part.decode() for part in node.attr["fused_ops"].list.s]


def _unfuse(graph: GraphDef, node: NodeDef, has_vector: bool) -> None:
    base, kept = _BASES[node.op]
    parts = _parts(node)
    before = type(node)()
    before.CopyFrom(node)
    data = [text for text in before.input if not text.startswith("^")]
    controls = [text for text in before.input if text.startswith("^")]
    operands = iter(data[2:])
    first = graph.node.add(
        name=f"{before.name}/unfused", op=base, device=before.device, input=data[:2] + controls
    )
    for name in kept:
        if name in before.attr:
            first.attr[name].CopyFrom(before.attr[name])
    last = first.name
    for number, part in enumerate(parts):
        if number == len(parts) - 1:
            made = node
            made.ClearField("attr")
            made.ClearField("input")
        else:
            made = graph.node.add(name=f"{before.name}/unfused_{number}", device=before.device)
        _fill(made, part if has_vector or part != "BiasAdd" else "Add", before)
        made.input.append(last)
        if part in _ADDS:
            made.input.append(next(operands))
        last = made.name


def _fill(made: NodeDef, part: str, fused: NodeDef) -> None:
    """Sets the op and attributes of one part."""
    made.op = _ADDS.get(part, part)
    made.attr["T"].type = fused.attr["T"].type
    if part == "BiasAdd" and "data_format" in fused.attr:
        made.attr["data_format"].s = fused.attr["data_format"].s
    if part == "LeakyRelu":
        made.attr["alpha"].f = fused.attr["leakyrelu_alpha"].f
