"""Reading: from a model to the neutral graph, with a map from nodes of the file to graph nodes.

A graph inside a node is a :class:`Part` with its own body. If it reads a value of an outer
graph, that is the same graph value. Constants (initializers and ``Constant`` nodes) are
values that no node makes, with the magnitude of their elements. :mod:`duotone.onnx.nested`
reads ``If``, ``Loop``, ``Scan`` and ``SequenceMap``.
"""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from duotone.errors import OnnxError
from duotone.graph.elements import in_half, kept_constant
from duotone.graph.graph import (
    FULL_DTYPE,
    Body,
    BodyKind,
    Boundary,
    Graph,
    HalfType,
    Node,
    Paint,
    Value,
)
from duotone.graph.magnitude import Magnitude
from duotone.onnx import weights
from duotone.onnx.describe import describe
from duotone.onnx.hints import Hints
from duotone.onnx.opsets import check_known
from duotone.onnx.parts import Built, Constant, FileStep, Part
from duotone.onnx.protos import (
    NO_DTYPE,
    GraphProto,
    ModelProto,
    NodeProto,
    attribute,
    domain_of,
    dtype_of,
    graphs_in,
    named,
    operation,
    opsets_of,
)
from duotone.onnx.schemas import signature, signature_of
from duotone.onnx.types import check_operands, results
from duotone.ops.entries import traits_of
from duotone.ops.onnx import INTERVALS, TRAITS
from duotone.ops.traits import Trait


class Reader:
    """Reads one model.

    Args:
        model: the model, with inlined functions.
        half: the half type.
        folder: the folder of its external data.
        nested: reads an operation with graphs inside, by its name.
        avoided: operations without a half kernel in the runtime.
        opted: operations without a schema that the policy lists.
    """

    def __init__(
        self,
        model: ModelProto,
        half: HalfType,
        folder: Path | None,
        nested: Mapping[str, NestedReader],
        avoided: Collection[str] = (),
        opted: Collection[str] = (),
    ) -> None:
        self._nested = nested
        self.half, self.folder = half, folder
        self.avoided, self.opted = avoided, opted
        self.opsets = opsets_of(model)
        self.nodes: list[Node] = []
        self.values: list[Value] = []
        self.bodies: list[Body] = []
        self.names: list[str] = []
        self.constants: dict[int, Constant] = {}
        self.defaults: dict[int, Any] = {}
        self.operations: dict[int, str] = {}

    def read(
        self, graph: GraphProto, hints: Hints, *, keep_io: bool, fold_inputs: bool = False
    ) -> Built:
        """Reads the graph of a model.

        Args:
            graph: the graph.
            hints: known shapes and types.
            keep_io: whether inputs and outputs stay float32.
            fold_inputs: whether an initializer that is an input too is a constant, and no input.
        """
        body = self.add_body(-1, BodyKind.ROOT)
        root = Part(graph, body)
        scope: MutableMapping[str, int] = {}
        initial = {tensor.name: tensor for tensor in graph.initializer}
        given = Paint.FULL if keep_io else Paint.HALF
        for info in graph.input:
            default = initial.get(info.name)
            if default is not None and fold_inputs:
                continue
            dtype = hints.dtype(info.name)
            paint = given if dtype == FULL_DTYPE and default is None else Paint.FULL
            value = self.value(info.name, dtype, hints.shape(info.name), body, given=paint)
            if default is not None and dtype == FULL_DTYPE:
                self._default(value, default)
            scope[info.name] = value
            root.inputs.append(value)
        self.fill(root, scope, hints)
        boundary = Boundary.FULL if keep_io else Boundary.HALF
        outputs = tuple(
            (v, boundary if self.values[v].paintable else Boundary.FULL) for v in root.outputs
        )
        inputs = tuple(root.inputs)
        made = Graph(tuple(self.nodes), tuple(self.values), tuple(self.bodies), inputs, outputs)
        return Built(made, root, self.constants, self.names, self.operations, self.defaults)

    def add_body(self, parent: int, kind: BodyKind, trips: int = 1) -> int:
        """Adds a body; returns its index."""
        runs = trips * (self.bodies[parent].trips if parent >= 0 else 1)
        self.bodies.append(Body(len(self.bodies), parent, kind, runs))
        return self.bodies[-1].index

    def value(
        self,
        name: str,
        dtype: str,
        shape: tuple[object, ...],
        body: int,
        *,
        producer: int = -1,
        constant: Magnitude | None = None,
        given: Paint = Paint.FULL,
    ) -> int:
        """Adds a value; returns its index."""
        size = 1
        for side in shape:
            size *= side if isinstance(side, int) else 1
        index = len(self.values)
        self.values.append(
            Value(index, size, shape, dtype, producer, body, constant=constant, given=given)
        )
        self.names.append(name)
        return index

    def node(
        self,
        op: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        body: int,
        proto: NodeProto,
        **fields: Any,
    ) -> int:
        """Adds a node whose results were added before; returns its index."""
        index = len(self.nodes)
        floats = [tuple(self.values[v].paintable for v in vs) for vs in (inputs, outputs)]
        scope, _, _ = proto.name.strip("/").rpartition("/")
        source = proto.name or next((name for name in proto.output if name), "")
        details = {
            "list_key": op,
            "half_inputs": floats[0],
            "half_outputs": floats[1],
            "flops": 0.0,
            **fields,
        }
        self.nodes.append(
            Node(
                index,
                op,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                body=body,
                scope=scope,
                region="",
                source=source,
                traits=traits_of(TRAITS, str(details["list_key"])),
                interval=INTERVALS.get(str(details["list_key"]), ""),
                **details,
            )
        )
        for value in outputs:
            if self.values[value].producer != index:
                self.values[value] = dataclasses.replace(self.values[value], producer=index)
        if Trait.STRUCTURAL not in self.nodes[index].traits:
            self.operations[index] = operation(proto)
        return index

    def fill(self, part: Part, scope: MutableMapping[str, int], hints: Hints) -> None:
        """Reads initializers, nodes and results of a graph whose inputs are in ``scope``."""
        for tensor in part.graph.initializer:
            if tensor.name not in scope or part.body:
                self._initializer(part, scope, tensor, tensor.dims)
        for sparse in part.graph.sparse_initializer:
            self._initializer(part, scope, sparse.values, sparse.dims)
        for position, node in enumerate(part.graph.node):
            part.steps.append(self._step(node, part, scope, hints, position))
        for info in part.graph.output:
            part.outputs.append(scope[info.name])
            part.readers.append(None)
        self._check_types(part)

    def _default(self, value: int, tensor: Any) -> None:
        """Sets the default of an input, like the elements of a weight."""
        if dtype_of(tensor.data_type) != FULL_DTYPE:
            raise OnnxError(
                f"the input {tensor.name!r} is float32, and its default "
                f"{dtype_of(tensor.data_type)}."
            )
        constant = weights.magnitude(tensor, self.folder)
        self.values[value] = dataclasses.replace(self.values[value], constant=constant)
        self.defaults[value] = tensor

    def _check_types(self, part: Part) -> None:
        """Raises if the types of a graph's inputs and results contradict the file."""
        known = {self.names[v]: v for v in part.inputs}
        found = [known.get(info.name, -1) for info in part.graph.input]
        infos = (*part.graph.input, *part.graph.output)
        for info, value in zip(infos, (*found, *part.outputs), strict=True):
            dtype = dtype_of(info.type.tensor_type.elem_type)
            read = self.values[value].dtype if value >= 0 else NO_DTYPE
            if NO_DTYPE not in (dtype, read) and dtype != read:
                raise OnnxError(f"{info.name!r} is {read}, and the file says {dtype}.")

    def _initializer(
        self, part: Part, scope: MutableMapping[str, int], tensor: Any, dims: Sequence[int]
    ) -> None:
        dtype = dtype_of(tensor.data_type)
        constant = weights.magnitude(tensor, self.folder, dims) if dtype == FULL_DTYPE else None
        value = self.value(tensor.name, dtype, tuple(dims), part.body, constant=constant)
        if dtype == FULL_DTYPE:
            self.constants[value] = Constant(tensor, tensor.name)
        part.constants.append(value)
        scope[tensor.name] = value

    def _step(
        self,
        node: NodeProto,
        part: Part,
        scope: MutableMapping[str, int],
        hints: Hints,
        position: int,
    ) -> FileStep:
        inputs = [scope[name] if name else -1 for name in node.input]
        nested = None if domain_of(node) else self._nested.get(node.op_type)
        if nested is None or (node.op_type == "Scan" and self.opsets[""] < 9):
            nested = None
            _check_opaque(node, scope)
        if nested is not None:
            step = nested(self, node, inputs, part, scope, hints, position)
        elif node.op_type == "Constant" and not domain_of(node):
            step = self._constant(node, part)
        else:
            step = self._plain(node, inputs, part, hints)
        for name, value in zip(node.output, step.outputs, strict=True):
            if name:
                scope[name] = value
        return step

    def _constant(self, node: NodeProto, part: Part) -> FileStep:
        (dtype,) = results(node, signature("Constant", "", self.opsets[""]), (), lambda _: "")
        tensor = weights.as_tensor(node) if dtype == FULL_DTYPE else None
        shape = tuple(tensor.dims) if tensor is not None else ("?",)
        constant = weights.magnitude(tensor, self.folder) if tensor is not None else None
        value = self.value(node.output[0], dtype, shape, part.body, constant=constant)
        if tensor is not None:
            self.constants[value] = Constant(tensor, node.output[0])
        return FileStep(node, -1, [], [], [value])

    def _plain(self, node: NodeProto, inputs: list[int], part: Part, hints: Hints) -> FileStep:
        """Returns a node without a graph inside."""
        domain = domain_of(node)
        found = signature_of(node.op_type, domain, self.opsets.get(domain, 1))
        read = [self.values[v] if v >= 0 else None for v in inputs]
        check_operands(node, found)
        if found is None:
            check_known(node, self.opted)
        dtypes = results(node, found, [v.dtype if v else "" for v in read], hints.dtype)
        constant = self._kept_constant(node, read)
        outputs = [
            self.value(
                name,
                dtype,
                hints.shape(name),
                part.body,
                constant=constant,
                producer=len(self.nodes),
            )
            if name
            else -1
            for name, dtype in zip(node.output, dtypes, strict=True)
        ]
        makers = [self.operations.get(v.producer, "") for v in read if v is not None]
        made = describe(
            node,
            found,
            read,
            [self.values[v] if v >= 0 else None for v in outputs],
            self.half,
            makers=makers,
            avoided=self.avoided,
            opted=self.opted,
            refused=self._too_large(read) or self._badly_rounded(node, read),
        )
        slots = made["attributes"]["operands"]
        reads, makes = [inputs[slot] for slot in slots], [v for v in outputs if v >= 0]
        index = self.node(made.pop("op"), reads, makes, part.body, node, **made)
        readers: list[tuple[int, int] | None] = [None] * len(inputs)
        for position, slot in enumerate(slots):
            readers[slot] = (index, position)
        return FileStep(node, index, inputs, readers, outputs)

    def _kept_constant(self, node: NodeProto, read: Sequence[Value | None]) -> Magnitude | None:
        if node.op_type == "ConstantOfShape":
            tensor = weights.as_tensor(node)
            return Magnitude.of(0.0) if tensor is None else weights.magnitude(tensor, self.folder)
        return kept_constant(traits_of(TRAITS, operation(node)), read)

    def _too_large(self, read: Sequence[Value | None]) -> str:
        """Returns why a reader of an input's default stays full: a cast would make it infinite."""
        for value in read:
            if value is None or value.index not in self.defaults or value.constant is None:
                continue
            if value.constant.largest > self.half.largest:
                name = self.names[value.index]
                return f"the default of the input {name!r} is too large for {self.half.name}"
        return ""

    def _badly_rounded(self, node: NodeProto, read: Sequence[Value | None]) -> str:
        """Explains why a batch norm stays full: half would round small variances too much."""
        if node.op_type != "BatchNormalization" or len(read) != 5 or read[4] is None:
            return ""
        found = self.constants.get(read[4].index)
        variance = self.defaults.get(read[4].index) if found is None else found.tensor
        if variance is None:
            return ""
        epsilon = attribute(node, "epsilon") or 1e-5
        for piece in weights.pieces(variance, self.folder):
            rounded = in_half(piece, self.half).astype(piece.dtype)
            error = abs(rounded - piece) / (abs(piece) + epsilon)
            if (error > 2 * self.half.epsilon).any():
                return f"{self.half.name} rounds its variances too coarsely"
        return ""


NestedReader = Callable[
    [Reader, NodeProto, list[int], Part, MutableMapping[str, int], Hints, int], FileStep
]
"""Takes the reader, node, operands, its graph, the visible names, hints and its position."""


def inner_scope(scope: MutableMapping[str, int]) -> MutableMapping[str, int]:
    """Returns the names that a nested graph sees: its own, and those of outer graphs."""
    return ChainMap({}, scope)


def _check_opaque(node: NodeProto, scope: MutableMapping[str, int]) -> None:
    """Raises if a graph that is not rewritten reads an outer value, whose type may change."""
    for graph in graphs_in(node):
        read = {name for inner in graph.node for name in inner.input}
        own = {value.name for value in (*graph.input, *graph.initializer)}
        own |= {name for inner in graph.node for name in inner.output}
        outside = sorted(name for name in read - own if name and name in scope)
        if outside:
            raise OnnxError(
                f"{named(node)}: this operation is unknown, and its graph reads "
                f"{outside[0]!r} of an outer graph; such a model is not rewritten."
            )
