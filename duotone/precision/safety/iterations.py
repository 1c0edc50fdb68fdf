"""Iterations: loops that repeatedly multiply a state with matrices are full.

Examples are ``x = A @ x / norm(A @ x)``, conjugate gradients with a fixed number of steps, Jacobi's
method, Newton-Schulz, powers of a matrix, and a linear recurrence. The rounding error of a dot
comes back in every iteration, and these methods depend on differences that become small. Networks
in loops look different. They have an activation between a state and its next value. Their backward
pass multiplies by values that an activation stored for each iteration. A scan over layers reads
different weights in each iteration.

::

    iteration = a loop in which a dot reads a value that follows from a carry, and leads to that
                carry again,
                no activation reads a value that follows from the carry (by its trait in the table,
                so an undescribed operation is none), and
                no operation on the way multiplies with an array of each iteration, or with one
                that an activation of another carry made (the tangents of a network in a loop)

A value also follows from a carry if the carry chooses it. The centres of k-means determine the
nearest centre of each point, which determines the next centres. Two kinds of bounds are not
activations: one that ends a step of the carry, as in a projected gradient,
``x = max(x - rate * (A @ x - b), 0)``, and one whose result only divides,
``x / max(norm, epsilon)``.

This rule denies the dots of an iteration that read a value that follows from the carry, and all
arithmetic on the way back to it. Most iterations solve something, so the next rule
(:mod:`duotone.precision.safety.solves`) treats the dots like solves.
"""

from __future__ import annotations

from collections.abc import Iterable

from duotone.graph.graph import BodyKind, Graph, Node
from duotone.graph.reach import reach, readers
from duotone.graph.terms import is_one, is_scaled, is_state, scales
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.context import Background
from duotone.precision.rules import Rule
from duotone.precision.safety.carries import is_over_layers

_REASON = "an iteration: its rounding error comes back in every iteration of the loop"


def keep_iterations(classes: Classes, background: Background) -> Classes:
    """Denies dots and arithmetic of loops that repeatedly multiply a state with matrices.

    Args:
        classes: the class of each node.
        background: the program.

    Returns:
        New classes; the same object if there is no such loop.
    """
    graph = background.graph
    found: set[int] = set()
    for body in graph.bodies:
        if body.kind is not BodyKind.LOOP:
            continue
        nodes = graph.nodes_in(body.index)
        dots = any(classes.nodes[node.index].kind is Kind.ALLOW for node in nodes)
        if dots and not is_over_layers(graph, classes, body):
            found |= _Loop(graph, classes, body.index, nodes).denied()
    return classes.with_denied(dict.fromkeys(found, _REASON), Rule.ITERATION)


class _Loop:
    """One loop, including nested programs."""

    def __init__(self, graph: Graph, classes: Classes, body: int, nodes: list[Node]) -> None:
        self._graph, self._classes, self._body = graph, classes, body
        self._nodes = {node.index: node for node in nodes}
        self._after = {node.index: [*readers(graph, node)] for node in nodes}
        self._before = {n.index: [graph.values[v].producer for v in n.inputs] for n in nodes}
        slices = {n.index for n in nodes if Trait.ITERATES in n.traits and n.body == body}
        known = self._nodes.__contains__
        carried = reach((n.index for n in nodes if is_state(n)), self._after, known)
        smooth = (index for index in carried if Trait.BOUNDS not in self._nodes[index].traits)
        begins = slices.union(filter(self._is_activation, smooth))
        self._of_each = reach(begins, self._after, known) | begins

    def denied(self) -> set[int]:
        """Returns the nodes of this loop that must be full."""
        found = set[int]()
        for node in self._nodes.values():
            if not is_state(node) or node.body != self._body or node.index in found:
                continue
            if not self._graph.values[node.outputs[0]].paintable:
                continue
            downstream = reach([node.index], self._after, self._nodes.__contains__)
            way = downstream & reach([node.index], self._before, self._nodes.__contains__)
            dots = {index for index in downstream if self._kind(index) is Kind.ALLOW}
            if not way & dots or self._is_gated(way):
                continue
            if not any(map(self._is_activation, downstream - self._projections(node))):
                arithmetic = {index for index in way if self._kind(index) is Kind.INFER}
                found |= dots | arithmetic | {node.index}
        return found

    def _kind(self, index: int) -> Kind:
        return self._classes.nodes[index].listed

    def _is_activation(self, index: int) -> bool:
        """Checks if a node is a nonlinear function of an array, as networks have between dots.

        A maximum is one if its bound is 0, or another array.
        """
        node = self._nodes[index]
        made = [self._graph.values[v] for v in node.outputs]
        if Trait.ACTIVATION not in node.traits or all(v.is_one or not v.paintable for v in made):
            return False
        if Trait.BOUNDS not in node.traits:
            return True
        bounds = [self._graph.values[v].constant for v in node.inputs]
        zero = all(bound is None or bound.low == bound.high == 0.0 for bound in bounds)
        return zero and not self._is_guard(node)

    def _is_guard(self, bound: Node) -> bool:
        """Returns True if the result of a bound only divides: ``x / max(norm, epsilon)``."""
        queue = [(bound.outputs[0], reader) for reader in self._after[bound.index]]
        for value, reader in queue:
            node = self._nodes.get(reader)
            if node is None:
                return False
            if Trait.DIVIDES in node.traits and node.inputs[1] == value != node.inputs[0]:
                continue
            if len(node.inputs) != 1 or node.traits.isdisjoint({Trait.ROOTS, Trait.COMMUTES}):
                return False
            queue += [(node.outputs[0], following) for following in self._after[reader]]
        return bool(queue)

    def _is_gated(self, way: Iterable[int]) -> bool:
        """Checks if such an array multiplies a value on the way, or chooses it."""
        gates = self._of_each - set(way)
        for index in way:
            node = self._nodes[index]
            chosen = node.inputs[:1] if Trait.CHOOSES in node.traits else ()
            for value in node.inputs if scales(node) else chosen:
                gate = self._graph.values[value]
                if not gate.is_one and gate.producer in gates:
                    return True
        return False

    def _projections(self, carry: Node) -> set[int]:
        """Returns the bounds after a step, which is the carry plus a value scaled by one number."""
        found, queue = set[int](), [(value, False) for value in carry.outputs]
        seen = set(queue)
        while queue:
            value, stepped = queue.pop()
            for reader, slot in self._graph.consumers[value]:
                node = self._nodes.get(reader)
                step = None if node is None else self._step(node, slot)
                if node is None or step is None:
                    continue
                if stepped and Trait.BOUNDS in node.traits:
                    found.add(reader)
                new = {(made, stepped or step) for made in node.outputs} - seen
                seen |= new
                queue += new
        return found

    def _step(self, node: Node, slot: int) -> bool | None:
        """Checks if a node adds a scaled value to an operand; ``None`` if the step ends here."""
        others = [value for position, value in enumerate(node.inputs) if position != slot]
        if Trait.ADDS in node.traits:
            return any(is_scaled(self._graph, value) for value in others)
        if scales(node):
            one = (Trait.MULTIPLIES in node.traits or slot == 0) and len(others) == 1
            return False if one and is_one(self._graph, others[0]) else None
        passes = not node.traits.isdisjoint({Trait.COMMUTES, Trait.CARRIES})
        return False if passes or Trait.UNDESCRIBED in node.traits else None
