"""Gradients that devices add up, and the dtype in which they do (``Policy(reduce_dtype=...)``).

Two kinds of reduction are a program's own to decide:

* one that stands in it (``psum``, ``pmean``, ``psum_scatter`` inside ``shard_map``): its operand is
  cast. Of what a program reduces, gradients are the arrays behind which no dot follows: sums of
  activations lead to dots, losses and counts are single numbers.
* one that a compiler puts in, behind a dot whose contracted axis is divided between devices. It
  adds up what the dot hands on: float32 sums where the rule ``wide`` says so (gradients of
  weights), half if half is asked for.

What the derivative of a rewritten program adds up is JAX's to decide: ``docs/scale.md``.
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
    """Which operations add up over devices in another dtype than they would.

    Attributes:
        dtype: by name; empty for none.
        nodes: indices of the operations.
    """

    dtype: str = ""
    nodes: frozenset[int] = frozenset()

    def told(self) -> dict[int, tuple[str, str]]:
        """A name and a sentence for each operation."""
        return dict.fromkeys(self.nodes, (NAME, f"devices add up in {self.dtype}"))


NO_REDUCTIONS = Reductions()


def find_reductions(graph: Graph, classes: Classes, painting: Painting, dtype: str) -> Reductions:
    """The gradient reductions of a painted program.

    Args:
        graph: the program.
        classes: of its nodes.
        painting: its precisions.
        dtype: in which to add up: float32, or the half type of the painting.
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
    """True if float32 arrays of more than one number are added up."""
    values: list[Any] = [graph.values[value] for value in node.inputs]
    return any(value.dtype == FULL_DTYPE and value.size > 1 for value in values)
