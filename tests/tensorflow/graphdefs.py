"""GraphDefs made without TensorFlow, node by node: ResNet-50 with its training step.

It has the nodes that TensorFlow's own graphs have: variables with handles, gradients, moving
averages, weight decay, initializers.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from duotone.tensorflow.op_registry import find_op
from duotone.tensorflow.protos import FLOAT, new_graph

INT32 = 3
CASES = Path(__file__).parents[1] / "data" / "tensorflow_amp"
"""Graphs and what TensorFlow made of them."""


class Builder:
    """Makes a GraphDef node by node.

    Attributes:
        graph: what there is so far.
    """

    def __init__(self) -> None:
        self.graph: Any = new_graph()
        self._used: dict[str, int] = {}

    def add(self, op: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Adds a node; types that are not given are float32, counts follow from the inputs.

        Args:
            op: of the node.
            *inputs: what it reads, ``"node"`` or ``"node:port"``.
            name: of the node, made unique; its op by default.
            **attributes: type numbers for type attributes; integers, booleans, strings, lists of
                integers, and ``shape=`` for others.

        Returns:
            The name of the node.
        """
        definition = find_op(op)
        assert definition is not None, f"no op {op}"
        base = name or op.lower()
        number = self._used[base] = self._used.get(base, -1) + 1
        node = self.graph.node.add(name=f"{base}_{number}" if number else base, op=op, input=inputs)
        for attribute in definition.attributes.values():
            value = attributes.pop(attribute.name, None)
            if value is None and attribute.has_default:
                continue
            if attribute.kind == "type":
                node.attr[attribute.name].type = FLOAT if value is None else value
            elif value is not None:
                _set(node.attr[attribute.name], attribute.kind, value)
        assert not attributes, f"{op} has no {sorted(attributes)}"
        for argument in definition.inputs:
            if argument.number_attr and argument.number_attr not in node.attr:
                rest = len(definition.inputs) - 1
                node.attr[argument.number_attr].i = len(inputs) - rest
        return node.name

    def constant(self, value: Sequence[int] | float) -> str:
        """A Const: a float32 scalar, or a vector of whole numbers."""
        name = self.add("Const", dtype=FLOAT if not isinstance(value, Sequence) else INT32)
        tensor = self.graph.node[-1].attr["value"].tensor
        if not isinstance(value, Sequence):
            tensor.dtype = FLOAT
            tensor.float_val.append(value)
            return name
        tensor.dtype = INT32
        tensor.tensor_shape.dim.add(size=len(value))
        tensor.int_val.extend(value)
        return name

    def variable(self, name: str, shape: Sequence[int]) -> tuple[str, str]:
        """A variable with its initializer; returns its handle and its value."""
        handle = self.add("VarHandleOp", name=name, shape=shape)
        zeros = self.add("Fill", self.constant(shape), self.constant(0.0), name=f"{name}/init")
        self.add("AssignVariableOp", handle, zeros, name=f"{name}/assign")
        return handle, self.add("ReadVariableOp", handle, name=f"{name}/read")


def _set(attribute: Any, kind: str, value: Any) -> None:
    if kind == "shape":
        for size in value:
            attribute.shape.dim.add(size=size)
    elif kind == "list(int)":
        attribute.list.i.extend(value)
    elif kind == "string":
        attribute.s = value.encode()
    elif kind == "bool":
        attribute.b = value
    else:
        attribute.i = value


class _Trainer(Builder):
    """Layers that remember how to go back."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[str] = []
        self.rate = self.constant(0.1)
        self.back: list[Any] = []

    def train(self, handle: str, value: str, gradient: str, shape: Sequence[int]) -> None:
        """Weight decay and a step of momentum."""
        decay = self.add("Mul", value, self.constant(1e-4))
        total = self.add("AddN", gradient, decay)
        slot, _ = self.variable("momentum", shape)
        step = (handle, slot, self.rate, total, self.rate)
        self.add("ResourceApplyMomentum", *step)

    def convolve(self, x: str, size: int, ins: int, outs: int, stride: int) -> str:
        """A convolution."""
        shape = (size, size, ins, outs)
        handle, weights = self.variable("kernel", shape)
        strides = [1, stride, stride, 1]
        how = {"strides": strides, "padding": "SAME"}
        y = self.add("Conv2D", x, weights, **how)
        self.losses.append(self.add("L2Loss", weights))

        def back(gradient: str) -> str:
            sizes = self.add("ShapeN", x, weights)
            down = self.add("Conv2DBackpropFilter", x, f"{sizes}:1", gradient, **how)
            self.train(handle, weights, down, shape)
            return self.add("Conv2DBackpropInput", sizes, weights, gradient, **how)

        self.back.append(back)
        return y

    def normalise(self, x: str, channels: int) -> str:
        """Batch normalisation with moving averages."""
        scale, shift, mean, spread = (
            self.variable(name, (channels,)) for name in ("gamma", "beta", "mean", "variance")
        )
        y = self.add("FusedBatchNormV3", x, scale[1], shift[1], mean[1], spread[1])
        for port, (handle, value) in ((1, mean), (2, spread)):
            change = self.add("Mul", self.add("Sub", value, f"{y}:{port}"), self.rate)
            self.add("AssignSubVariableOp", handle, change)

        def back(gradient: str) -> str:
            saved = [f"{y}:{port}" for port in (3, 4, 5)]
            g = self.add("FusedBatchNormGradV3", gradient, x, scale[1], *saved)
            self.train(*scale, f"{g}:1", (channels,))
            self.train(*shift, f"{g}:2", (channels,))
            return g

        self.back.append(back)
        return y

    def relu(self, x: str) -> str:
        """Relu."""
        y = self.add("Relu", x)
        self.back.append(lambda gradient: self.add("ReluGrad", gradient, y))
        return y

    def unwind(self, gradient: str, start: int) -> str:
        """Runs back what was recorded since ``start``."""
        while len(self.back) > start:
            gradient = self.back.pop()(gradient)
        return gradient


def resnet50(batch: int = 64) -> Any:
    """ResNet-50 on 224 x 224 images: forward, backward, momentum, weight decay, averages."""
    b = _Trainer()
    images = b.add("Placeholder", name="images", dtype=FLOAT, shape=(batch, 224, 224, 3))
    labels = b.add("Placeholder", name="labels", dtype=INT32, shape=(batch,))
    x = b.relu(b.normalise(b.convolve(images, 7, 3, 64, 2), 64))
    pool = {"ksize": [1, 3, 3, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
    stem, x = x, b.add("MaxPool", x, **pool)
    pooled = x
    b.back.append(lambda g: b.add("MaxPoolGrad", stem, pooled, g, **pool))
    channels = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            width, stride = 64 << stage, 2 if stage and not block else 1
            x = _block(b, x, channels, width, stride)
            channels = 4 * width
    features, axes = x, b.constant([1, 2])
    x = b.add("Mean", features, axes)
    handle, weights = b.variable("dense/kernel", (channels, 1000))
    offset_handle, offset = b.variable("dense/bias", (1000,))
    logits = b.add("BiasAdd", b.add("MatMul", x, weights), offset)
    loss = b.add("SparseSoftmaxCrossEntropyWithLogits", logits, labels, Tlabels=INT32)
    b.add("AddN", b.add("Mean", loss, b.constant([0])), *b.losses, name="loss")
    gradient = b.add("Mul", f"{loss}:1", b.constant(1.0 / batch))
    b.train(offset_handle, offset, b.add("BiasAddGrad", gradient), (1000,))
    b.train(handle, weights, b.add("MatMul", x, gradient, transpose_a=True), (channels, 1000))
    gradient = b.add("MatMul", gradient, weights, transpose_b=True)
    gradient = b.add("Reshape", gradient, b.constant([batch, 1, 1, channels]))
    gradient = b.add("Tile", gradient, b.constant([1, 7, 7, 1]))
    b.unwind(b.add("RealDiv", gradient, b.constant(49.0)), 0)
    return b.graph


def _block(b: _Trainer, x: str, ins: int, width: int, stride: int) -> str:
    """A bottleneck block; its way back runs through both arms."""
    outer, b.back = b.back, []
    shortcut = x
    if stride > 1 or ins != 4 * width:
        shortcut = b.normalise(b.convolve(x, 1, ins, 4 * width, stride), 4 * width)
    short_back, b.back = b.back, []
    y = b.relu(b.normalise(b.convolve(x, 1, ins, width, 1), width))
    y = b.relu(b.normalise(b.convolve(y, 3, width, width, stride), width))
    y = b.normalise(b.convolve(y, 1, width, 4 * width, 1), 4 * width)
    long_back, b.back = b.back, outer
    total = b.add("AddV2", y, shortcut)
    out = b.add("Relu", total)

    def back(gradient: str) -> str:
        gradient = b.add("ReluGrad", gradient, out)
        held = b.back
        ends = []
        for arm in (long_back, short_back):
            b.back = arm
            ends.append(b.unwind(gradient, 0))
        b.back = held
        return b.add("AddN", *ends)

    b.back.append(back)
    return out


def cases() -> Iterator[tuple[str, bytes, bytes]]:
    """The observed graphs: name, GraphDef, and what TensorFlow made of it as JSON."""
    for file in sorted(CASES.glob("*.pb.xz")):
        name = file.name.removesuffix(".pb.xz")
        answer = file.with_name(f"{name}.json.xz")
        yield name, lzma.decompress(file.read_bytes()), lzma.decompress(answer.read_bytes())
