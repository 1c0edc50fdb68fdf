"""What TensorFlow 2.21 made of small graphs, as neutral graphs: reads ``tensorflow_cases.txt``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from duotone.graph.check import check_graph
from duotone.graph.graph import FULL_DTYPE, Body, BodyKind, Graph, Node, Value
from duotone.ops.entries import Entry, Kind

_FILE = Path(__file__).with_name("tensorflow_cases.txt")

# The operations of these graphs on the lists of TensorFlow 2.21, CUDA float16.
_LISTS = {
    Kind.ALLOW: "BatchMatMul BatchMatMulV2 Einsum MatMul",
    Kind.INFER: "AddV2 BiasAdd Log Mul RealDiv Sqrt Sub Tanh",
    Kind.DENY: "Exp Mean SparseSoftmaxCrossEntropyWithLogits Sum",
    Kind.CLEAR: "ArgMax ConcatV2 Enter Exit ExpandDims Fill Identity Merge NextIteration Pack Pad "
    "Relu Reshape Split StridedSlice Switch Tile Transpose Unpack ZerosLike",
}
ENTRIES = tuple(
    Entry(op, kind, "on TensorFlow's list", "TensorFlow 2.21")
    for kind, ops in _LISTS.items()
    for op in ops.split()
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One observed graph.

    Attributes:
        name: of the case.
        graph: as a painter sees it; every value has one element, since TensorFlow's rules do not
            look at sizes.
        names: of the nodes.
        expected: the precision of each node.
    """

    name: str
    graph: Graph
    names: tuple[str, ...]
    expected: tuple[str, ...]


def read_cases() -> list[Case]:
    """All cases of the file."""
    cases = []
    for block in _FILE.read_text().split("\n[")[1:]:
        name, _, body = block.partition("]\n")
        cases.append(_case(name, body.strip().splitlines()))
    return cases


def _case(name: str, lines: list[str]) -> Case:
    heads = [line.partition(" (")[0].split() for line in lines]
    tails = [line.partition(" (")[2].partition(") ") for line in lines]
    index = {node: position for position, (node, _) in enumerate(heads)}
    nodes = []
    for position, ((_, op), (operands, _, _)) in enumerate(zip(heads, tails, strict=True)):
        inputs = tuple(index[operand] for operand in operands.split())
        plain = op.removesuffix("!")
        nodes.append(
            Node(
                index=position,
                op=plain,
                list_key=plain,
                inputs=inputs,
                outputs=(position,),
                half_inputs=(True,) * len(inputs),
                half_outputs=(True,),
                body=0,
                scope="",
                region="",
                source=lines[position],
                flops=0.0,
                fixed="not processed" if op.endswith("!") else "",
            )
        )
    values = tuple(Value(i, 1, (), FULL_DTYPE, producer=i) for i in range(len(nodes)))
    graph = Graph(tuple(nodes), values, (Body(0, -1, BodyKind.ROOT, 1),), (), ())
    names = tuple(node for node, _ in heads)
    return Case(name, check_graph(graph), names, tuple(precision for _, _, precision in tails))
