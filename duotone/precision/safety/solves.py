"""Solves: dots around a factorisation or a solve are full, and so are the nodes in between.

A solve magnifies the errors of its operands by the condition number. Its result consists of large
terms that cancel when the program multiplies them with the data. A ridge regression on 64 features
with the dots around its solve in bfloat16 chose another class for 88 % of the points.

::

    upstream   = from operands of solves back to the next allow operations, these included, and on
                 through products of several matrices, F @ P @ F.T, and of one with itself and with
                 weights: X.T @ (weights * (X @ v)), a Hessian by its products
    downstream = from results of solves on to the next allow operations, these included, and through
                 linear operations on to further ones: Zq @ (Z.T @ solution)
    partners   = from values that are multiplied with or added to downstream values, back to one
                 more dot: the kernel between test and training points
    gradients  = dots that multiply a value downstream of a solve with an argument that a dot around
                 the solve read: the gradient of a kernel or a Gram matrix of data
    carried    = in a loop, all nodes that read a carry that comes from a solve of this loop:
                 filters, Newton's method, evolution strategies

This rule denies all of these. It also denies nodes that only move values, since they may join full
and half values. If a network is upstream or downstream, only its dots next to these nodes are full:

- A single number ends every walk. It is a scale (a spectral norm, a length scale), and its error
  scales the result and does nothing else.
- A linear chain ends at the sum with another value that comes from dots (a residual stream).
  ``partners`` ends there and at sums over elements.
- A scan over layers with activations carries no state of a solver.
- A random orthogonal matrix, made without floating point arguments and dots, magnifies no error.
  Only the dots that read it are full. A state that starts there and to which a loop with
  activations adds is no result of a solve: weights that the program initializes and trains. An
  inverse of constants does magnify errors: it has large terms that cancel.

An operation solves if its row has the trait :attr:`~duotone.ops.traits.Trait.SOLVES`. Taking it off
the deny list switches this rule off for it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Sequence

from duotone.graph.graph import BodyKind, Graph, Node
from duotone.graph.reach import Walk, following, reach, start
from duotone.graph.terms import SCALES, is_state, is_sum
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes, NodeClass
from duotone.precision.context import Background
from duotone.precision.rules import Rule
from duotone.precision.safety.carries import is_over_layers

_UPSTREAM = "leads to a factorisation or a solve, which magnifies its error"
_DOWNSTREAM = "multiplies the result of a factorisation or a solve: large terms that may cancel"
_PARTNER = "is multiplied with or added to the result of a factorisation or a solve; may cancel"
_GRADIENT = "multiplies a value downstream of a solve with its operands: a gradient that may cancel"
_CARRIED = "reads a state of this loop that comes from a factorisation or a solve"
_WEIGHTS = SCALES | {Trait.CHOOSES, Trait.ADDS}
_LINEAR = frozenset({Trait.NEGATES, Trait.CARRIES, Trait.LINEAR, Trait.UNDESCRIBED})
"""Traits of linear operations. An undescribed operation may be linear, so no walk ends there."""


def keep_solves(classes: Classes, background: Background) -> Classes:
    """Denies dots around solves, and the nodes in between.

    Args:
        classes: the class of each node.
        background: the program.

    Returns:
        New classes; the same object if the program solves nothing.
    """
    graph = background.graph
    solves = [node for node in graph.nodes if _solves(classes.nodes[node.index])]
    if not solves:
        return classes
    walks = _Walks(graph, classes)
    exact = [node for node in solves if walks.is_exact(node)]
    solves = [node for node in solves if not walks.is_exact(node)]
    operands = [value for node in solves for value in node.inputs]
    upstream = walks.upstream_through_products(operands)
    downstream = walks.downstream(solves)
    products, sums = walks.products(downstream)
    downstream |= products
    meeting = (v for i in downstream | sums for v in graph.nodes[i].inputs)
    partners = walks.upstream(meeting, walks.keeps_errors)
    downstream |= walks.downstream(exact, walks.is_untrained)
    carried = walks.carried(solves)
    gradients = walks.gradients(walks.upstream(operands), partners, solves)
    reasons: dict[int, str] = {}
    for found, reason in (
        (carried, _CARRIED),
        (gradients, _GRADIENT),
        (partners, _PARTNER),
        (downstream, _DOWNSTREAM),
        (upstream, _UPSTREAM),
    ):
        reasons.update(dict.fromkeys(found, reason))
    return classes.with_denied(reasons, Rule.SOLVE)


def _solves(known: NodeClass) -> bool:
    """Returns True if a node solves, or is a dot of an iteration, most of which solve something."""
    iterates = known.rule is Rule.ITERATION and known.origin is Kind.ALLOW
    return iterates or Trait.SOLVES in known.entry.traits


class _Walks:
    """Walks along the edges of a graph.

    Attributes:
        data: values that follow from floating point arguments, from dots or from states of loops.
    """

    def __init__(self, graph: Graph, classes: Classes) -> None:
        self._graph, self._classes = graph, classes
        self._nodes, self._values = graph.nodes, graph.values
        self._streams = _streams(graph, classes)
        arguments = (value for value in graph.inputs if graph.values[value].paintable)
        # States of loops may follow from dots.
        states = (node for node in graph.having(Trait.CARRIES) if self._is_changed(node))
        begins = classes.allowed.union(node.index for node in states)
        self.data = following(graph, begins, values=arguments)

    def _is_changed(self, node: Node) -> bool:
        return is_state(node) and any(self._values[v].paintable for v in node.outputs)

    def is_exact(self, node: Node) -> bool:
        """Checks if a node makes an orthogonal matrix from constants and random numbers."""
        return Trait.ORTHOGONAL in node.traits and self.data.isdisjoint(node.inputs)

    def _is_dot(self, index: int) -> bool:
        return index in self._classes.allowed

    def upstream(
        self, values: Iterable[int], passes: Callable[[Node], bool] = lambda _: True
    ) -> set[int]:
        """Returns the ancestors of values, up to allow operations and nodes that do not pass."""
        found, walk = set[int](), Walk(self._graph, filter(self._counts, values))
        for _, node in walk:
            dot = self._is_dot(node.index)
            if dot or passes(node):
                found.add(node.index)
                walk.to(() if dot else filter(self._counts, node.inputs))
        return found

    def downstream(
        self, nodes: Iterable[Node], passes: Callable[[Node], bool] = lambda _: True
    ) -> set[int]:
        """Returns what follows from nodes, up to allow operations and nodes that do not pass."""

        def through(index: int) -> bool:
            return self._is_dot(index) or passes(self._nodes[index])

        first = {i for node in nodes for i in self._after[node.index] if through(i)}
        edges = [() if self._is_dot(i) else after for i, after in enumerate(self._after)]
        return first | reach(first, edges, through)

    @functools.cached_property
    def _after(self) -> Sequence[Sequence[int]]:
        """For each node, the readers of those of its results whose errors matter."""
        readers, nodes = self._graph.consumers, self._nodes
        made = (filter(self._counts, node.outputs) for node in nodes)
        return [[reader for v in values for reader, _ in readers[v]] for values in made]

    def _counts(self, value: int) -> bool:
        """Checks if the error of a value matters: floating point, several numbers, no constant."""
        found = self._values[value]
        real = found.dtype.startswith(("float", "bfloat", "complex"))
        return real and found.size > 1 and found.constant is None

    def upstream_through_products(self, values: Iterable[int]) -> set[int]:
        """Returns the ancestors of values, through matrix products, up to allow operations."""
        found = self.upstream(values)
        new = found
        while dots := [i for i in new if self._is_dot(i)]:
            operands = [v for i in dots for v in self._nodes[i].inputs]
            new = self.upstream(operands, self._is_linear) - found
            new = new if any(map(self._is_dot, new)) else set()
            for index in dots:
                new |= self._weighted(self._nodes[index])
            new -= found
            found |= new
        return found

    def _weighted(self, dot: Node) -> set[int]:
        """Returns nodes on linear, perhaps weighted, paths between two dots of the same matrix."""
        found = set[int]()
        matrices = {self._origin(value) for value in dot.inputs}
        for value in dot.inputs:
            new = self.upstream([value], self._is_weighted)
            for index in new:
                node = self._nodes[index]
                if self._is_dot(index) and not matrices.isdisjoint(map(self._origin, node.inputs)):
                    found |= self._linear_way(node, new)
        return found

    def gradients(
        self, first: Iterable[int], partners: Iterable[int], solves: Iterable[Node]
    ) -> set[int]:
        """Returns dots of a value downstream of a solve and an argument that dots around it read.

        The value must have the size of that dot's result.

        Args:
            first: nodes up to the first dots upstream of solves. Features that a network gives
                these dots are not arguments, so the gradients of a network stay half.
            partners: further nodes; their dots count if they read an argument of the first dots.
            solves: the nodes that solve.
        """
        points = {v for i in first if self._is_dot(i) for v in self._arguments(self._nodes[i])}
        sizes = dict[int, set[int]]()
        for index in filter(self._is_dot, {*first, *partners} if points else ()):
            node = self._nodes[index]
            read = self._arguments(node)
            for value in read if not points.isdisjoint(read) else ():
                sizes.setdefault(value, set()).add(self._values[node.outputs[0]].size)
        follow = {value for node in solves for value in node.outputs}
        found = set[int]()
        for node in self._nodes if sizes else ():
            if follow.isdisjoint(node.inputs):
                continue
            follow.update(value for value in node.outputs if self._counts(value))
            if self._is_dot(node.index) and len(node.inputs) == 2:
                for value, other in (node.inputs, node.inputs[::-1]):
                    size = self._values[value].size
                    if value in follow and size in sizes.get(self._origin(other), ()):
                        found.add(node.index)
        return found

    def _arguments(self, dot: Node) -> set[int]:
        """Returns arguments of the program that a dot reads directly, moved or scaled."""
        origins = map(self._origin, dot.inputs)
        return {v for v in origins if self._values[v].producer < 0 and self._counts(v)}

    def _linear_way(self, dot: Node, nodes: Collection[int]) -> set[int]:
        """Returns a dot and the nodes computed from it alone; empty if one is not linear in it."""
        found, follow = {dot.index}, set(dot.outputs)
        for node in self._nodes[dot.index + 1 :]:
            own = follow.intersection(node.inputs)
            if not own:
                continue
            follow.update(node.outputs)
            if node.index not in nodes or self._is_dot(node.index):
                continue
            times = sum(value in own for value in node.inputs)
            twice = times > 1 and not node.traits.isdisjoint(SCALES | {Trait.RAISES})
            size = self._values[node.outputs[0]].size
            others = (self._streams & set(node.inputs)) - own
            added = Trait.ADDS in node.traits and any(
                self._values[value].size >= size for value in others
            )
            if twice or added or (Trait.CHOOSES in node.traits and node.inputs[0] in own):
                return set()
            found.add(node.index)
        return found

    def _is_weighted(self, node: Node) -> bool:
        return not node.traits.isdisjoint(_WEIGHTS) or self._is_linear(node)

    def _origin(self, value: int) -> int:
        """Returns the origin of a value, upstream of moves and of scaling by one number."""
        return start(self._graph, value, _scaled)

    def products(self, nodes: Iterable[int]) -> tuple[set[int], set[int]]:
        """Follows the results of the dots among some nodes through linear operations.

        Returns:
            Further dots with the nodes on the way, and the sums at which the linear chains end.
        """
        found, sums = set[int](), set[int]()
        marked = {v for i in nodes if self._is_dot(i) for v in self._nodes[i].outputs}
        grown = -1
        while len(found) > grown:  # repeats if a loop carries a marked value back
            grown = len(found)
            for node in self._nodes:
                own = marked.intersection(node.inputs)
                if not own or node.index in found:
                    continue
                if self._is_dot(node.index) or self._is_linear(node, own):
                    found.add(node.index)
                    marked.update(v for v in node.outputs if self._counts(v))
                elif Trait.ADDS in node.traits:
                    sums.add(node.index)
        return found, sums

    def _is_linear(self, node: Node, marked: Collection[int] = ()) -> bool:
        """Checks if a node moves, scales by a single number, or adds without a residual stream.

        Args:
            node: the node.
            marked: results of dots; a sum may have one, whatever else it adds.
        """
        if _moves(node) or not node.traits.isdisjoint(_LINEAR):
            return True
        if Trait.CHOOSES in node.traits:  # a branch under vmap; a mask is none
            return _is_number(self._graph, node.inputs[0], node)
        if not node.traits.isdisjoint(SCALES):
            return any(_is_number(self._graph, value, node) for value in node.inputs)
        streams = [v for v in node.inputs if v in self._streams and v not in marked]
        return Trait.ADDS in node.traits and len(streams) <= (0 if marked else 1)

    def keeps_errors(self, node: Node) -> bool:
        """Returns True if a node neither averages out errors nor adds residual streams."""
        if Trait.AVERAGES in node.traits:
            return False
        return not (
            Trait.ADDS in node.traits and all(value in self._streams for value in node.inputs)
        )

    def is_untrained(self, node: Node) -> bool:
        """Returns False for a state to which a loop with activations adds."""
        trains = is_state(node) and is_sum(self._graph, node.inputs[1])
        return not (trains and self._has_activation(node.body))

    def carried(self, solves: Iterable[Node]) -> set[int]:
        """Returns all readers of a loop's carry that comes from a solve in the same loop."""
        bodies, found = self._graph.bodies, set[int]()
        loops = set[int]()
        for node in solves:
            around = node.body
            while around >= 0:
                if bodies[around].kind is BodyKind.LOOP:
                    loops.add(around)
                around = bodies[around].parent
        for loop in loops:
            inside = self._graph.bodies_in(loop)
            if self._is_of_layers(loop):
                continue
            solved = [node.index for node in solves if node.body in inside]
            following_solves = self._within(inside, solved)
            carries = [i for i in following_solves if is_state(self._nodes[i])]
            found |= self._within(inside, (i for i in carries if self._nodes[i].body == loop))
        return found

    def _is_of_layers(self, loop: int) -> bool:
        """Returns True if a loop iterates over layers of a network with activations."""
        layers = is_over_layers(self._graph, self._classes, self._graph.bodies[loop])
        return layers and self._has_activation(loop)

    def _has_activation(self, body: int) -> bool:
        return any(Trait.ACTIVATION in node.traits for node in self._graph.nodes_in(body))

    def _within(self, bodies: Collection[int], starts: Iterable[int]) -> set[int]:
        """Returns nodes of some bodies that follow from some nodes through values that count."""
        return reach(starts, self._after, lambda index: self._nodes[index].body in bodies)


def _moves(node: Node) -> bool:
    picks = not node.traits.isdisjoint({Trait.SELECTS, Trait.BOUNDS})
    return Trait.COMMUTES in node.traits and not picks


def _scaled(graph: Graph, node: Node) -> int | None:
    """Returns the value that a node moves, or scales by one number."""
    rest = [v for v in node.inputs if not _is_number(graph, v, node)]
    scaled = not node.traits.isdisjoint(SCALES) and len(node.inputs) == 2
    moved = len(node.inputs) == 1 and _moves(node)
    return rest[0] if len(rest) == 1 and (scaled or moved) else None


def _is_number(graph: Graph, value: int, node: Node) -> bool:
    """Checks if an operand of ``node`` is one number, or one number per matrix of a batch."""
    shape = graph.values[node.outputs[0]].shape
    matrices = math.prod(n if isinstance(n, int) else 1 for n in shape[:-2])
    found = graph.values[start(graph, value, _repeated)]
    return found.size <= matrices or found.constant is not None


def _repeated(graph: Graph, node: Node) -> int | None:
    """Returns the value that a node repeats."""
    return node.inputs[0] if len(node.inputs) == 1 and Trait.REPEATS in node.traits else None


def _streams(graph: Graph, classes: Classes) -> set[int]:
    """Returns values that come from allow operations without getting smaller on the way."""

    def keeps_size(node: Node, value: int) -> bool:
        size = max((graph.values[v].size for v in node.outputs), default=0)
        return graph.values[value].size >= size

    return following(graph, classes.allowed, passes=keeps_size)
