"""Traffic: which values reach memory, and who reads them there, by a stated model of fusion.

A compiler joins operations into kernels; only what goes from kernel to kernel moves bytes. Which
kernels it will make cannot be known before it has made them, so this is a model, and
``benchmarks/cut_cost.py`` compares it with compiled programs.

::

    anchor          an allow, structural or unlisted operation (levels.py): a kernel of its own,
                    which takes operands in its own precision
    other           joins the kernels of its operands; if it is not pointwise (a reduction, a
                    gather) its results are written all the same
    v is in memory  if it is an argument or a result of the program,
                    if an anchor makes or reads it,
                    if an operation that is not pointwise makes it, or reads it and is not alone,
                    if an operation of another body reads it,
                    if something on a higher level reads it, and it does not follow pointwise from
                    one value only; if it does, that value is read instead and v calculated again
    written         once for each run of the body where it is; carries, stacks and joins are the
                    buffers into which the values they take are written, so nothing on top
    read            once by each anchor, and once by all other operations of one level of one body
    cast            free where operations are joined; for an anchor a second copy is written, which
                    the kernel that makes the value does at once, unless that is an anchor itself:
                    then the value is read for it once more

Who calls this: the painter by minimum cut, and whoever wants to know what a painting costs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from duotone.graph.classes import Classes
from duotone.graph.graph import SMALL, STRUCTURAL, Boundary, Graph, Node, Paint
from duotone.graph.levels import Levels, find_levels
from duotone.graph.lists import Kind, Pointwise
from duotone.graph.painting import Painting

OUTSIDE = -1
"""In place of a node: the caller of the program, who takes a result in full."""
WIDTH = {Paint.FULL: 4, Paint.HALF: 2}
"""Bytes of one element."""
_NOWHERE = -1
"""In place of a value: what is calculated from nothing in memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """Operations that read a value in one kernel.

    Attributes:
        nodes: their indices.
        slots: the slot in which each reads it.
        elements: how many elements they read in a run of the program.
    """

    nodes: tuple[int, ...]
    slots: tuple[int, ...]
    elements: int


@dataclasses.dataclass(frozen=True, slots=True)
class Traffic:
    """A float32 value that reaches memory.

    Attributes:
        value: its index.
        elements: how many elements of it are made in a run of the program.
        written: how many of them are written for it; 0 for arguments, and for buffers counted.
        fused: whether the kernel that makes it can write it in either precision, or both.
        kernels: joined operations that read it, and take it as it is.
        anchors: what takes it in its own precision.
    """

    value: int
    elements: int
    written: int
    fused: bool
    kernels: tuple[Reader, ...]
    anchors: tuple[Reader, ...]


def find_traffic(graph: Graph, classes: Classes) -> tuple[Traffic, ...]:
    """The values that reach memory.

    Args:
        graph: the program.
        classes: what each node is.

    Returns:
        One entry for each of them, in the order of values. Constants are left out.
    """
    return _Finder(graph, classes, find_levels(graph, classes)).find()


def lifted_nodes(graph: Graph, classes: Classes) -> frozenset[int]:
    """Nodes that compute full whatever they store: denied, but for the range of their results."""
    return frozenset(
        node.index
        for node in graph.nodes
        if classes.nodes[node.index].stores_half
        and classes.nodes[node.index].kind is Kind.DENY
        and classes.nodes[node.index].pin is None
        and node.paintable
    )


def bytes_of_traffic(
    traffic: Sequence[Traffic], graph: Graph, painting: Painting, lifted: frozenset[int]
) -> int:
    """Bytes that a painting moves, by the model; other dtypes than float32 are not counted.

    Args:
        traffic: of the program.
        graph: the program.
        painting: its colours.
        lifted: from :func:`lifted_nodes`. A compiler drops their rounding for whoever widens it
            again, so their values are written in the precisions that are read.
    """
    total = 0
    for entry in traffic:
        held = graph.values[entry.value]
        stored = graph.stored(painting.store, held)
        width = WIDTH[stored]
        anchors = {_taken(graph, painting, reader) for reader in entry.anchors}
        for reader in entry.anchors:
            total += reader.elements * WIDTH[_taken(graph, painting, reader)]
        if held.producer in lifted:
            kernels = {
                (reader, _precision(graph, painting, node, slot))
                for reader in entry.kernels
                for node, slot in zip(reader.nodes, reader.slots, strict=True)
            }
            total += sum(reader.elements * WIDTH[paint] for reader, paint in kernels)
            versions = anchors | {paint for _, paint in kernels}
            total += entry.written * sum(WIDTH[paint] for paint in versions)
            continue
        total += width * (entry.written + sum(reader.elements for reader in entry.kernels))
        for other in anchors - {stored}:
            total += entry.elements * (WIDTH[other] + (0 if entry.fused else width))
    return total


def _taken(graph: Graph, painting: Painting, reader: Reader) -> Paint:
    return _precision(graph, painting, reader.nodes[0], reader.slots[0])


def _precision(graph: Graph, painting: Painting, node: int, slot: int) -> Paint:
    """In which precision a node takes an operand."""
    if node == OUTSIDE or (slot != OUTSIDE and not graph.nodes[node].half_inputs[slot]):
        return Paint.FULL
    return painting.compute[node]


class _Finder:
    """One pass over the values, in program order, and one over what was found."""

    def __init__(self, graph: Graph, classes: Classes, levels: Levels) -> None:
        self.graph = graph
        self.classes = classes
        self.levels = levels
        self.consumers = graph.consumers
        self.full = {v for v, boundary in graph.outputs if boundary is Boundary.FULL}
        self.kept = {v for v, boundary in graph.outputs if boundary is not Boundary.FULL}
        self.roots: list[int] = list(range(len(graph.values)))
        # By value: who reads it in memory, by (body, level), and in which slot.
        self.far: dict[int, dict[tuple[int, int], dict[int, int]]] = {}

    def find(self) -> tuple[Traffic, ...]:
        graph = self.graph
        certain = [self._is_certain(value) for value in range(len(graph.values))]
        for node in graph.nodes:
            for value in node.outputs:
                if not certain[value] and self._pointwise(node.index):
                    self.roots[value] = self._root(node, value)
        for value, sure in enumerate(certain):
            self._add_readers(value, sure)
        found: list[Traffic] = []
        for value in graph.values:
            if not value.paintable or (value.producer < 0 and value.constant is not None):
                continue
            if certain[value.index] or value.index in self.far:
                found.append(self._entry(value.index))
        return tuple(found)

    def _is_certain(self, value: int) -> bool:
        """Whether a value is in memory wherever its readers are."""
        held = self.graph.values[value]
        if held.producer < 0 or value in self.full or value in self.kept:
            return True
        if not self._pointwise(held.producer):
            return True
        readers = {reader for reader, _ in self.consumers[value]}
        return any(
            self._is_anchor(reader)
            or self.graph.nodes[reader].body != held.body
            or (len(readers) > 1 and not self._pointwise(reader) and self._is_float(reader))
            for reader in readers
        )

    def _is_float(self, node: int) -> bool:
        return any(self.graph.values[v].paintable for v in self.graph.nodes[node].outputs)

    def _pointwise(self, node: int) -> bool:
        return self.classes.nodes[node].entry.pointwise is not Pointwise.NO

    def _is_anchor(self, node: int) -> bool:
        """Whether it takes operands in its own precision; a slice of a stack does, too."""
        return self.levels.anchors[node]

    def _root(self, node: Node, value: int) -> int:
        """The one value from which ``value`` follows, itself if there are several."""
        size = self.graph.values[value].size
        found: set[int] = set()
        for operand in node.inputs:
            held = self.graph.values[operand]
            if held.constant is None and held.size * SMALL > size:
                found.add(self.roots[operand] if held.body == node.body else operand)
        found.discard(_NOWHERE)
        if not found:
            return _NOWHERE  # a constant or something small, broadcast
        return found.pop() if len(found) == 1 else value

    def _add_readers(self, value: int, certain: bool) -> None:
        """Adds those who read a value in memory to it, or to what it is calculated from."""
        held = self.graph.values[value]
        made_apart = held.producer < 0 or not self._pointwise(held.producer)
        for reader, slot in self.consumers[value]:
            if self._is_anchor(reader):
                continue
            place = self.graph.nodes[reader].body, self.levels.nodes[reader]
            apart = made_apart or self.levels.is_far(value, reader) or place[0] != held.body
            if apart:
                where = value if certain else self.roots[value]
                if where == _NOWHERE:
                    continue
                # A reader of what is calculated again takes no slot of the root.
                own = slot if where == value else OUTSIDE
                self.far.setdefault(where, {}).setdefault(place, {}).setdefault(reader, own)

    def _entry(self, value: int) -> Traffic:
        graph, held = self.graph, self.graph.values[value]
        elements = held.size * graph.bodies[held.body].trips
        maker = graph.nodes[held.producer] if held.producer >= 0 else None
        buffer = maker is not None and maker.op in STRUCTURAL and maker.op != "loop.slice"
        kernels = []
        for (body, _), readers in self.far.get(value, {}).items():
            most = max(self._elements(reader, value) for reader in readers)
            read = Reader(tuple(readers), tuple(readers.values()), most * graph.bodies[body].trips)
            kernels.append(read)
        if value in self.kept:
            kernels.append(Reader((), (), elements))
        anchors: list[Reader] = []
        for reader, slot in self.consumers[value]:
            if self._is_anchor(reader):
                taken = self._elements(reader, value) * graph.trips(graph.nodes[reader])
                anchors.append(Reader((reader,), (slot,), taken))
        if value in self.full:
            anchors.append(Reader((OUTSIDE,), (0,), 0))
        return Traffic(
            value,
            elements,
            0 if maker is None or buffer else elements,
            maker is not None and (maker.op == "loop.slice" or not self._is_anchor(maker.index)),
            tuple(kernels),
            tuple(anchors),
        )

    def _elements(self, reader: int, value: int) -> int:
        """How many elements of a value one run of a reader takes."""
        node, size = self.graph.nodes[reader], self.graph.values[value].size
        if node.op in STRUCTURAL and node.op != "loop.slice":
            return 0
        entry = self.classes.nodes[reader].entry
        made = max((self.graph.values[v].size for v in node.outputs), default=size)
        moves = entry.commutes and entry.pointwise is Pointwise.NO and not entry.selects
        return min(size, made) if moves else size
