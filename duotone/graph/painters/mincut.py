"""Painter by minimum cut: what the rules leave open takes the colour that moves the fewest bytes.

::

    allow, deny, taint, state and pins as in dominant.py      (forced)
    open: what is painted half there for its dominant operand
    which values reach memory                                 (traffic.py, the model of fusion)
    the colours of open operations with the fewest bytes      (cut.py, exact)
        each value in memory, written and read as it is stored
        a second copy for anchors that take it in the other precision, one for all of them
        of a lifted value (it computes full, half would do)
            a copy in each precision in which it is read
    ties are full
    arithmetic with a float32 operand computes full and stores half, if only anchors read it
    casts up, wide and names as in dominant.py

A value that is half because it was *computed* in half stays half. One that was only rounded may
not: a compiler drops the rounding for readers that widen it again. So half here means computed in
half, and a value that must be computed full is stored in half for readers that take half.

All costs are of one value, or of one being half and another full, which a minimum cut can minimise;
a copy is a variable of its own.

References:
    ``docs/architecture.md``, for what was measured with this painter and with the one by rules.
"""

from __future__ import annotations

import dataclasses

from duotone.graph.classes import Classes
from duotone.graph.cut import Labelling
from duotone.graph.graph import STRUCTURAL, Graph, Node, Paint
from duotone.graph.lists import Kind, Pointwise, Taint
from duotone.graph.painters.dominant import (
    keep_state_full,
    keep_wide,
    move_casts_up,
    name_the_rest,
    paint_allow,
    spread_half,
    spread_taint,
)
from duotone.graph.painters.mixed import reads_full
from duotone.graph.painting import Canvas, Painting
from duotone.graph.rules import Rule
from duotone.graph.traffic import OUTSIDE, WIDTH, Reader, Traffic, find_traffic, lifted_nodes

_SAVED = WIDTH[Paint.FULL] - WIDTH[Paint.HALF]


def paint_mincut(graph: Graph, classes: Classes) -> Painting:
    """Paints a graph by duotone's rules, and what they leave open by a minimum cut.

    Args:
        graph: the program.
        classes: what each node is.

    Returns:
        A colour and a rule for every node.
    """
    canvas = Canvas(graph, classes)
    paint_allow(canvas)
    tainted = spread_taint(canvas)
    spread_half(canvas, tainted)
    state = keep_state_full(canvas)
    problem = Problem(canvas, find_open(canvas, tainted, state), find_traffic(graph, classes))
    problem.solve()
    _compute_full_store_half(canvas)
    move_casts_up(canvas)
    keep_wide(canvas, state)
    name_the_rest(canvas, tainted)
    return canvas.finish()


def find_open(canvas: Canvas, tainted: list[Taint], state: set[int]) -> set[int]:
    """Nodes that may have either colour: those that half runs to.

    What is before the first allow operation stays full: an embedding rounded there loses digits
    that everything behind it reads, for the bytes of one value.
    """
    return {
        index
        for index, rule in enumerate(canvas.rules)
        if rule is Rule.DOWNSTREAM and index not in state and not tainted[index]
    }


@dataclasses.dataclass(frozen=True, slots=True)
class _Label:
    """What decides a precision: a variable of the cut, or a colour if there is none."""

    variable: int = -1
    paint: Paint = Paint.FULL


class Problem:
    """The choice that is left, as a minimum cut.

    Attributes:
        canvas: forced colours; takes what is found.
        nodes: the open nodes.
        variables: the variable of each of them.
        traffic: values that reach memory.
    """

    def __init__(self, canvas: Canvas, open_nodes: set[int], traffic: tuple[Traffic, ...]) -> None:
        self.canvas = canvas
        self.traffic = traffic
        self.nodes = sorted(open_nodes)
        self.variables = {node: place for place, node in enumerate(self.nodes)}
        self.labels = Labelling(len(self.variables))
        self.lifted = lifted_nodes(canvas.graph, canvas.classes)

    def solve(self) -> None:
        """Finds the cheapest colours and paints them."""
        for entry in self.traffic:
            if self.canvas.graph.values[entry.value].producer in self.lifted:
                self._add_lifted(entry)
            else:
                self._add_value(entry)
        found = self.labels.solve()
        for node, variable in self.variables.items():
            self.canvas.paint(node, found[variable], Rule.CUT)
        self._store_lifted()

    # ------------------------------------------------------- costs

    def _add_value(self, entry: Traffic) -> None:
        """A value that is stored in the precision in which it is computed."""
        stored = self._stored(entry.value)
        moved = entry.written + sum(reader.elements for reader in entry.kernels)
        self._pay(stored, Paint.FULL, _SAVED * moved)
        precisions = [(self._taken(reader), reader.elements) for reader in entry.anchors]
        for taken, elements in precisions:
            self._pay(taken, Paint.FULL, _SAVED * elements)
        labels = [taken for taken, _ in precisions]
        for other in Paint:
            read = 0 if entry.fused else WIDTH[Paint(1 - other)]
            self._copy(stored, other, labels, entry.elements * (WIDTH[other] + read))

    def _add_lifted(self, entry: Traffic) -> None:
        """A value of which each precision that is read is written."""
        for reader in entry.kernels:
            labels = [
                self._precision(node, slot)
                for node, slot in zip(reader.nodes, reader.slots, strict=True)
            ]
            for paint in Paint:
                self._any(paint, labels, WIDTH[paint] * reader.elements)
        anchors = [self._taken(reader) for reader in entry.anchors]
        for taken, reader in zip(anchors, entry.anchors, strict=True):
            self._pay(taken, Paint.FULL, _SAVED * reader.elements)
        every = [*anchors, *self._kernel_labels(entry)]
        for paint in Paint:
            self._any(paint, every, WIDTH[paint] * entry.written)

    def _kernel_labels(self, entry: Traffic) -> list[_Label]:
        return [
            self._precision(node, slot)
            for reader in entry.kernels
            for node, slot in zip(reader.nodes, reader.slots, strict=True)
        ]

    def _pay(self, label: _Label, paint: Paint, cost: int) -> None:
        """Pays if a label is ``paint``; where nothing is open there is nothing to choose."""
        if label.variable >= 0:
            if paint is Paint.FULL:
                self.labels.prefer(label.variable, full=cost)
            else:
                self.labels.prefer(label.variable, half=cost)

    def _copy(self, stored: _Label, other: Paint, labels: list[_Label], cost: int) -> None:
        """Pays once if a value is not stored in ``other`` and any label is ``other``."""
        if stored.variable < 0:
            if stored.paint is not other:
                self._any(other, labels, cost)
            return
        wanted = self._wanted(other, labels, cost)
        if wanted is None:
            return
        if wanted.variable < 0:
            self._pay(stored, Paint(1 - other), cost)
        elif other is Paint.HALF:
            self.labels.join(full=stored.variable, half=wanted.variable, cost=cost)
        else:
            self.labels.join(full=wanted.variable, half=stored.variable, cost=cost)

    def _any(self, paint: Paint, labels: list[_Label], cost: int) -> None:
        """Pays once if any label is ``paint``."""
        wanted = self._wanted(paint, labels, cost)
        if wanted is not None:
            self._pay(wanted, paint, cost)

    def _wanted(self, paint: Paint, labels: list[_Label], cost: int) -> _Label | None:
        """A label that is ``paint`` if any of ``labels`` is; ``None`` if none can be.

        To leave it at the other colour costs as much as what it stands for, so it never is.
        """
        if any(label.variable < 0 and label.paint is paint for label in labels):
            return _Label(paint=paint)
        open_labels = {label.variable for label in labels if label.variable >= 0}
        if len(open_labels) < 2:
            return _Label(open_labels.pop()) if open_labels else None
        copy = self.labels.add()
        for variable in open_labels:
            if paint is Paint.HALF:
                self.labels.join(full=copy, half=variable, cost=cost)
            else:
                self.labels.join(full=variable, half=copy, cost=cost)
        return _Label(copy)

    # ------------------------------------------------------- precisions

    def _stored(self, value: int) -> _Label:
        """How a value is stored."""
        held = self.canvas.graph.values[value]
        if held.producer in self.variables:
            node = self.canvas.graph.nodes[held.producer]
            if node.half_outputs[node.outputs.index(value)]:
                return _Label(self.variables[held.producer])
        return _Label(paint=self.canvas.stored(value))

    def _taken(self, reader: Reader) -> _Label:
        return self._precision(reader.nodes[0], reader.slots[0])

    def _precision(self, node: int, slot: int) -> _Label:
        """In which precision a node takes an operand."""
        if node == OUTSIDE:
            return _Label()
        if slot != OUTSIDE and not self.canvas.graph.nodes[node].half_inputs[slot]:
            return _Label()
        if node in self.variables:
            return _Label(self.variables[node])
        return _Label(paint=self.canvas.compute[node])

    # ------------------------------------------------------- what follows

    def _store_lifted(self) -> None:
        """A lifted node stores half if all that read it from memory take half."""
        read: dict[int, list[Paint]] = {}
        for entry in self.traffic:
            producer = self.canvas.graph.values[entry.value].producer
            if producer in self.lifted:
                labels = [self._taken(r) for r in entry.anchors] + self._kernel_labels(entry)
                read.setdefault(producer, []).extend(self._found(label) for label in labels)
        for node, paints in read.items():
            if paints and Paint.FULL not in paints:
                self.canvas.store[node] = Paint.HALF
                self.canvas.rules[node] = Rule.RANGE

    def _found(self, label: _Label) -> Paint:
        if label.variable < 0:
            return label.paint
        return self.canvas.compute[self.nodes[label.variable]]


def _compute_full_store_half(canvas: Canvas) -> None:
    """What has a full operand computes full and stores half, if no reader widens it again."""
    for node in reversed(canvas.graph.nodes):
        index = node.index
        if canvas.rules[index] is not Rule.CUT or canvas.compute[index] is Paint.FULL:
            continue
        if node.op in STRUCTURAL or not _gains_from_full(canvas, node):
            continue
        readers = [reader for v in node.outputs for reader, _ in canvas.consumers[v]]
        if all(_takes_half(canvas, reader) for reader in readers):
            canvas.paint(index, Paint.FULL, Rule.MIXED)
            canvas.store[index] = Paint.HALF


def _takes_half(canvas: Canvas, reader: int) -> bool:
    """Whether a reader is an anchor in half: others may calculate in float32 inside.

    That holds for operations that a device has not in half, of whatever colour. The value would be
    calculated again for each of them, from further back.
    """
    anchor = canvas.kind(reader) is Kind.ALLOW or canvas.graph.nodes[reader].op in STRUCTURAL
    return anchor and canvas.compute[reader] is Paint.HALF


def _gains_from_full(canvas: Canvas, node: Node) -> bool:
    """Whether it is arithmetic with a full operand, element by element.

    Of a sum or a scatter the full result would be written first.
    """
    entry = canvas.entry(node.index)
    arithmetic = entry.kind is Kind.INFER and entry.pointwise is not Pointwise.NO
    return arithmetic and reads_full(canvas, node)
