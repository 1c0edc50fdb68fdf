"""A painting: the precision of every node, which a painter returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Container, Sequence

from duotone.errors import RewriteError
from duotone.graph.graph import UPDATE, Boundary, Graph, Node, Paint, Value
from duotone.ops.entries import Entry, Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.rules import Rule


@dataclasses.dataclass(frozen=True, slots=True)
class Painting:
    """The precisions of a program, and the rules that decided.

    Attributes:
        compute: for each node, the precision of its operands.
        store: for each node, the precision of its results. Differs from ``compute`` for an allow
            node that keeps its float32 accumulator (rule ``wide``), and for a node that computes
            full and stores half (rule ``mixed``).
        rules: for each node, the rule that decided.
        details: additional words for some nodes, by index.
    """

    compute: tuple[Paint, ...]
    store: tuple[Paint, ...]
    rules: tuple[Rule, ...]
    details: dict[int, str]

    def reason(self, node: int) -> str:
        """Returns the words of a node's rule, with details of this node."""
        words, detail = self.rules[node].words, self.details.get(node, "")
        return f"{words}: {detail}" if detail else words

    @property
    def changed(self) -> bool:
        """True if anything at all is half."""
        return Paint.HALF in self.compute or Paint.HALF in self.store

    def is_full(self, node: Node) -> bool:
        """Returns True if a node could be half, but computes and stores full."""
        full = self.compute[node.index] is self.store[node.index] is Paint.FULL
        return full and all(node.half_outputs) and not node.fixed


# Python 3.11 takes long to look up a member of an enumeration, and this code is hot.
_CLEAR, _STRUCTURAL = Kind.CLEAR, Trait.STRUCTURAL


class Canvas:
    """The painting while a painter works on it: precisions so far, and one rule per node.

    The constructor decides on nodes that no painting can change, so all painters treat them alike.
    """

    def __init__(self, graph: Graph, classes: Classes) -> None:
        self.graph = graph
        self.classes = classes
        self.consumers = graph.consumers
        self._fixed = graph.fixed_storage
        self._kinds = [found.entry.kind for found in classes.nodes]
        self.compute = [Paint.FULL] * len(graph.nodes)
        self.store: list[Paint | None] = [None] * len(graph.nodes)
        self.rules: list[Rule | None] = [None] * len(graph.nodes)
        self.details: dict[int, str] = {}
        self.state: frozenset[int] = frozenset()
        self.open = [self._is_open(node) for node in graph.nodes]
        self._clear = [
            is_open and kind is _CLEAR and _STRUCTURAL not in node.traits
            for node, is_open, kind in zip(graph.nodes, self.open, self._kinds, strict=True)
        ]

    def _is_open(self, node: Node) -> bool:
        """Returns True if a painter decides on a node; paints the node if not."""
        found = self.classes.nodes[node.index]
        if not any(node.half_inputs) and not any(node.half_outputs):
            self.rules[node.index] = Rule.FIXED if node.fixed else Rule.INTEGER
        elif node.fixed:
            self.rules[node.index] = Rule.FIXED
        elif node.region == UPDATE:
            self.paint(node.index, Paint.FULL, Rule.UPDATE)
            return False
        elif found.pin is not None:
            self.paint(node.index, found.pin, Rule.PINNED, found.pinned_by)
            return False
        elif found.kind is Kind.UNLISTED:
            self.rules[node.index] = Rule.UNLISTED
        else:
            return True
        if node.fixed:
            self.details[node.index] = node.fixed
        return False

    def paint(self, node: int, paint: Paint, rule: Rule, detail: str = "") -> None:
        """Sets the precision and the rule of a node."""
        self.compute[node] = paint
        self.rules[node] = rule
        if detail:
            self.details[node] = detail

    def stored(self, value: int) -> Paint:
        """Returns how a value is stored in the painting so far."""
        fixed = self._fixed[value]
        if fixed is not None:
            return fixed
        producer = self.graph.values[value].producer
        store = self.store[producer]
        return self.compute[producer] if store is None else store

    def kind(self, node: int) -> Kind:
        """Returns the list of a node."""
        return self._kinds[node]

    def entry(self, node: int) -> Entry:
        """Returns the list entry of a node."""
        return self.classes.nodes[node].entry

    def dominant(self, node: Node, *, parts: bool) -> list[int]:
        """Returns the slots whose operands decide on the precision of ``node``.

        A slot dominates if its value has at least as many elements as the largest result. If the
        operands are parts of the result, the largest operands dominate.
        """
        slots = range(len(node.inputs))
        return [slot for slot in slots if self.dominates(node, slot, parts=parts)]

    def dominates(self, node: Node, slot: int, *, parts: bool) -> bool:
        """Checks if a slot is one of the :meth:`dominant` ones."""
        if not node.half_inputs[slot]:
            return False
        values = self.graph.values
        size = values[node.inputs[slot]].size
        if all(values[v].size <= size for v in node.outputs):
            return True
        read = zip(node.inputs, node.half_inputs, strict=True)
        return parts and all(values[v].size <= size for v, ok in read if ok)

    def is_transparent(self, node: int) -> bool:
        """Returns True if a node has no precision of its own, but takes that of its operands.

        It moves, selects, clips or compares, and half reached it from an operand.
        """
        return self._clear[node] and self.rules[node] is Rule.DOWNSTREAM

    def readers(self, values: Sequence[int], but: Container[int] = ()) -> list[int]:
        """Returns the nodes that read values, directly or through transparent nodes.

        Args:
            values: values of one body.
            but: nodes that do not count as transparent.
        """
        return self.moved_and_readers(values, but)[1]

    def moved_and_readers(
        self, values: Sequence[int], but: Container[int] = ()
    ) -> tuple[list[int], list[int]]:
        """Returns values, with those that transparent nodes make of them, and their readers."""
        nodes, known = self.graph.nodes, self.graph.values
        moved, seen, found = list(values), set(values), dict[int, None]()
        for value in moved:
            made = known[value]
            body = nodes[made.producer].body if made.producer >= 0 else made.body
            for reader, _ in self.consumers[value]:
                passes = self.is_transparent(reader) and nodes[reader].body == body
                if passes and reader not in but:
                    new = [v for v in nodes[reader].outputs if known[v].paintable and v not in seen]
                    seen.update(new)
                    moved += new
                else:
                    found[reader] = None
        return moved, list(found)

    def maker(self, value: int) -> int:
        """Returns the node that makes a value, upstream of transparent nodes; -1 for arguments."""
        producer = self.graph.values[value].producer
        while producer >= 0 and self.is_transparent(producer):
            read = [v for v in self.graph.nodes[producer].inputs if self.graph.values[v].paintable]
            if len(read) != 1:
                break
            producer = self.graph.values[read[0]].producer
        return producer

    def finish(self) -> Painting:
        """Returns the painting, as an immutable value.

        Raises:
            RewriteError: no rule decided on a node.
        """
        rules = [rule for rule in self.rules if rule is not None]
        if len(rules) != len(self.rules):
            node = self.graph.nodes[self.rules.index(None)]
            raise RewriteError(f"no rule painted {node.op} at {node.source}")
        store = tuple(
            compute if kept is None else kept
            for compute, kept in zip(self.compute, self.store, strict=True)
        )
        return Painting(tuple(self.compute), store, tuple(rules), self.details)


def may_store_half(node: Node, values: Sequence[Value]) -> bool:
    """Returns True if a node has float32 results, and all of them may be half."""
    results = zip(node.outputs, node.half_outputs, strict=True)
    return any(node.half_outputs) and all(half or not values[v].paintable for v, half in results)


Painter = Callable[[Graph, Classes, Collection[str]], Painting]
"""Takes a graph, its classes and the rules that are switched off, and returns a painting."""


def check_painting(painting: Painting, graph: Graph) -> Painting:
    """Returns ``painting`` if it can be applied to ``graph``.

    Raises:
        RewriteError: a node that cannot be half is, or an output that must be half is not.
    """
    for node in graph.nodes:
        if node.paintable:
            continue
        if Paint.HALF in (painting.compute[node.index], painting.store[node.index]):
            raise RewriteError(
                f"{node.op} at {node.source} was painted half, but it cannot be: {node.fixed}"
            )
    for value, boundary in graph.outputs:
        if boundary is Boundary.HALF and not graph.values[value].paintable:
            raise RewriteError(
                f"value {value} of dtype {graph.values[value].dtype} cannot leave in half"
            )
    return painting
