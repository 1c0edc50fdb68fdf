"""Figures: the size of a graph, its share in half, and the bytes that its nodes move.

Bytes are those of operands and results as a node reads and writes them, in the types that the graph
has. They are an upper bound, since TensorFlow fuses some nodes and reuses buffers. A multiply-add
counts as two FLOPs, a loop as one iteration, and a side that is not known as 32.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from duotone.graph.graph import FULL_DTYPE, HALF_TYPES, Graph, Node
from duotone.ops.tensorflow_meanings import ENTRIES
from duotone.ops.traits import Trait
from duotone.policy.policy import Policy
from duotone.policy.resolve import edited_lists, resolve
from duotone.tensorflow.functions import FunctionBody, reachable
from duotone.tensorflow.op_registry import OpDefinition, define_function, find_op
from duotone.tensorflow.protos import HALVES, GraphDef, NodeDef, library_of
from duotone.tensorflow.reading import read
from duotone.tensorflow.shapes import Shapes
from duotone.tensorflow.unit_facts import Facts
from duotone.tensorflow.units import FindOp, make_units


@dataclasses.dataclass(frozen=True, slots=True)
class GraphFigures:
    """The figures of a graph, its functions included.

    Attributes:
        nodes: the number of nodes.
        half: the nodes with a half type, without casts between float32 and half.
        casts: the casts between float32 and half.
        bytes: the bytes that all nodes read and write.
        cast_bytes: the part of ``bytes`` that those casts move.
        products: the matrix products and convolutions.
        half_products: the products with a half operand.
        flops: the FLOPs of products, as far as their sizes are known.
        half_flops: the part of ``flops`` with half operands.
        bytes_by_op: the bytes by op.
    """

    nodes: int
    half: int
    casts: int
    bytes: int
    cast_bytes: int
    products: int
    half_products: int
    flops: float
    half_flops: float
    bytes_by_op: Mapping[str, int] = dataclasses.field(repr=False)


def figures_of(graph: GraphDef, function: str = "") -> GraphFigures:
    """Returns the figures of a graph.

    Args:
        graph: it is only read.
        function: the function of its library to count instead of the graph, with those that it
            calls; empty for the graph.

    Raises:
        GraphDefError: the graph is damaged or has ops that TensorFlow 2.21 lacks.

    Example:
        >>> from duotone.tensorflow.protos import FLOAT, new_graph
        >>> graph = new_graph()
        >>> node = graph.node.add(name="x", op="Placeholder")
        >>> node.attr["dtype"].type = FLOAT
        >>> sides = [node.attr["shape"].shape.dim.add(size=size) for size in (8, 8)]
        >>> node = graph.node.add(name="y", op="MatMul", input=["x", "x"])
        >>> node.attr["T"].type = FLOAT
        >>> found = figures_of(graph)
        >>> found.bytes, found.flops, found.half
        (768, 1024.0, 0)
    """
    bodies = list(_bodies(graph, function))
    nodes = [node for nodes, _ in bodies for node in nodes]
    moved: Counter[str] = Counter()
    products: dict[bool, list[float]] = {True: [], False: []}
    casts = []
    for _, neutral in bodies:
        for node in neutral.nodes:
            moved[node.op] += _bytes(node, neutral)
            if Trait.CONTRACTS in node.traits:
                half = any(neutral.values[value].dtype in HALF_TYPES for value in node.inputs)
                products[half].append(node.flops)
            if _is_cast(node, neutral):
                casts.append(_bytes(node, neutral))
    return GraphFigures(
        nodes=len(nodes),
        half=sum(map(_has_half, nodes)) - len(casts),
        casts=len(casts),
        bytes=moved.total(),
        cast_bytes=sum(casts),
        products=sum(map(len, products.values())),
        half_products=len(products[True]),
        flops=sum(map(sum, products.values())),
        half_flops=float(sum(products[True])),
        bytes_by_op=dict(moved),
    )


def _bodies(graph: GraphDef, function: str) -> Iterator[tuple[Sequence[NodeDef], Graph]]:
    """Yields the nodes of a graph or function, and of those that it reaches, and what they mean."""
    library = library_of(graph)
    functions = {name: define_function(f.signature) for name, f in library.items()}

    def find(name: str) -> OpDefinition | None:
        return functions.get(name) or find_op(name)

    nodes = library[function].node_def if function else graph.node
    if not function:
        yield nodes, _neutral(graph, find)
    for name in sorted(reachable(nodes, library, {}) | ({function} if function else set())):
        body = FunctionBody(library[name], find)
        yield library[name].node_def, _neutral(body.graph, find)


def _neutral(graph: GraphDef, find: FindOp) -> Graph:
    """Returns a graph that is only counted, not rewritten."""
    policy, half = Policy(), HALF_TYPES["bfloat16"]
    resolved = resolve(policy, half, edited_lists(policy, half, ENTRIES))
    units = make_units(graph, find)
    kinds = tuple(resolved.lists.get(node.op, node.op).kind for node in units.nodes)
    untouched = (False,) * len(units.nodes)
    return read(Facts(units, Shapes(units), resolved, kinds, untouched, "cpu", ())).graph


def _bytes(node: Node, graph: Graph) -> int:
    """Returns the bytes that a node moves; 0 for one that names a value or reads its shape."""
    if node.traits & {Trait.RESHAPES, Trait.SHAPES, Trait.STRUCTURAL}:
        return 0
    return sum(graph.values[v].bytes(half=False) for v in (*node.inputs, *node.outputs))


def _is_cast(node: Node, graph: Graph) -> bool:
    """Returns True for a cast between float32 and half."""
    dtypes = {graph.values[value].dtype for value in (*node.inputs, *node.outputs)}
    converts = Trait.CONVERTS in node.traits and FULL_DTYPE in dtypes
    return converts and not dtypes.isdisjoint(HALF_TYPES)


def _has_half(node: NodeDef) -> bool:
    types = (t for value in node.attr.values() for t in (value.type, *value.list.type))
    return any(one in HALVES.values() for one in types)
