"""A painting: the answer of a painter, and the rules it may name.

Who calls this: painters make paintings, the cast planner and the record read them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Sequence

from duotone.errors import RewriteError
from duotone.graph.classes import Classes
from duotone.graph.graph import STRUCTURAL, Boundary, Graph, Node, Paint
from duotone.graph.lists import Kind

RULES = {
    "allow": "on the allow list: takes half operands and accumulates in float32",
    "wide": "on the allow list; all that read the result read it full, so it is never rounded",
    "unrounded": "on the allow list; its float32 sums cancel where rounded ones would not",
    "deny": "on the deny list: computes in float32",
    "constant": "calculates with a constant that half cannot represent",
    "solve": "leads to a factorisation or a solve, or reads its result, with no dot in between",
    "overflow": "what it makes or reads does not fit half",
    "underflow": "most of its measured values are below the normal numbers of half",
    "range": "computes in float32 and stores half: its range fits and loses nothing that matters",
    "small": "an allow operation too small to gain from half on this device",
    "device": "gains nothing from half on this device",
    "taint": "a denied value reaches it along a dominant operand",
    "downstream": "its dominant operand is half and nothing denied reaches it",
    "mixed": "stores half like its dominant operand, computes full like another operand",
    "operand": "computes full, stores half: dots read it half, and all else only adds it up",
    "inner": "all that read it compute full: it is not worth storing, so half would only round",
    "cut": "left open by the rules; this colour moves the fewest bytes (minimum cut)",
    "upstream": "all that read its result read it half, and the cast costs no more before it",
    "static": "only moves weights, which are cast once for all before any call",
    "state": "reaches an output of the function with no allow operation after it",
    "outside": "no dominant operand is half",
    "unlisted": "on no list: left as it is",
    "fixed": "cannot be half",
    "integer": "no float32 operand or result",
    "pinned": "the user decided",
    "off": "mixed precision is switched off",
    "tensorflow": "TensorFlow's passes",
    "rewritten": "made of a rewritten program by a transformation; read from its types",
}
"""Rule names, as they stand in records and logs, and what they say."""


@dataclasses.dataclass(frozen=True, slots=True)
class Painting:
    """Colours.

    Attributes:
        compute: for each node, the precision of its operands.
        store: for each node, the precision of its results. Differs from ``compute`` for an allow
            node that accumulates in float32 and hands that on (rule ``wide``), and for a node that
            computes full and stores half (rule ``mixed``).
        rules: for each node, the name of the rule that decided (a key of :data:`RULES`).
        details: more words for some nodes, by index.
    """

    compute: tuple[Paint, ...]
    store: tuple[Paint, ...]
    rules: tuple[str, ...]
    details: dict[int, str]

    @property
    def changed(self) -> bool:
        """Whether anything at all is half."""
        return Paint.HALF in self.compute or Paint.HALF in self.store

    def is_full(self, node: Node) -> bool:
        """Whether a node could be half, and calculates and stores full."""
        full = self.compute[node.index] is self.store[node.index] is Paint.FULL
        return full and all(node.half_outputs) and not node.fixed


class Canvas:
    """What a painter works on: colours being decided, one rule a node.

    Nodes that no painting can change are settled here, so that every painter treats them alike.
    """

    def __init__(self, graph: Graph, classes: Classes) -> None:
        self.graph = graph
        self.classes = classes
        self.consumers = graph.consumers
        self.compute = [Paint.FULL] * len(graph.nodes)
        self.store: list[Paint | None] = [None] * len(graph.nodes)
        self.rules = [""] * len(graph.nodes)
        self.details: dict[int, str] = {}
        self.open = [self._settle(node) for node in graph.nodes]

    def _settle(self, node: Node) -> bool:
        """Colours a node that the rules do not decide; says whether the rules decide it."""
        found = self.classes.nodes[node.index]
        if not any(node.half_inputs) and not any(node.half_outputs):
            self.rules[node.index] = "fixed" if node.fixed else "integer"
        elif node.fixed:
            self.rules[node.index] = "fixed"
        elif found.pin is not None:
            self.paint(node.index, found.pin, "pinned", found.rule)
            return False
        elif found.kind is Kind.UNLISTED:
            self.rules[node.index] = "unlisted"
        else:
            return True
        if node.fixed:
            self.details[node.index] = node.fixed
        return False

    def paint(self, node: int, paint: Paint, rule: str, detail: str = "") -> None:
        """Colours a node."""
        self.compute[node] = paint
        self.rules[node] = rule
        if detail:
            self.details[node] = detail

    def stored(self, value: int) -> Paint:
        """How a value is kept as things stand."""
        held = self.graph.values[value]
        settled = self.graph.settled(held)
        if settled is not None:
            return settled
        store = self.store[held.producer]
        return self.compute[held.producer] if store is None else store

    def kind(self, node: int) -> Kind:
        """The list of a node."""
        return self.classes.nodes[node].kind

    def dominant(self, node: Node, *, parts: bool) -> list[int]:
        """The slots of ``node`` that decide for it.

        A slot dominates if its value has at least as many elements as the largest result. Where
        operands are parts of the result, the largest of them do.
        """
        values = self.graph.values
        slots = [slot for slot, ok in enumerate(node.half_inputs) if ok]
        if not slots:
            return []
        result = max((values[v].size for v in node.outputs), default=0)
        if parts:
            result = min(result, max(values[node.inputs[slot]].size for slot in slots))
        return [slot for slot in slots if values[node.inputs[slot]].size >= result]

    def follows(self, node: int) -> bool:
        """Whether a node only has the precision of what it reads.

        It moves, selects, clips or compares, and no rule but half running forward has painted it.
        """
        found = self.graph.nodes[node]
        passive = self.open[node] and self.kind(node) is Kind.CLEAR
        return passive and self.rules[node] == "downstream" and found.op not in STRUCTURAL

    def readers(self, values: Sequence[int], but: Container[int] = ()) -> list[int]:
        """The nodes that read values, behind what only follows.

        Args:
            values: of one body.
            but: nodes behind which nobody looks.
        """
        found: dict[int, None] = {}
        for value in self.moved(values, but):
            for reader, _ in self.consumers[value]:
                if reader in but or not self._is_looked_through(reader, value):
                    found[reader] = None
        return list(found)

    def moved(self, values: Sequence[int], but: Container[int] = ()) -> list[int]:
        """Some values, and what only follows them."""
        found = dict.fromkeys(values)
        queue = list(values)
        while queue:
            value = queue.pop()
            for reader, _ in self.consumers[value]:
                if reader not in but and self._is_looked_through(reader, value):
                    made = self.graph.nodes[reader].outputs
                    new = [v for v in made if v not in found and self.graph.values[v].paintable]
                    found.update(dict.fromkeys(new))
                    queue += new
        return list(found)

    def _is_looked_through(self, reader: int, value: int) -> bool:
        made = self.graph.values[value]
        body = self.graph.nodes[made.producer].body if made.producer >= 0 else made.body
        return self.follows(reader) and self.graph.nodes[reader].body == body

    def maker(self, value: int) -> int:
        """The node that makes a value, before what only moves it; -1 for arguments."""
        producer = self.graph.values[value].producer
        while producer >= 0 and self.follows(producer):
            read = [v for v in self.graph.nodes[producer].inputs if self.graph.values[v].paintable]
            if len(read) != 1:
                break
            producer = self.graph.values[read[0]].producer
        return producer

    def finish(self) -> Painting:
        """The painting, frozen."""
        store = tuple(
            compute if kept is None else kept
            for compute, kept in zip(self.compute, self.store, strict=True)
        )
        return Painting(tuple(self.compute), store, tuple(self.rules), self.details)


Painter = Callable[[Graph, Classes], Painting]


def check_painting(painting: Painting, graph: Graph) -> Painting:
    """Returns ``painting`` if it can be carried out on ``graph``.

    Raises:
        RewriteError: a node that cannot be half is, a node has no rule, or an output that must be
            half is not.
    """
    for node in graph.nodes:
        if painting.rules[node.index] not in RULES:
            raise RewriteError(f"{node.op} at {node.source} was painted by no rule")
        half = Paint.HALF in (painting.compute[node.index], painting.store[node.index])
        if half and not node.paintable:
            raise RewriteError(
                f"{node.op} at {node.source} was painted half and cannot be: {node.fixed}"
            )
    for value, boundary in graph.outputs:
        if boundary is Boundary.HALF and not graph.values[value].paintable:
            raise RewriteError(
                f"value {value} of dtype {graph.values[value].dtype} cannot leave in half"
            )
    return painting
