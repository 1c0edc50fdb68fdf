"""Compute full, store half: the rules of arithmetic between full and half values.

The readers that count are those behind what only moves, selects, clips or compares
(:meth:`~duotone.precision.painters.painting.Canvas.readers`). Such an operation has no precision of
its own: it is half like what it reads, and full at the end, where it reads a full value for full
readers.

No norm is recognised as such. Of an RMS norm written by hand, squares and their mean are full by
the lists and by taint before this; what is multiplied with the root is decided here.
"""

from __future__ import annotations

from collections.abc import Collection

from duotone.graph.graph import SMALL, Node, Paint
from duotone.ops.entries import PASSIVE, Kind, Pointwise
from duotone.ops.traits import Trait
from duotone.precision.painters.painting import Canvas
from duotone.precision.rules import Rule


def compute_full_store_half(canvas: Canvas) -> None:
    """Computes arithmetic full and stores it half, as people write a layer norm by hand.

    A statistic, a scale or a bias is small and float32; cast to half it would be rounded for
    nothing, since it is the large values that cost bytes. It also keeps its gradient (a sum over
    what it was broadcast to) in float32. Walks backward: readers first.
    """
    graph = canvas.graph
    outputs = {value for value, _ in graph.outputs}
    picked = _picked(canvas)
    for node in reversed(graph.nodes):
        index = node.index
        arithmetic = canvas.kind(index) is Kind.INFER
        unstored = arithmetic or index in picked
        if canvas.rules[index] is not Rule.DOWNSTREAM or not unstored:
            continue
        readers = canvas.readers(node.outputs) if arithmetic else _direct_readers(canvas, node)
        returned = not outputs.isdisjoint(canvas.moved(node.outputs))
        all_full = not returned and all(_reads_at_once(canvas, node, r) for r in readers)
        mixed = arithmetic and (reads_full(canvas, node) or _adds_mixed(canvas, node, readers))
        alone = len(readers) == 1 or index in picked
        # With several readers where each of them may as well calculate it for itself.
        if all_full and (mixed or alone or _costs_nothing(canvas, node)):
            canvas.paint(index, Paint.FULL, Rule.FULL_READERS)
        elif mixed:
            canvas.paint(index, Paint.FULL, Rule.MIXED)
            canvas.store[index] = Paint.HALF


def _direct_readers(canvas: Canvas, node: Node) -> list[int]:
    """The nodes that read a result of ``node`` as it is, nothing looked through."""
    return [reader for value in node.outputs for reader, _ in canvas.consumers[value]]


def _adds_mixed(canvas: Canvas, node: Node, readers: Collection[int]) -> bool:
    """True if a node adds up what arithmetic with small full operands gives it alone, for dots.

    Two parts of the gradient behind a batch norm, three behind a cosine: rounded before they are
    added, what is left of them may be lost. Not within a longer sum (the residual stream behind a
    layer norm), which compilers then write in full.
    """
    if Trait.ADDS not in canvas.entry(node.index).traits:
        return False
    for_dots = _are_for_dots(canvas, node, set(readers), with_sums=False)
    return for_dots and all(_is_mixed(canvas, node, value) for value in node.inputs)


def _is_mixed(canvas: Canvas, node: Node, value: int) -> bool:
    """True if arithmetic with small full operands, or a sum of it, makes it for ``node`` alone."""
    queue = [value]
    while queue:
        asked = queue.pop()
        producer = canvas.maker(asked)
        if producer < 0 or len(canvas.readers(canvas.graph.nodes[producer].outputs)) != 1:
            return False
        made, entry = canvas.graph.nodes[producer], canvas.entry(producer)
        arithmetic = (
            canvas.kind(producer) is Kind.INFER and canvas.rules[producer] is Rule.DOWNSTREAM
        )
        full = reads_full(canvas, made)
        if not (arithmetic and made.body == node.body and (full or Trait.ADDS in entry.traits)):
            return False
        queue += () if full else made.inputs
    return True


def _picked(canvas: Canvas) -> set[int]:
    """Nodes that pick few elements of a large value (the maximum of rows), or only move these.

    To read the value in full costs no more there, and what is subtracted from it then need not see
    the same rounding of it.
    """
    graph = canvas.graph
    found: set[int] = set()
    for node in graph.nodes:
        entry = canvas.entry(node.index)
        if canvas.rules[node.index] is not Rule.DOWNSTREAM or Trait.COMMUTES not in entry.traits:
            continue
        read = [graph.values[v] for v in node.inputs if graph.values[v].constant is None]
        size = max(graph.values[v].size for v in node.outputs)
        few = Trait.SELECTS in entry.traits and all(size * SMALL <= value.size for value in read)
        if few or (read and all(value.producer in found for value in read)):
            found.add(node.index)
    return found


def _costs_nothing(canvas: Canvas, node: Node) -> bool:
    """True if each reader of ``node`` calculates it at no cost, instead of reading it.

    A sum of two large values is worth its bytes (a residual stream that several norms read); what
    differs from one large value by small ones (logits less their maximum) is read as that value.
    """
    entry, values = canvas.entry(node.index), canvas.graph.values
    slots = canvas.dominant(node, parts=False)
    large = [slot for slot in slots if values[node.inputs[slot]].constant is None]
    return entry.pointwise is Pointwise.CHEAP and (
        Trait.ADDS not in entry.traits or len(large) == 1
    )


def reads_full(canvas: Canvas, node: Node) -> bool:
    """True if an operand of ``node`` that is no constant is stored full."""
    return any(
        canvas.stored(v) is Paint.FULL and canvas.graph.values[v].constant is None
        for v, ok in zip(node.inputs, node.half_inputs, strict=True)
        if ok
    )


def _reads_at_once(canvas: Canvas, node: Node, reader: int) -> bool:
    """True if ``reader`` computes full right where ``node`` does, so that they are one kernel."""
    read_by = canvas.graph.nodes[reader]
    same_body = read_by.body == node.body
    known = Trait.STRUCTURAL not in read_by.traits and canvas.open[reader]
    return same_body and known and canvas.compute[reader] is Paint.FULL


def store_operands_half(canvas: Canvas) -> None:
    """Stores operands of allow operations half: these are in memory in half anyway.

    So what else reads such a value reads it in half too, if it only adds up its elements (the bias
    gradient beside a weight gradient): in a sum, roundings even out. In full it would be in memory
    a second time, twice as large.
    """
    outputs = {value for value, _ in canvas.graph.outputs}
    for node in canvas.graph.nodes:
        full = canvas.compute[node.index] is Paint.FULL and canvas.store[node.index] is None
        passive = canvas.open[node.index] and canvas.kind(node.index) in PASSIVE
        if not (full and passive) or canvas.rules[node.index] is Rule.STATE:
            continue
        if len(node.outputs) == 1 and all(node.half_outputs) and outputs.isdisjoint(node.outputs):
            readers = set(_direct_readers(canvas, node))
            if _are_for_dots(canvas, node, readers, with_sums=True):
                canvas.rules[node.index] = Rule.OPERAND
                canvas.store[node.index] = Paint.HALF


def _are_for_dots(canvas: Canvas, node: Node, readers: set[int], *, with_sums: bool) -> bool:
    """True if there are allow operations in half among ``readers``, and else only sums."""
    sums = {reader for reader in readers if Trait.AVERAGES in canvas.entry(reader).traits}
    dots = readers - sums
    half = all(canvas.kind(r) is Kind.ALLOW and canvas.compute[r] is Paint.HALF for r in dots)
    here = all(canvas.graph.nodes[r].body == node.body for r in readers)
    return bool(dots) and half and here and (bool(sums) or not with_sums)


def follow_full(canvas: Canvas) -> None:
    """Paints full what moves, selects or clips a full value for readers that compute full.

    Not what compares it with a half one, which may have been picked from it, rounded: the two are
    equal only as long as both are half.
    """
    outputs = {value for value, _ in canvas.graph.outputs}
    for node in canvas.graph.nodes:
        if not canvas.follows(node.index) or _compares_with_half(canvas, node):
            continue
        full = reads_full(canvas, node) and outputs.isdisjoint(canvas.moved(node.outputs))
        if full and all(_reads_at_once(canvas, node, r) for r in canvas.readers(node.outputs)):
            canvas.paint(node.index, Paint.FULL, Rule.FULL_READERS)


def _compares_with_half(canvas: Canvas, node: Node) -> bool:
    entry, values = canvas.entry(node.index), canvas.graph.values
    compares = Trait.EQUALITY in entry.traits or (
        Trait.BOUNDS in entry.traits and Trait.COMMUTES not in entry.traits
    )
    return compares and any(
        canvas.stored(v) is Paint.HALF and values[v].constant is None for v in node.inputs
    )
