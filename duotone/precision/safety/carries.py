"""Carries that must stay full: states that are sums, and numbers that decide when a loop ends.

A painter stores a carry in the precision of the values computed from it, so that the residual
stream of a scan over layers is half. Two kinds of carries must stay full:

*Sums.* In ``s = decay * s + new``, ``h = h + dt * f(h)`` and ``w = w - rate * g``, each iteration
adds to the result of the iterations before. In bfloat16 a term of 1/512 of the sum adds nothing at
all, and after many iterations the result is entirely wrong. Such a carry is denied if

- nothing but the sum reads it (the result of an attention in blocks), or
- a comparison with a constant decides what is added next (a probability of halting, the potential
  of a neuron), or
- a single number scales the new term or the old sum (a step size, a decay), or
- the largest or least of several sums goes on (the scores of a best path), or
- the loop runs often (:data:`LONG`), or as often as its condition says.

The last three do not apply to a scan over layers, whose dots read other weights in each iteration.
Such a sum has only as many terms as there are layers, and is an activation. A loop over batches
looks alike, but takes steps of a descent (:mod:`duotone.precision.safety.descents`). These steps
are denied, also without a loop.

*Ends.* A ``while`` that ends when a float32 number is small enough (a fixed point, a bisection) may
never end in half, whose neighbouring numbers are further apart. All nodes in it stay full if that
number follows from a dot or the loop contains none. If the loop also counts its iterations, they
stay full only if the loop compares an error, which is a difference of two values, however the test
is written. The scores of a beam search are not errors. The comparison may also be the one that
changes the counter.

Operations that recompute such a loop for a backward pass stay full too, since they must take the
same decisions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from duotone.graph.graph import Body, BodyKind, Graph, Node, Value
from duotone.graph.reach import Walk, follow
from duotone.graph.terms import is_one, is_scaled, is_state, moved, scales, subtracts
from duotone.ops.entries import Kind, Taint
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.context import Background
from duotone.precision.rules import Rule
from duotone.precision.safety.descents import find_steps

LONG = 64
"""The number of iterations from which any carry that is added to is a sum of many terms."""
LAYERS = 256
"""More iterations than networks have layers."""
_SUM = "a sum over iterations: each adds to the result of those before"
_STEP = "a step of a descent: it adds a small multiple of a gradient"
_UPDATE = "part of such a step"
_REPLAY = "recomputes an operation of such a loop, and must take the same decisions"
_END = "in a loop that ends when a float32 number is small enough; in half it may never end"


def keep_carries(classes: Classes, background: Background) -> Classes:
    """Denies carries that are sums, and all nodes of a loop that half may keep from ending.

    Args:
        classes: the class of each node.
        background: the program.

    Returns:
        New classes; the same where there is no such loop.
    """
    graph = background.graph
    steps = find_steps(graph, classes)
    sums = dict.fromkeys(steps, _STEP) | dict.fromkeys(set[int]().union(*steps.values()), _UPDATE)
    endless: dict[int, str] = {}
    ending: list[_Loop] = []
    for body in graph.bodies:
        if body.kind is not BodyKind.LOOP:
            continue
        loop = _Loop(graph, classes, body)
        if loop.ends_by_a_number():
            endless.update((node.index, _END) for node in loop.nodes)
            ending.append(loop)
        else:
            for carry in loop.sums(steps):
                sums |= dict.fromkeys((carry.index, *loop.compared_sums(carry)), _SUM)
    endless = dict.fromkeys(_replays(graph, ending), _REPLAY) | endless
    return classes.with_denied(endless, Rule.CARRY).with_denied(sums, Rule.CARRY, Taint.DOMINANT)


def _replays(graph: Graph, loops: Sequence[_Loop]) -> set[int]:
    """Returns the operations of the same source line that recompute one of these loops.

    The backward pass of an adaptive solver runs the steps again. In half it would accept others.
    """
    own = {node.index for loop in loops for node in loop.nodes}
    known = {_operation(graph, graph.nodes[index]) for index in own}
    return {
        node.index
        for node in (graph.nodes if known else ())
        if node.index not in own and node.paintable and _operation(graph, node) in known
    }


def _operation(graph: Graph, node: Node) -> tuple[object, ...]:
    """Returns the operation, source line and shapes, which a node and its recomputation share."""
    shapes = [graph.values[v].shape for v in (*node.inputs, *node.outputs)]
    return (node.list_key, str(node.source), *shapes)


def is_over_layers(graph: Graph, classes: Classes, body: Body) -> bool:
    """Checks if dots of a loop read other weights in each iteration, and none that stay the same.

    Args:
        graph: the program.
        classes: the class of each node.
        body: the body of the loop.
    """
    return _Loop(graph, classes, body).is_over_layers()


class _Loop:
    """The nodes of one loop, including those of nested programs."""

    def __init__(self, graph: Graph, classes: Classes, body: Body) -> None:
        self.graph, self.classes, self.body = graph, classes, body
        self.bodies = graph.bodies_in(body.index)
        self.nodes = graph.nodes_in(body.index)
        self.carries = [n for n in self.nodes if n.body == body.index and is_state(n)]

    def sums(self, steps: Collection[int]) -> list[Node]:
        """Returns the carries that are sums; ``steps`` has the sums of descents."""
        trips = self.body.trips // max(self.graph.bodies[self.body.parent].trips, 1)
        often = self.body.until >= 0 or trips > LONG
        layers = self.body.until < 0 and trips <= LAYERS and self.is_over_layers()
        layers = layers and not any(node.index in steps for node in self.nodes)
        found: list[Node] = []
        for carry in self.carries:
            if all(self.graph.values[value].paintable for value in carry.outputs):
                added, scaled, closed = self._follow(carry)
                stepped = moved(self.graph, carry.inputs[1]).producer in steps
                if stepped or (added and (closed or (not layers and (often or scaled)))):
                    found.append(carry)
        return found

    def compared_sums(self, carry: Node) -> list[int]:
        """Returns the additions before the next value of a carry, if an extremum picks one of them.

        The taint of the carry does not reach a sum of two operands that are both broadcast.
        """
        found, picks, walk = list[int](), False, Walk(self.graph, carry.inputs[1:2])
        for _, node in walk:
            if node.body not in self.bodies:
                continue
            picks = picks or Trait.EXTREMA in node.traits
            adds = Trait.ADDS in node.traits
            found += [node.index] if adds else []
            walk.to(node.inputs if adds or Trait.COMMUTES in node.traits else ())
        return found if picks else []

    def _follow(self, carry: Node) -> tuple[bool, bool, bool]:
        """Follows a carry to its next value.

        Returns:
            Three booleans: something is added to the carry or multiplies it on the way; a single
            number scales the carry or the addend, or an extremum picks sums; nothing else reads the
            carry, or a comparison of it with a constant that decides on its next value.
        """
        queue: list[tuple[int, bool, bool, bool]] = [(carry.outputs[0], False, False, False)]
        seen = set(queue)
        added, scaled, alone, decided = False, False, True, set[int]()
        while queue:
            value, *was = queue.pop()
            for index, slot in self.graph.consumers[value]:
                node = self.graph.nodes[index]
                if node.index == carry.index:
                    if slot == 1 and was[0]:
                        added, scaled = True, scaled or was[1]
                    continue
                against = any(self._is_nonzero(v) for v in node.inputs)
                if Trait.DECIDES in node.traits and (was[2] or against):
                    decided.update(node.outputs)
                step = self._step(node, slot)
                if step is None:
                    alone = False
                    continue
                now = was[0] or step[0], was[1] or step[1], was[2] or (step[0] and against)
                for output in node.outputs:
                    if self.graph.values[output].body in self.bodies:
                        state = (output, *now)
                        if state not in seen:
                            seen.add(state)
                            queue.append(state)
        decides = bool(decided) and follow(self.graph, carry.inputs[1:], decided)
        return added, scaled, alone or decides

    def _is_nonzero(self, value: int) -> bool:
        constant = self.graph.values[value].constant
        return constant is not None and constant.high > 0.0

    def _step(self, node: Node, slot: int) -> tuple[bool, bool] | None:
        """Tells if a node on the way of a sum changes it, and if a single number or a choice does.

        The result is ``None`` if the sum ends here, since the node reads it for something else.
        """
        if Trait.ADDS in node.traits:
            others = [v for position, v in enumerate(node.inputs) if position != slot]
            return True, any(is_scaled(self.graph, value) for value in others)
        if Trait.ADDS_INTO in node.traits and slot == 0:
            return True, False
        if scales(node) and (Trait.MULTIPLIES in node.traits or slot == 0):
            return True, is_one(self.graph, node.inputs[1 - slot])
        if Trait.UNDESCRIBED in node.traits:
            return True, True  # it may add to the sum
        if Trait.EXTREMA in node.traits:
            return False, True
        moves = Trait.COMMUTES in node.traits and Trait.STACKS not in node.traits
        return (False, False) if moves or Trait.CARRIES in node.traits else None

    def is_over_layers(self) -> bool:
        """Checks if dots read other weights in each iteration, and none that stay the same."""
        own = False
        for node in self.nodes:
            if self.classes.nodes[node.index].kind is Kind.ALLOW:
                read = [moved(self.graph, value) for value in node.inputs]
                if any(self._is_own(value) for value in read):
                    own = True
                elif any(value.body not in self.bodies for value in read):
                    return False
        return own

    def _is_own(self, value: Value) -> bool:
        """Returns True if a value is this iteration's slice of an argument, and a matrix.

        A vector per iteration is an observation, as filters read them.
        """
        vector = sum(side != 1 for side in value.shape) <= 1
        if value.producer < 0 or value.body not in self.bodies or vector:
            return False
        node = self.graph.nodes[value.producer]
        return Trait.ITERATES in node.traits and moved(self.graph, node.inputs[0]).producer < 0

    def ends_by_a_number(self) -> bool:
        """Returns True if a float32 number decides when the loop ends, and half would change it."""
        if self.body.until < 0:
            return False
        counted, limited, numbers = self._condition()
        allow = [n for n in self.nodes if self.classes.nodes[n.index].kind is Kind.ALLOW]
        made = {value for node in allow for value in node.outputs}
        if not numbers or (made and made.isdisjoint(self._back(numbers, set()))):
            return False
        return not counted or self._is_error(numbers, made, limited)

    def _is_error(self, numbers: Sequence[int], made: set[int], limited: bool) -> bool:
        """Returns True if a node between the dots and one of the numbers subtracts an error.

        The subtractions of a softmax do not count, nor do those of noise. If no limit stays the
        same, the difference of a value and a value that follows from it does not count either,
        since those are the scores of a beam search.
        """
        nodes, values = self.graph.nodes, self.graph.values
        makers = [nodes[values[v].producer] for v in self._back(numbers, made)]
        makers = [node for node in makers if any(values[v].paintable for v in node.inputs)]
        if any(Trait.UNDESCRIBED in node.traits for node in makers):
            return True
        floats = {v for carry in self.carries for v in carry.outputs if values[v].paintable} | made
        for node in makers:
            if not subtracts(self.graph, node):
                continue
            ways = [self._back([v], floats) for v in node.inputs]
            if self._is_shift(node, ways[-1]):
                continue
            own = any(v in way for v, way in zip(node.inputs, ways[::-1], strict=True))
            known = any(values[v].constant is not None for v in node.inputs)
            if all(not way or way & floats for way in ways) and (limited or not (own or known)):
                return True
        return False

    def _is_shift(self, node: Node, way: set[int]) -> bool:
        """Returns True if a node subtracts its operand's maximum or log-sum, as a softmax does.

        Args:
            node: a difference.
            way: values from which its last operand follows.
        """
        value = self.graph.values[node.inputs[-1]]
        while node.inputs[0] in way and value.producer >= 0:
            made = self.graph.nodes[value.producer]
            shifts = made.traits & {Trait.SELECTS, Trait.LOGARITHM}
            if shifts and Trait.BOUNDS not in made.traits:
                return True
            inputs = [self.graph.values[v] for v in made.inputs]
            inputs = [read for read in inputs if read.constant is None]
            if Trait.COMMUTES not in made.traits or len(inputs) != 1:
                break
            (value,) = inputs
        return False

    def _condition(self) -> tuple[bool, bool, list[int]]:
        """Reads the condition of the loop.

        The condition counts if it reads an integer that the loop carries. Such an integer may also
        depend on a comparison (iterations without progress), but not if it was only picked (a
        token). A limit stays the same in the loop. The graph does not show the predicate of a
        conditional, so the condition then may read every number that the loop carries.

        Returns:
            True if the condition counts, True if it compares with a limit, and the float32
            numbers that it compares.
        """
        counted = limited = hidden = False
        numbers: list[int] = []
        seen, queue = set[tuple[int, bool]](), [(self.body.until, False)]
        while queue:
            index, integer = queue.pop()
            value = self.graph.values[index]
            outside = value.producer < 0 or value.body not in self.bodies
            if outside or (index, integer) in seen:
                continue
            seen.add((index, integer))
            node = self.graph.nodes[value.producer]
            if Trait.CARRIES in node.traits:
                integer = integer or value.dtype.startswith(("int", "uint"))
                counted = counted or integer
                queue += [(v, integer) for v in node.inputs[1:] if integer or value.dtype == "bool"]
            elif any(self.graph.values[v].paintable for v in node.inputs):
                if not (integer and Trait.SELECTS in node.traits):
                    read = [v for v in node.inputs if self.graph.values[v].paintable]
                    numbers += read
                    origins = [moved(self.graph, v) for v in read]
                    limited = limited or any(self._is_outside(origin) for origin in origins)
            else:
                if Trait.JOINS in node.traits:
                    hidden = True
                    numbers += [v for carry in self.carries for v in carry.outputs]
                queue += [(v, integer) for v in node.inputs]
        return counted and not hidden, limited, numbers

    def _is_outside(self, value: Value) -> bool:
        return value.constant is not None or value.body not in self.bodies

    def _back(self, numbers: Sequence[int], ends: set[int]) -> set[int]:
        """Returns the ancestors of values in the loop, and these; the walk stops at ``ends``."""
        found, walk = set[int](), Walk(self.graph, numbers)
        for value, node in walk:
            if value.body in self.bodies:
                found.add(value.index)
                walk.to(() if value.index in ends else node.inputs)
        return found
