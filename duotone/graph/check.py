"""The check that the parts of a graph fit together."""

from __future__ import annotations

from duotone.errors import RewriteError
from duotone.graph.graph import Graph


def check_graph(graph: Graph) -> Graph:
    """Returns ``graph`` if its parts fit together.

    Raises:
        RewriteError: an index points nowhere, a slot that is not float32 claims it may be half, or
            a value names a producer that does not make it.
    """
    for position, value in enumerate(graph.values):
        if value.index != position:
            raise RewriteError(f"value {value.index} is at position {position}")
        if value.producer >= 0 and value.index not in graph.nodes[value.producer].outputs:
            raise RewriteError(f"value {position} is not a result of node {value.producer}")
    floats = {value.index for value in graph.values if value.paintable}
    for position, node in enumerate(graph.nodes):
        if node.index != position:
            raise RewriteError(f"node {node.index} ({node.op}) is at position {position}")
        for values, flags in (
            (node.inputs, node.half_inputs),
            (node.outputs, node.half_outputs),
        ):
            if len(values) != len(flags):
                raise RewriteError(f"node {position} ({node.op}): flags do not match its slots")
            for value, flag in zip(values, flags, strict=True):
                if flag and value not in floats:
                    raise RewriteError(
                        f"node {position} ({node.op}) at {node.source}: a slot of dtype "
                        f"{graph.values[value].dtype} claims it may be half"
                    )
    return graph
