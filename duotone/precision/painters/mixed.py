"""Compute full, store half: the rules of arithmetic between full and half values.

These rules look through nodes that move, select, clip or compare, and count the readers after them
(:meth:`~duotone.precision.painters.painting.Canvas.readers`). Such a transparent node has no
precision of its own. It is half like its operand. The last of these rules makes it full if it reads
a full value for full readers.

No rule recognises norms as such. In an RMS norm written by hand, the lists and taint have already
made the squares and their mean full. This module decides about the product with the root.
"""

from __future__ import annotations

from collections.abc import Collection

from duotone.graph.graph import SMALL, Node, Paint
from duotone.ops.entries import PASSIVE, Kind, Pointwise
from duotone.ops.traits import Trait
from duotone.precision.painters.painting import Canvas
from duotone.precision.rules import Rule

# Bound once: these are hot.
_ALLOW, _INFER, _FULL = Kind.ALLOW, Kind.INFER, Paint.FULL
_AVERAGES, _COMMUTES = Trait.AVERAGES, Trait.COMMUTES


def compute_full_store_half(canvas: Canvas) -> None:
    """Computes arithmetic full and stores it half, as in a layer norm written by hand.

    A statistic, a scale or a bias is small and float32. A cast to half would only round it, since
    the large values are the ones that cost bytes. Without the cast, its gradient (a sum over the
    broadcast axes) stays in float32 too. The walk goes backward, so that it decides on readers
    first.
    """
    graph = canvas.graph
    outputs = {value for value, _ in graph.outputs}
    picked = _picked(canvas)
    for node in reversed(graph.nodes):
        index = node.index
        if canvas.rules[index] is not Rule.DOWNSTREAM:
            continue
        arithmetic = canvas.kind(index) is _INFER
        if not (arithmetic or index in picked):
            continue
        if Trait.ADDS_INTO in node.traits and not reads_full(canvas, node):
            continue  # it adds in memory, so its result is stored whatever its readers do
        moved, readers = canvas.moved_and_readers(node.outputs)
        readers = readers if arithmetic else _direct_readers(canvas, node)
        mixed = arithmetic and (reads_full(canvas, node) or _adds_mixed(canvas, node, readers))
        # A node with several readers is stored, unless each of them can recompute it at no cost.
        unstored = mixed or index in picked or len(readers) == 1 or _costs_nothing(canvas, node)
        unstored = unstored and outputs.isdisjoint(moved)
        if unstored and all(_fuses_full(canvas, node, r) for r in readers):
            canvas.paint(index, Paint.FULL, Rule.FULL_READERS)
        elif mixed:
            canvas.paint(index, Paint.FULL, Rule.MIXED)
            canvas.store[index] = Paint.HALF


def _direct_readers(canvas: Canvas, node: Node) -> list[int]:
    """Returns the nodes that read a result of ``node`` directly, transparent ones included."""
    return [reader for value in node.outputs for reader, _ in canvas.consumers[value]]


def _adds_mixed(canvas: Canvas, node: Node, readers: Collection[int]) -> bool:
    """Returns True if a node sums, for dots, results of arithmetic with small full operands.

    An example are the two parts of the gradient upstream of a batch norm, or the three parts
    upstream of a cosine. If they were rounded before the sum, little might be left of it. A part of
    a longer sum (the residual stream around a layer norm) does not count, since compilers would
    then write that sum in full.
    """
    if Trait.ADDS not in canvas.entry(node.index).traits:
        return False
    for_dots = _are_for_dots(canvas, node, set(readers), with_sums=False)
    return for_dots and all(_is_mixed(canvas, node, value) for value in node.inputs)


def _is_mixed(canvas: Canvas, node: Node, value: int) -> bool:
    """Checks if ``node`` alone reads a value, and arithmetic with small full operands made it."""
    queue = [value]
    while queue:
        producer = canvas.maker(queue.pop())
        if producer < 0 or len(canvas.readers(canvas.graph.nodes[producer].outputs)) != 1:
            return False
        made = canvas.graph.nodes[producer]
        arithmetic = canvas.kind(producer) is Kind.INFER
        if not arithmetic or canvas.rules[producer] is not Rule.DOWNSTREAM:
            return False
        if made.body != node.body:
            return False
        if reads_full(canvas, made):
            continue
        if Trait.ADDS not in canvas.entry(producer).traits:
            return False
        queue += made.inputs
    return True


def _picked(canvas: Canvas) -> set[int]:
    """Returns nodes that pick few elements of a large value (row maxima) or move these.

    Reading that value in full costs no more for them. A later subtraction of the picked elements
    then need not see the same rounding of the value.
    """
    graph = canvas.graph
    found: set[int] = set()
    for node in graph.nodes:
        entry = canvas.entry(node.index)
        if canvas.rules[node.index] is not Rule.DOWNSTREAM or _COMMUTES not in entry.traits:
            continue
        read = [graph.values[v] for v in node.inputs if graph.values[v].constant is None]
        size = max(graph.values[v].size for v in node.outputs)
        few = Trait.SELECTS in entry.traits and all(size * SMALL <= value.size for value in read)
        if few or (read and all(value.producer in found for value in read)):
            found.add(node.index)
    return found


def _costs_nothing(canvas: Canvas, node: Node) -> bool:
    """Returns True if each reader of ``node`` can recompute it at no cost, instead of reading it.

    A sum of two large values costs bytes (a residual stream that several norms read). A
    difference of one large value and small ones (logits less their maximum) only reads the large
    value.
    """
    entry, values = canvas.entry(node.index), canvas.graph.values
    slots = canvas.dominant(node, parts=False)
    large = [slot for slot in slots if values[node.inputs[slot]].constant is None]
    return entry.pointwise is Pointwise.CHEAP and (
        Trait.ADDS not in entry.traits or len(large) == 1
    )


def reads_full(canvas: Canvas, node: Node) -> bool:
    """Returns True if an operand of ``node`` other than a constant is stored full."""
    values = canvas.graph.values
    for value, half in zip(node.inputs, node.half_inputs, strict=True):
        if half and canvas.stored(value) is _FULL and values[value].constant is None:
            return True
    return False


def _fuses_full(canvas: Canvas, node: Node, reader: int) -> bool:
    """Checks if ``reader`` computes full in the same body as ``node``, so that they can fuse."""
    read_by = canvas.graph.nodes[reader]
    same_body = read_by.body == node.body
    known = Trait.STRUCTURAL not in read_by.traits and canvas.open[reader]
    return same_body and known and canvas.compute[reader] is Paint.FULL


def store_operands_half(canvas: Canvas) -> None:
    """Stores operands of allow operations half, since these are in memory in half anyway.

    Other readers that only sum up the elements of such a value read it in half too (the bias
    gradient next to a weight gradient), since roundings average out in a sum. In full the value
    would be in memory a second time, twice as large.
    """
    outputs = {value for value, _ in canvas.graph.outputs}
    for node in canvas.graph.nodes:
        index = node.index
        if canvas.compute[index] is not _FULL or canvas.store[index] is not None:
            continue
        passive = canvas.open[index] and canvas.kind(index) in PASSIVE
        if not passive or canvas.rules[index] is Rule.STATE:
            continue
        if len(node.outputs) == 1 and all(node.half_outputs) and outputs.isdisjoint(node.outputs):
            readers = set(_direct_readers(canvas, node))
            if _are_for_dots(canvas, node, readers, with_sums=True):
                canvas.rules[index] = Rule.OPERAND
                canvas.store[index] = Paint.HALF


def _are_for_dots(canvas: Canvas, node: Node, readers: set[int], *, with_sums: bool) -> bool:
    """Checks if ``readers`` are half allow operations and sums, with at least one of the former."""
    dots = sums = False
    for reader in readers:
        if canvas.graph.nodes[reader].body != node.body:
            return False
        if _AVERAGES in canvas.entry(reader).traits:
            sums = True
        elif canvas.kind(reader) is _ALLOW and canvas.compute[reader] is Paint.HALF:
            dots = True
        else:
            return False
    return dots and (sums or not with_sums)


def follow_full(canvas: Canvas) -> None:
    """Paints transparent nodes full that read a full value for readers that compute full.

    A node that compares a full value with a half one stays half. The half value may be a rounded
    element of the full one, and the two are equal only as long as both are half.
    """
    outputs = {value for value, _ in canvas.graph.outputs}
    for node in canvas.graph.nodes:
        if not canvas.is_transparent(node.index) or _compares_with_half(canvas, node):
            continue
        if not reads_full(canvas, node):
            continue
        moved, readers = canvas.moved_and_readers(node.outputs)
        if outputs.isdisjoint(moved) and all(_fuses_full(canvas, node, r) for r in readers):
            canvas.paint(node.index, Paint.FULL, Rule.FULL_READERS)


def _compares_with_half(canvas: Canvas, node: Node) -> bool:
    entry, values = canvas.entry(node.index), canvas.graph.values
    compares = Trait.EQUALITY in entry.traits or (
        Trait.BOUNDS in entry.traits and Trait.COMMUTES not in entry.traits
    )
    return compares and any(
        canvas.stored(v) is Paint.HALF and values[v].constant is None for v in node.inputs
    )
