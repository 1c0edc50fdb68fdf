"""Gradients that devices sum up, and the dtype of the sum (``Policy(reduce_dtype=...)``).

This module decides about two kinds of reductions in a program:

* The program contains the reduction (``psum``, ``pmean``, ``psum_scatter`` inside ``shard_map``).
  Then its operand is cast. Among the reduced values, gradients are the arrays that lead to no dot:
  sums of activations lead to dots, losses and counts are single numbers.
* The compiler adds the reduction after a dot whose contracted axis is sharded over devices. It sums
  up the result of the dot as the dot returns it: in float32 by the rule ``wide`` (gradients of
  weights), in half if the policy asks for half.

JAX inserts the reductions in the derivative of a rewritten program: see ``docs/scale.md``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from duotone.graph.graph import FULL_DTYPE, SWITCHED_OFF, Graph, Node, Paint
from duotone.graph.reach import reach
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.painters.painting import Painting

NAME = "reduce_dtype"


@dataclasses.dataclass(frozen=True, slots=True)
class Reductions:
    """The operations that sum up over devices in another dtype than without this stage.

    Attributes:
        dtype: the name of the dtype; empty for none.
        nodes: indices of the operations.
    """

    dtype: str = ""
    nodes: frozenset[int] = frozenset()

    def reasons(self) -> dict[int, tuple[str, str]]:
        """Returns a name and a sentence for each operation."""
        return dict.fromkeys(self.nodes, (NAME, f"devices sum up in {self.dtype}"))


NO_REDUCTIONS = Reductions()


def find_reductions(graph: Graph, classes: Classes, painting: Painting, dtype: str) -> Reductions:
    """Finds the gradient reductions of a painted program.

    Args:
        graph: the program.
        classes: the class of each node.
        painting: the precisions.
        dtype: the dtype of the sums: float32, or the half type of the painting.
    """
    after = [
        sorted({reader for value in node.outputs for reader, _ in graph.consumers[value]})
        for node in graph.nodes
    ]
    after = [[index for index in found if index >= 0] for found in after]

    def allowed(index: int) -> bool:
        return classes.nodes[index].entry.kind is Kind.ALLOW

    found: set[int] = set()
    for node in graph.nodes:
        if node.region == SWITCHED_OFF:
            continue
        if Trait.SUMS_DEVICES in node.traits and _is_array(graph, node):
            if not any(map(allowed, reach([node.index], after, lambda _: True))):
                found.add(node.index)
        elif dtype != FULL_DTYPE and Trait.CONTRACTS in node.traits:
            half = painting.compute[node.index] is Paint.HALF
            if half and painting.store[node.index] is Paint.FULL:
                found.add(node.index)
    return Reductions(dtype, frozenset(found))


def _is_array(graph: Graph, node: Node) -> bool:
    """Returns True if a node sums up a float32 array of more than one number."""
    values: list[Any] = [graph.values[value] for value in node.inputs]
    return any(value.dtype == FULL_DTYPE and value.size > 1 for value in values)
