"""Iterations: loops that multiply a state with matrices, again and again, are full.

``x = A @ x / norm(A @ x)``, conjugate gradients with a fixed number of steps, Jacobi's method,
Newton-Schulz, powers of a matrix, a linear recurrence. What a dot rounds comes back at every turn,
and these methods live on differences that become small. Networks in loops do not look like that:
there is an activation between a state and what it becomes, in a backward pass a product with what
an activation left behind for each iteration, and a scan over layers reads weights of each.

::

    iteration = a loop in which a dot reads what follows from a carry and leads to that carry again,
                no activation reads what follows from the carry, and
                nothing on the way round is multiplied with an array of each iteration

What follows by a choice counts as well: the centres of k-means lead to the nearest one of each
point, and that to the centres. A bound is no activation where it ends a step of the carry, ``x =
max(x - rate * (A @ x - b), 0)``: the projection of a projected gradient; nor one that only divides,
``x / max(norm, epsilon)``.

Denied are the dots of an iteration that read what follows from the carry, and all arithmetic on the
way round. Most iterations solve something, so what leads to them and what reads their results is
treated as of a solve (:mod:`duotone.graph.classify.solves`, which follows).

Who calls this: :mod:`duotone.graph.classify.amendments`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from duotone.graph.classify.background import Background
from duotone.graph.classify.carries import is_over_layers
from duotone.graph.classify.classes import Classes
from duotone.graph.classify.rules import Rule
from duotone.graph.classify.terms import is_one, is_scaled
from duotone.graph.graph import BodyKind, Graph, Node
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait

_REASON = "an iteration: what is rounded here comes back at every turn of the loop"
_RATIONAL = frozenset(
    "square sqrt rsqrt integer_pow exact_power reduce_sum sum_of_products sum_of_two abs sign "
    "reduce_max reduce_min is_finite".split()
)
"""Operations that are neither a dot, nor arithmetic, nor a move, and no activation either."""
_PRODUCTS = frozenset({"mul", "div"})
_OTHER = frozenset("select_n sort eq ne lt gt le ge".split())


def keep_iterations(classes: Classes, background: Background) -> Classes:
    """Denies dots and arithmetic of loops that multiply a state with matrices again and again.

    Args:
        classes: what each node is.
        background: the program.

    Returns:
        New classes; the same where there is no such loop.
    """
    graph = background.graph
    found: set[int] = set()
    for body in graph.bodies:
        if body.kind is not BodyKind.LOOP:
            continue
        inside = graph.bodies_in(body.index)
        nodes = [node for node in graph.nodes if node.body in inside]
        dots = any(classes.nodes[node.index].kind is Kind.ALLOW for node in nodes)
        if dots and not is_over_layers(graph, classes, body):
            found |= _Loop(graph, classes, body.index, nodes).denied()
    return classes.with_denied(dict.fromkeys(found, _REASON), Rule.ITERATION)


class _Loop:
    """One loop, nested programs included."""

    def __init__(self, graph: Graph, classes: Classes, body: int, nodes: list[Node]) -> None:
        self._graph, self._classes, self._body = graph, classes, body
        self._nodes = {node.index: node for node in nodes}
        slices = {n.index for n in nodes if n.op == "loop.slice" and n.body == body}
        self._of_each = self._reach(slices, self._readers, choices=True) | slices

    def denied(self) -> set[int]:
        """Nodes of this loop that are to be full."""
        found = set[int]()
        for node in self._nodes.values():
            if node.op != "loop.carry" or node.body != self._body or node.index in found:
                continue
            if not self._graph.values[node.outputs[0]].paintable:
                continue
            behind = self._reach([node.index], self._readers, choices=True)
            way = behind & self._reach([node.index], self._makers, choices=True)
            dots = {index for index in behind if self._kind(index) is Kind.ALLOW}
            if not way & dots or self._is_gated(way):
                continue
            if all(map(self._is_rational, behind - self._projections(node))):
                arithmetic = {index for index in way if self._kind(index) is Kind.INFER}
                found |= dots | arithmetic | {node.index}
        return found

    def _kind(self, index: int) -> Kind:
        return self._classes.nodes[index].listed

    def _is_rational(self, index: int) -> bool:
        """True if a node is a dot, arithmetic, a move or a norm: no activation of an array."""
        node, entry = self._nodes[index], self._classes.nodes[index].entry
        made = [self._graph.values[v] for v in node.outputs]
        if all(value.is_one or not value.paintable for value in made):
            return True
        arithmetic = Trait.ADDS in entry.traits or node.op in _PRODUCTS or node.op in _RATIONAL
        bound = Trait.BOUNDS in entry.traits and len(set(node.inputs)) > 1
        moves = Trait.COMMUTES in entry.traits and (not bound or self._is_guard(node))
        structural = node.op.startswith(("loop.", "branch.", "call.", "shard."))
        known = (
            arithmetic or moves or node.op in _OTHER or structural or node.listed_as in _RATIONAL
        )
        return known or self._kind(index) is Kind.ALLOW

    def _is_guard(self, bound: Node) -> bool:
        """True if what a bound gives only divides: ``x / max(norm, epsilon)``."""
        queue = [(bound.outputs[0], reader) for reader in self._readers(bound)]
        for value, reader in queue:
            node = self._nodes.get(reader)
            if node is None:
                return False
            if node.op == "div" and node.inputs[1] == value != node.inputs[0]:
                continue
            if len(node.inputs) != 1 or not (
                node.op in ("sqrt", "rsqrt")
                or Trait.COMMUTES in self._classes.nodes[reader].entry.traits
            ):
                return False
            queue += [(node.outputs[0], following) for following in self._readers(node)]
        return bool(queue)

    def _is_gated(self, way: Iterable[int]) -> bool:
        """True if an array that each iteration has multiplies something on the way, or picks it."""
        gates = self._of_each - set(way)
        for index in way:
            node = self._nodes[index]
            chosen = node.inputs[:1] if node.op == "select_n" else ()
            for value in node.inputs if node.op in _PRODUCTS else chosen:
                held = self._graph.values[value]
                if not held.is_one and held.producer in gates:
                    return True
        return False

    def _projections(self, carry: Node) -> set[int]:
        """Bounds of what a carry becomes by a step: the carry and what one number scales."""
        found, queue = set[int](), [(value, False) for value in carry.outputs]
        seen = set(queue)
        while queue:
            value, stepped = queue.pop()
            for reader, slot in self._graph.consumers[value]:
                node = self._nodes.get(reader)
                step = None if node is None else self._step(node, slot)
                if node is None or step is None:
                    continue
                if stepped and Trait.BOUNDS in self._classes.nodes[reader].entry.traits:
                    found.add(reader)
                new = {(made, stepped or step) for made in node.outputs} - seen
                seen |= new
                queue += new
        return found

    def _step(self, node: Node, slot: int) -> bool | None:
        """True if a node adds to an operand what a number scales; ``None`` where it ends a step."""
        entry = self._classes.nodes[node.index].entry
        others = [value for at, value in enumerate(node.inputs) if at != slot]
        if Trait.ADDS in entry.traits:
            return any(is_scaled(self._graph, self._classes, value) for value in others)
        if node.op in _PRODUCTS:
            one = (node.op == "mul" or slot == 0) and len(others) == 1
            return False if one and is_one(self._graph, self._classes, others[0]) else None
        return (
            False
            if Trait.COMMUTES in entry.traits or node.op in ("abs", "neg", "loop.carry")
            else None
        )

    def _readers(self, node: Node) -> Iterable[int]:
        return (reader for v in node.outputs for reader, _ in self._graph.consumers[v])

    def _makers(self, node: Node) -> Iterable[int]:
        return (self._graph.values[v].producer for v in node.inputs)

    def _reach(
        self,
        starts: Iterable[int],
        next_to: Callable[[Node], Iterable[int]],
        *,
        choices: bool = False,
    ) -> set[int]:
        """Nodes of this loop reached from some by way of floating point numbers.

        With ``choices`` also by way of what was chosen by them: whole numbers and truth values.
        """
        found, queue = set[int](), deque(starts)
        while queue:
            for index in next_to(self._nodes[queue.popleft()]):
                if index in found or index not in self._nodes:
                    continue
                node = self._nodes[index]
                if choices or any(self._graph.values[v].paintable for v in node.outputs):
                    found.add(index)
                    queue.append(index)
        return found
