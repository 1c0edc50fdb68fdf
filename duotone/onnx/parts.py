"""Parts: maps the nodes and values of a model's file to the neutral graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from duotone.graph.graph import Graph
from duotone.onnx.protos import GraphProto, NodeProto


class Constant(NamedTuple):
    """The tensor of an initializer or ``Constant`` node of float32, and its name."""

    tensor: Any
    name: str


@dataclasses.dataclass
class FileStep:
    """One node of the file.

    Attributes:
        node: its message.
        index: its node in the graph; -1 for a constant and for a node with nested graphs.
        inputs: the value in each operand slot; -1 if it is omitted.
        readers: for each slot, the graph node and slot that give the precision in which it is read;
            ``None`` if it is read as stored.
        outputs: the value of each result; -1 if it is omitted.
        parts: the nested graphs, in order.
    """

    node: NodeProto
    index: int
    inputs: list[int]
    readers: list[tuple[int, int] | None]
    outputs: list[int]
    parts: list[Part] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Part:
    """A graph of the file.

    Attributes:
        graph: its message.
        body: its body in the neutral graph.
        inputs: values of its inputs.
        constants: values of its initializers.
        steps: its nodes.
        outputs: values of its results.
        readers: for each result, the graph node and slot that give its precision; ``None`` if it is
            returned as stored.
    """

    graph: GraphProto
    body: int
    inputs: list[int] = dataclasses.field(default_factory=list)
    constants: list[int] = dataclasses.field(default_factory=list)
    steps: list[FileStep] = dataclasses.field(default_factory=list)
    outputs: list[int] = dataclasses.field(default_factory=list)
    readers: list[tuple[int, int] | None] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Built:
    """A model as a neutral graph.

    Attributes:
        graph: the graph.
        root: the file's graph.
        constants: the constants, by value.
        names: the name of each value in the file.
        operations: by graph node, the operation in the file; without structural nodes.
        defaults: by value, the float32 elements of inputs that the caller may omit.
    """

    graph: Graph
    root: Part
    constants: Mapping[int, Constant]
    names: Sequence[str]
    operations: Mapping[int, str]
    defaults: Mapping[int, Any]
