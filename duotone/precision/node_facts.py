"""Facts about a node that its record holds: shape, makers, sizes, how its results leave."""

from __future__ import annotations

from collections.abc import Iterable

from duotone.graph.graph import Graph, Node
from duotone.ops.traits import Trait


def shape_of(graph: Graph, value: int) -> tuple[str, ...]:
    """Returns the dimensions of a value, in the form that records use."""
    return tuple(str(dimension) for dimension in graph.values[value].shape)


def maker_of(graph: Graph, value: int) -> str:
    """Returns the operation that makes a value; ``"input"`` or ``"constant"`` without one."""
    producer = graph.values[value].producer
    if producer >= 0:
        return graph.nodes[producer].op
    return "input" if value in graph.inputs else "constant"


def makers(graph: Graph, values: Iterable[int]) -> tuple[int, ...]:
    """Returns the operations that make some values, and skips structural nodes."""
    found: dict[int, None] = {}
    seen: set[int] = set()
    waiting = list(values)[::-1]
    while waiting:
        producer = graph.values[waiting.pop()].producer
        if producer < 0 or producer in seen:
            continue
        seen.add(producer)
        node = graph.nodes[producer]
        if Trait.STRUCTURAL in node.traits:
            waiting.extend(reversed(node.inputs))
        else:
            found[producer] = None
    return tuple(found)


def filled_of(graph: Graph, node: Node) -> float:
    """Returns the products of a dilated convolution with its zeros, over those without them.

    The result is 1 for gradients, since libraries have a form for the gradient of a filter and
    for that of an image, which reads a reversed filter.
    """
    reversed_ = (Trait.REVERSES in graph.nodes[i].traits for i in makers(graph, node.inputs))
    filled = node.attributes.get("filled", 1.0)
    return filled if isinstance(filled, float) and not any(reversed_) else 1.0


def sizes_of(node: Node) -> tuple[int, ...]:
    """Returns the sizes of a dot or convolution, in the form that records use."""
    return found if isinstance(found := node.attributes.get("sizes"), tuple) else ()


def leaves_of(graph: Graph, values: Iterable[int]) -> tuple[str, ...]:
    """Returns how some values leave their body, in the form that records use."""
    made = set(values)
    readers = {reader for value in made for reader, _ in graph.consumers[value]}
    nodes = (graph.nodes[reader] for reader in readers)
    names = {node.op for node in nodes if Trait.STRUCTURAL in node.traits}
    if any(value in made for value, _ in graph.outputs):
        names.add("output")
    return tuple(sorted(names))
