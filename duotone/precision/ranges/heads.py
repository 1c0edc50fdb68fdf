"""Heads: arithmetic between the last dot of a network and its loss.

A sigmoid of 0.999 is 1.0 in bfloat16. A loss that compares it with a target, ``(y - target)**2``,
or sums it, reads its distance from 1, and so does its own derivative, ``y * (1 - y)``. A
difference of two networks, ``softmax(f(x)) - softmax(g(x))``, is as small. In a network, the next
dot rounds a gate in any case. A head has no next dot: after it come the loss and the gradients::

    last dots     dots upstream of a value with no dot between
    a gradient    a dot that reads an operand of a last dot, and a value of the size of its result
    a head        a value from which no next dot follows but gradients of its last dots

This search denies heads that saturate and whose distance from the limit is read, heads whose
results a difference compares with what follows from other dots, or with another part or another
arrangement of the same array, and heads that are sorted or compared with a number computed from
them. A logit that is subtracted from its own maximum is not compared, nor is a value that its own
first derivative multiplies; a second derivative and ``y * (1 - y)`` in the loss compare it.

It also denies all arithmetic of a head that gradients read, in arrays no larger than the operands
of the last dot. Cotangents may nearly cancel there (after two norms, for example), and float32
costs little. The logits of a language model are larger, so they are left to other rules::

    a final dot   a dot from which no dot but gradients follows, and no gradient itself
    small         a head that follows from final dots alone, no larger than what they read
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterator

from duotone.graph.graph import Graph, Node
from duotone.graph.reach import Walk, follow, start
from duotone.graph.terms import scales
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes
from duotone.precision.safety.dot_operands import Dots

_ANY = -1
"""Stands for every size next to a value of which no front end knows the shape."""
_LIMIT = "the loss, and no dot, reads its distance from its limit"
_DIFFERENCE = "the loss, and no dot, reads its difference from another result, or its order"
_SMALL = "between the last dot and the loss: a small array, and no dot rounds it"


def find_heads(graph: Graph, classes: Classes) -> dict[int, str]:
    """Finds the heads that must be float32.

    Args:
        graph: the program.
        classes: the class of each node.

    Returns:
        The reasons in words, by index of the node.
    """
    search = _Search(graph, classes)
    saturating = filter(search.is_saturating, graph.having(Trait.SATURATES))
    return (
        dict.fromkeys(search.small(), _SMALL)
        | dict.fromkeys(search.before_differences(), _DIFFERENCE)
        | {node.index: _LIMIT for node in saturating}
    )


class _Search(Dots):
    """Searches the dots before and after values. A set of dots is a number with a bit for each."""

    def is_head(self, node: Node) -> bool:
        """Checks if a node is no dot, follows from a half one, and leads to gradients only."""
        if not node.outputs or self.classes.is_dot(node):
            return False
        value = self.graph.values[node.outputs[0]]
        if not self._last[value.index] & self._allowed or value.index in self._in_network:
            return False
        return value.is_one or self._carried.get(value.index, 0) < value.size

    def is_saturating(self, node: Node) -> bool:
        """Checks if a saturating node is a head whose distance from its limit is read."""
        infers = self.classes.nodes[node.index].kind is Kind.INFER
        return infers and self.is_head(node) and self._is_compared(node)

    def small(self) -> Iterator[int]:
        """Yields the heads of final dots that are no larger than what these read.

        Gradients read them too. Without them, they are state, which is full in any case.
        """
        sizes, final = dict[int, int](), self._final
        for node in self.graph.nodes if final else ():
            last = self._last[node.outputs[0]] if node.outputs else 0
            infers = self.classes.nodes[node.index].kind is Kind.INFER
            if not last or last & ~final or not infers or Trait.COMMUTES in node.traits:
                continue
            if last not in sizes:
                read = (v for dot in self._dots_in(last) for v in dot.inputs)
                sizes[last] = max(map(self._size, read))
            (value, *_) = node.outputs
            small = self._size(value) <= sizes[last]
            if small and value in self._before_dots and self.is_head(node):
                yield node.index

    def before_differences(self) -> set[int]:
        """Returns differences, and the heads that lead to their operands and to decisions."""
        nodes = self.graph.nodes
        found = {n.index for n in self.graph.having(Trait.SUBTRACTS) if self._compares(n)}
        orders = (n.index for n in self.graph.having(Trait.DECIDES) if self._orders(n))
        walk = Walk(self.graph, (v for index in (*found, *orders) for v in nodes[index].inputs))
        for _, made in walk:
            if self.is_head(made):
                found.update(() if Trait.COMMUTES in made.traits else (made.index,))
                walk.to(made.inputs)
        return found

    def _compares(self, node: Node) -> bool:
        """Checks if a difference is of what follows from other dots, or of two parts of a value."""
        if not self.is_head(node):
            return False
        one, other = (self._last[v] for v in node.inputs)
        if one and other and (not one & other or all(map(self._is_product, node.inputs))):
            return True
        return self._subtracts_parts(node)

    def _is_product(self, value: int) -> bool:
        """Checks if a value is a product of two values that follow from half dots."""
        made = self.graph.maker(start(self.graph, value, _part_of))
        if made is None or Trait.MULTIPLIES not in made.traits:
            return False
        return all(self._last[v] & self._allowed for v in made.inputs)

    def _subtracts_parts(self, node: Node) -> bool:
        """Checks if the operands are parts of one array, or repeat it along different axes."""
        one, other = (start(self.graph, value, _part_of) for value in node.inputs)
        return one == other and node.inputs[0] != node.inputs[1]

    def _orders(self, node: Node) -> bool:
        """Checks if a decision sorts a value, or compares it with what is computed from it.

        Half has few numbers near a large one, so that elements are equal or on the wrong side.
        """
        if not self.is_head(node):
            return False
        if Trait.SELECTS in node.traits:
            return all(self._size(v) == self._size(node.inputs[0]) for v in node.outputs)
        if len(node.inputs) != 2:
            return False
        one, other = node.inputs
        same_dots = bool(self._last[one] & self._last[other])
        return same_dots and self._picked_from(one).isdisjoint(self._picked_from(other))

    def _picked_from(self, value: int) -> set[int]:
        """Returns the values of which another one has elements, as a maximum does."""
        walk, moved = Walk(self.graph, [value]), set[int]()
        for found, made in walk:
            if Trait.COMMUTES in made.traits:
                moved.add(found.index)
                walk.to(made.inputs)
        return walk.seen - moved

    def _size(self, value: int) -> int:
        return self.graph.values[value].size

    def _is_compared(self, node: Node) -> bool:
        """Checks if a sum reads the result of a node, or a difference from something else."""
        graph = self.graph
        queue, seen = [(v, r) for v in node.outputs for r, _ in graph.consumers[v]], set[int]()
        for value, reader in queue:
            if reader in seen:
                continue
            seen.add(reader)
            made = graph.nodes[reader]
            others = [v for v in made.inputs if v != value]
            if not made.traits.isdisjoint({Trait.SUMS, Trait.SUMS_AXES}):
                return True
            subtracts = Trait.SUBTRACTS in made.traits
            apart = (subtracts or scales(made)) and not follow(graph, others, node.outputs)
            if subtracts and apart:
                if not self._is_derivative(made):
                    return True
            elif subtracts and self._subtracts_parts(made):
                return True
            elif apart or not made.traits.isdisjoint({Trait.COMMUTES, Trait.SQUARES}):
                queue += [(v, next_) for v in made.outputs for next_, _ in graph.consumers[v]]
        return False

    def _is_derivative(self, node: Node) -> bool:
        """Checks if a node is ``1 - y`` in the first derivative of ``y``.

        There it multiplies once, by a cotangent or by ``y``, whose product a cotangent multiplies.
        The second derivative reads it again.
        """
        if self.graph.values[node.inputs[0]].constant is None:
            return False
        product = self._multiplied(node)
        if product is not None and node.inputs[1] in product.inputs:
            product = self._multiplied(product)
        return product is not None

    def _multiplied(self, node: Node) -> Node | None:
        """Returns the product that reads the result of a node, if nothing else does."""
        read = [self.graph.nodes[r] for v in node.outputs for r, _ in self.graph.consumers[v]]
        return read[0] if len(read) == 1 and Trait.MULTIPLIES in read[0].traits else None

    @functools.cached_property
    def _allowed(self) -> int:
        """The dots that are half."""
        allowed = self.classes.allowed
        return sum(bit for index, bit in self._bits.items() if index in allowed)

    @functools.cached_property
    def _bits(self) -> dict[int, int]:
        """The bit of each dot with a result, by the index of its node."""
        nodes = self.graph.nodes
        dots = [index for index in sorted(self.classes.dots(self.graph)) if nodes[index].outputs]
        return {index: 1 << number for number, index in enumerate(dots)}

    @functools.cached_property
    def _last(self) -> list[int]:
        """The last dots of each value."""
        found = [0] * len(self.graph.values)
        for node in self.graph.nodes:
            dots = self._bits.get(node.index, 0)
            if not dots:
                for more in map(found.__getitem__, node.inputs):
                    if more is not dots:  # most values share one number
                        dots = dots | more if dots else more
            for value in node.outputs:
                found[value] = dots
        return found

    @functools.cached_property
    def _reading(self) -> dict[tuple[int, int], int]:
        """By the origin of an operand and the size of the result, or any, the dots that read it."""
        found: dict[tuple[int, int], int] = {}
        for index, bit in self._bits.items():
            node = self.graph.nodes[index]
            for value in node.inputs:
                origin = self.source(value)
                for key in ((origin, self._size(node.outputs[0])), (origin, _ANY)):
                    found[key] = found.get(key, 0) | bit
        return found

    def _readers(self, other: int, value: int) -> int:
        """Returns the dots that read an operand and whose results are as large as a value."""
        return self._reading.get((self.source(other), self._known_size(value)), 0)

    def _known_size(self, value: int) -> int:
        sides = self.graph.values[value].shape
        return self._size(value) if all(isinstance(side, int) for side in sides) else _ANY

    @functools.cached_property
    def _in_network(self) -> set[int]:
        """The values with a next dot that is not the gradient of a last one."""
        found = set[int]()
        for node in reversed(self.graph.nodes):
            if node.index in self._bits:
                pairs = itertools.zip_longest(node.inputs, reversed(node.inputs[:2]))
                for value, other in pairs:
                    if other is None or not self._is_gradient(value, other):
                        found.add(value)
            elif not found.isdisjoint(node.outputs):
                found.update(node.inputs)
        return found

    @functools.cached_property
    def _carried(self) -> dict[int, int]:
        """The size of the largest value with which arithmetic alone leads to a next iteration."""
        carries = self.graph.having(Trait.CARRIES)
        found = {node.inputs[1]: self._size(node.inputs[1]) for node in carries}
        for node in reversed(self.graph.nodes if carries else ()):
            if node.index not in self._bits and not found.keys().isdisjoint(node.outputs):
                most = max(found.get(v, 0) for v in node.outputs)
                for value in node.inputs:
                    found[value] = max(found.get(value, 0), most)
        return found

    @functools.cached_property
    def _before_dots(self) -> set[int]:
        """The values that dots follow."""
        found = set[int]()
        for node in reversed(self.graph.nodes):
            if node.index in self._bits or not found.isdisjoint(node.outputs):
                found.update(node.inputs)
        return found

    def _dots_in(self, bits: int) -> Iterator[Node]:
        """Yields the dots of a set."""
        while bits:
            bit = bits & -bits
            yield self.graph.nodes[self._indices[bit.bit_length() - 1]]
            bits ^= bit

    @functools.cached_property
    def _final(self) -> int:
        """The half dots to which no other dots but gradients follow, and that are none."""
        found = sum(
            self._bits[dot.index]
            for dot in self._dots_in(self._allowed)
            if dot.outputs[0] not in self._in_network and not self._is_backward(dot)
        )
        return found & ~self._tied if found else 0

    @functools.cached_property
    def _tied(self) -> int:
        """The dots whose square weight may be that of a next layer.

        Its gradients with respect to both operands read one cotangent, and a next layer does not.
        """
        found, nodes = 0, self.graph.nodes
        dots = map(nodes.__getitem__, self._bits)
        pairs = {frozenset(map(self.source, dot.inputs[:2])) for dot in dots}
        for index in self._bits:
            size = self._size(nodes[index].outputs[0])
            for value, other in itertools.permutations(nodes[index].inputs[:2], 2):
                square = self._known_size(value) in (size, _ANY)
                bits = self._readers(other, value) & self._last[value] if square else 0
                for dot in self._dots_in(bits):
                    rest = set(map(self.source, dot.inputs[:2])) - {self.source(other)}
                    if any(frozenset({self.source(value), v}) not in pairs for v in rest):
                        found |= self._bits[dot.index]
        return found

    def _is_backward(self, dot: Node) -> bool:
        """Checks if a dot reads an operand of an earlier dot, and a later value of its size."""
        for value, other in zip(dot.inputs[:2], reversed(dot.inputs[:2]), strict=True):
            producer = self.graph.values[value].producer
            before = (1 << bisect.bisect_right(self._indices, producer)) - 1
            if self._readers(other, value) & before:
                return True
        return False

    @functools.cached_property
    def _indices(self) -> list[int]:
        """The indices of all dots, in order."""
        return list(self._bits)

    @functools.cached_property
    def _gradients(self) -> set[tuple[int, int]]:
        """For each gradient of a last dot, the origin of its cotangent and the size of its result.

        The gradient of such a gradient reads the same cotangent, and a value of that size, and so
        on: third derivatives have gradients of gradients of gradients.
        """
        found, grown = set[tuple[int, int]](), -1
        while len(found) > grown:
            grown = len(found)
            for node in map(self.graph.nodes.__getitem__, self._bits):
                for value, other in zip(node.inputs[:2], reversed(node.inputs[:2]), strict=True):
                    first = self._is_first_gradient(value, other)
                    if first or (self.source(value), self._size(other)) in found:
                        found.add((self.source(value), self._size(node.outputs[0])))
        return found

    def _is_gradient(self, value: int, other: int) -> bool:
        """Checks if a dot that reads two values is a gradient, or the gradient of a gradient."""
        first = self._is_first_gradient(value, other)
        return first or (self.source(value), self._size(other)) in self._gradients

    def _is_first_gradient(self, value: int, other: int) -> bool:
        """Checks if a dot that reads two values is the gradient of a last dot of the first one."""
        return bool(self._readers(other, value) & self._last[value])


def _part_of(graph: Graph, node: Node) -> int | None:
    """Returns the array that a node moves or picks a part of."""
    numbers = [v for v in node.inputs if graph.values[v].paintable]
    return numbers[0] if len(numbers) == 1 and Trait.MOVES in node.traits else None
