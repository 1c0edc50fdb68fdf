"""Values that circle in a loop, only move, and are read in half: cached keys and values.

A cache starts as zeros, so nothing half makes it, and every iteration would cast all of it for its
dots. Stored in half, each value is rounded once, when it is written, to the same number::

    carry ─► slice ─► update with new keys ─► dot (half)
      ▲                        │
      └──────── stack ◄────────┘
"""

from __future__ import annotations

from duotone.graph.graph import Boundary, Node, Paint
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.painters.painting import Canvas, may_store_half
from duotone.precision.rules import Rule

_MOVES = {Trait.COMMUTES, Trait.CARRIES}


def store_circles_half(canvas: Canvas) -> None:
    """Paints a full loop carry half, and what moves it, if all other readers read it in half."""
    kept = {value for value, boundary in canvas.graph.outputs if boundary is Boundary.FULL}
    for node in canvas.graph.nodes:
        if Trait.CARRIES in node.traits and _moves(canvas, node, kept):
            for index in sorted(_moving(canvas, node, kept)):
                canvas.paint(index, Paint.HALF, Rule.UPSTREAM)


def _moving(canvas: Canvas, carry: Node, kept: set[int]) -> set[int]:
    """Returns the full nodes through which a carry moves back to itself.

    There are none if a node reads it in float32, or if an iteration makes a new value.
    """
    values, found, queue = canvas.graph.values, {carry.index}, [carry]
    while queue:
        for value in queue.pop().outputs:
            for reader, slot in canvas.consumers[value]:
                node = canvas.graph.nodes[reader]
                reads_half = canvas.compute[reader] is Paint.HALF and node.half_inputs[slot]
                if reader in found or reads_half:
                    continue
                if not _moves(canvas, node, kept):
                    return set()
                found.add(reader)
                queue.append(node)
    returns = any(values[value].producer in found for value in carry.inputs)
    return found if returns else set()


def _moves(canvas: Canvas, node: Node, kept: set[int]) -> bool:
    """Checks if a full node only moves or picks values, and its results may be stored in half."""
    return (
        canvas.open[node.index]
        and canvas.compute[node.index] is Paint.FULL
        and canvas.kind(node.index) is Kind.CLEAR
        and not _MOVES.isdisjoint(canvas.entry(node.index).traits)
        and node.paintable
        and node.index not in canvas.state
        and may_store_half(node, canvas.graph.values)
        and kept.isdisjoint(node.outputs)
    )
