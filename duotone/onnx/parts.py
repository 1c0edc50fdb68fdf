"""Parts: a model's file beside the neutral graph: which node and value of it is which there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from duotone.graph.graph import Graph
from duotone.onnx.protos import GraphProto, NodeProto


@dataclasses.dataclass(frozen=True, slots=True)
class Constant:
    """A constant of the file.

    Attributes:
        tensor: its float32 elements; ``None`` where they cannot be had in half.
        node: the ``Constant`` node that holds it; ``None`` for an initializer.
        name: its name.
    """

    tensor: Any
    node: Any
    name: str


@dataclasses.dataclass
class Step:
    """One node of the file.

    Attributes:
        node: its message.
        index: its node in the graph; -1 for a constant and for what has graphs inside.
        inputs: the value in each operand slot; -1 where it is left out.
        readers: for each slot, the node and slot of the graph that say how it is read; ``None``
            for what is read as it is stored.
        outputs: the value of each result; -1 where it is left out.
        parts: the graphs inside, in order.
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
        readers: for each result, the node and slot that say how it leaves; ``None`` as stored.
    """

    graph: GraphProto
    body: int
    inputs: list[int] = dataclasses.field(default_factory=list)
    constants: list[int] = dataclasses.field(default_factory=list)
    steps: list[Step] = dataclasses.field(default_factory=list)
    outputs: list[int] = dataclasses.field(default_factory=list)
    readers: list[tuple[int, int] | None] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Built:
    """A model as a neutral graph.

    Attributes:
        graph: the graph.
        root: the file's graph.
        constants: by value.
        names: the name of each value in the file.
        operations: the operation in the file of each node, by index; structural ones are missing.
        defaults: by value, the float32 elements of inputs that the caller may leave out.
    """

    graph: Graph
    root: Part
    constants: Mapping[int, Constant]
    names: Sequence[str]
    operations: Mapping[int, str]
    defaults: Mapping[int, Any]
