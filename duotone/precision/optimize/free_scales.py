"""Scale: the factor that cancels in the gradient of a softmax, and what it saves to leave it out.

::

    e, s = exp(x - max), sum(e)                of the forward pass
    f(e, s) = e * (g / s - sum(g * e / s^2))   of the backward pass: f(c * e, c * s) = f(e, s)

What is calculated again from the quotient ``e / s`` (``residuals.py``) is divided by its sum; only
a product with ``s`` takes it back to the scale of ``e``. Where that factor cancels in all that the
backward pass makes of ``e`` and ``s``, it is left out, and ``s`` is added up again too. So nothing
outside of the softmax reads the sum, and a compiler makes one kernel of it where it would add up in
one and divide in another. A row must fit into one kernel for that.

::

    power(v)   = n where v is proportional to c ** n: 1 for e and its sum, the sum of the powers
                 for a product, the difference for a quotient
    the factor cancels if every far reader of a value with a power other than 0 has a power, and
    no such value leaves the program
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

from duotone.graph.graph import FULL_DTYPE, SMALL, Node
from duotone.ops.traits import Trait
from duotone.precision.optimize.painted_view import View
from duotone.precision.optimize.residuals import Product, Recompute
from duotone.precision.optimize.row_statistics import fits_kernel

FREE_SCALES = "free_scales"
"""The name of this optimization."""
_LIKE_OPERAND = frozenset({Trait.RESHAPES, Trait.TRANSPOSES, Trait.FLIPS, Trait.SUMS_AXES})


def without_scale(view: View, found: Recompute, on: frozenset[str]) -> Recompute:
    """Leaves the scale of exponentials that are calculated again as their quotient has it.

    Args:
        view: the program.
        found: what is calculated again.
        on: the names of the optimizations in effect.

    Returns:
        The same, with products without a divisor where the factor cancels.
    """
    if FREE_SCALES not in on:
        return found
    for value, made in found.products.items():
        if fits_kernel(view, value, made.axes):
            found = _Factor(view, value).cancelled(found, made)
    return found


class _Factor:
    """A common factor of a value and all that is proportional to a power of it.

    Attributes:
        powers: by value, how the factor stands in it; 0 where it cancels.
        reads: each (node, value) that is to take the second calculation.
    """

    def __init__(self, view: View, value: int) -> None:
        self.view = view
        self.value = value
        self.powers: dict[int, int] = {value: 1}
        self.reads: list[tuple[int, int]] = []
        self._second: set[int] = set()

    def cancelled(self, found: Recompute, made: Product) -> Recompute:
        """The plan without the factor; ``found`` itself where it does not cancel."""
        again = self._again(found) if self._cancels() else None
        if again is None:
            return found
        graph, levels = self.view.graph, self.view.levels.nodes
        of_level = {(graph.nodes[n].body, levels[n]): p for (n, _), p in found.reads.items()}
        reads, values, roots = dict(found.reads), dict(found.again), dict(found.roots)
        for reader, value in self.reads:
            key = graph.nodes[reader].body, levels[reader]
            place = reads[reader, value] = of_level.setdefault(key, len(of_level))
            values[place] = values.get(place, frozenset()) | {self.value}
            roots[place] = roots.get(place, frozenset()) | {made.quotient}
        for place, beside in values.items():
            values[place] = beside | again if self.value in beside else beside
        products = {**found.products, self.value: dataclasses.replace(made, divisor=None)}
        return dataclasses.replace(found, reads=reads, again=values, roots=roots, products=products)

    def _cancels(self) -> bool:
        """Goes through all that is made of the value, in program order; true if it cancels."""
        graph, levels = self.view.graph, self.view.levels
        body = graph.values[self.value].body
        waiting = [reader for reader, _ in graph.consumers[self.value]]
        heapq.heapify(waiting)
        seen: set[int] = set()
        while waiting:
            node = graph.nodes[heapq.heappop(waiting)]
            if node.index in seen:
                continue
            seen.add(node.index)
            read = [value for value in node.inputs if self.powers.get(value)]
            far = [v for v in read if v not in self._second and levels.is_far(v, node.index)]
            second = len(far) + len(self._second.intersection(read))
            power = self._power(node) if node.body == body else None
            if power is None and not second:
                continue  # of the first calculation: it reads the true numbers
            if power is None or 0 < second < len(read):
                return False
            self.reads.extend((node.index, value) for value in far)
            made = node.outputs[0]
            self.powers[made] = power
            if power:
                for reader, _ in graph.consumers[made]:
                    heapq.heappush(waiting, reader)
                if second:
                    self._second.add(made)
        return self._second.isdisjoint(value for value, _ in graph.outputs)

    def _power(self, node: Node) -> int | None:
        """How the factor stands in a node's result; ``None`` where it is no plain power of it.

        Half numbers would leave their range with the factor.
        """
        one = len(node.outputs) == 1 and Trait.STRUCTURAL not in node.traits
        if not one or self.view.computes_half(node):
            return None
        made = node.outputs[0]
        power = self._power_of(node, [self.powers.get(value, 0) for value in node.inputs])
        full = self.view.value(made).dtype == FULL_DTYPE and not self.view.is_stored_half(made)
        return power if full or not power else None

    def _power_of(self, node: Node, powers: Sequence[int]) -> int | None:
        traits = node.traits
        if not traits.isdisjoint(_LIKE_OPERAND):
            return powers[0]
        if Trait.MULTIPLIES in traits:
            return sum(powers)
        if Trait.DIVIDES in traits:
            return powers[0] - powers[1]
        if Trait.ADDS in traits:
            return powers[0] if len(set(powers)) == 1 else None
        if Trait.SQUARES in traits:
            return 2 * powers[0]
        exponent = node.attributes.get("exponent")
        return round(powers[0] * exponent) if isinstance(exponent, float) else None

    def _again(self, found: Recompute) -> frozenset[int] | None:
        """The values to calculate again beside it: small, made of it and of numbers.

        They are read later, or by what is calculated again already. ``None`` if one is not such.
        """
        values, nodes = self.view.graph.values, self.view.graph.nodes
        stack = [value for _, value in self.reads]
        for again in found.again.values():
            for value in again - {self.value}:
                read = [v for v in nodes[values[value].producer].inputs if self.powers.get(v)]
                if read and (self.powers.get(value) != 0 or self.value not in again):
                    return None
                stack.extend(read)
        beside: set[int] = set()
        while stack:
            index = stack.pop()
            if index == self.value or index in beside or values[index].constant is not None:
                continue
            small = values[index].size * SMALL <= values[self.value].size
            if not small or not self.powers.get(index):
                return None
            beside.add(index)
            stack.extend(nodes[values[index].producer].inputs)
        return frozenset(beside)
