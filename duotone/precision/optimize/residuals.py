"""Residuals: what is calculated again where it is read, instead of being kept.

A value of the forward pass that the backward pass reads crosses memory twice, whatever its dtype. A
compiler calculates it again where that costs nothing, but keeps the results of transcendental
functions: of a GELU between two dots it keeps three or four arrays, though all of them follow from
the first dot's result, which is in memory anyway. Storing them in half does not help either, since
a compiler drops the rounding of a value that is rounded and widened again (see
``docs/measured.md``). So such a value is calculated again, from what the half dots gave, behind
a barrier that keeps the compiler from finding the first calculation.

::

    far reader   = a reader on a higher level (``levels.py``): never in one kernel with the producer
    chain(v)     = the pointwise operations that lead to v from roots: values that are in memory
                   anyway (results of other operations, operands of allow operations, arguments);
                   small values on the way are kept, constants are not counted
    v is calculated again for its far readers if its chain holds an operation whose result the
    device's compiler would keep, a transcendental one, and the roots that nothing else keeps are no
    more bytes than v

What was divided by its sum, and dots read the quotient now and later, is calculated from that
quotient: of a softmax neither exponentials nor scores are kept then.

What is cheap throughout is left to the compiler, which does the same unasked. On a TPU, whose dots
and convolutions calculate their operands themselves, that is nearly everything: a barrier would
only have written what is in no memory at all. What the user named
(``jax.ad_checkpoint.checkpoint_name``) is kept. Nothing but pointwise operations is ever calculated
again: nothing random and nothing with effects.

References:
    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016), and ``jax.checkpoint``, of
    which this is the case that costs no dot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from duotone.graph.graph import SMALL, Graph, Node, Value
from duotone.ops.entries import Pointwise
from duotone.ops.traits import Trait
from duotone.precision.optimize.painted_view import View

_LONGEST_CHAIN = 48


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """A value that is calculated again as ``quotient * (divisor / sum(quotient))``.

    The quotient was rounded, so its sum is not quite 1. Gradients of a softmax are differences from
    a mean weighted with it: were that not divided by the sum, all of the mean would count in them.

    Attributes:
        quotient: of the value and its sum.
        divisor: its sum; ``None`` where its scale does not matter (``scale.py``).
        axes: along which it was added up.
    """

    quotient: int
    divisor: int | None
    axes: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Recompute:
    """The values that are calculated again, and for whom.

    Attributes:
        reads: for each (node, value) that takes the second calculation, its place. A place is one
            level of one body: what is calculated again there is shared.
        again: for each place, the values that are calculated again.
        roots: for each place, the large values from which they are calculated.
        products: values that are calculated again from two others, a quotient of them and its
            divisor, their sum along some axes.
        halved: roots that are taken in half though they are stored full, since all read them so.
        firm: roots of exponentials, of which all readers must see the same rounded numbers, on a
            device whose compiler leaves roundings out: exponentials of a logit and of the rounded
            logit are far apart, and their difference is a gradient where a prediction is sure.
    """

    reads: Mapping[tuple[int, int], int]
    again: Mapping[int, frozenset[int]]
    roots: Mapping[int, frozenset[int]]
    products: Mapping[int, Product] = dataclasses.field(default_factory=dict)
    halved: frozenset[int] = frozenset()
    firm: frozenset[int] = frozenset()
    rows: frozenset[int] = frozenset()

    @property
    def again_anywhere(self) -> frozenset[int]:
        """The values that are calculated again somewhere."""
        return frozenset().union(*self.again.values())

    def told(self, on: frozenset[str]) -> Iterator[tuple[int, str, str]]:
        """For each value that is not as it was: the value, the name of the optimization, and why.

        Args:
            on: the names of the optimizations in effect.
        """
        again = "recompute" if "recompute" in on else "recompute_very_expensive"
        for value in sorted(self.again_anywhere):
            if value in self.products:
                yield (
                    value,
                    "normalized_softmax",
                    "not kept: recomputed from its quotient and its sum",
                )
                if self.products[value].divisor is None:
                    yield value, "free_scales", "its sum is not kept: later readers need no scale"
            elif value in self.rows:
                yield value, "row_statistics", "not kept: calculated again with the exponentials"
            else:
                yield value, again, "not kept: calculated again for later readers"
        for value in sorted(self.firm):
            yield value, "rounded_once", "rounded for all that read it, not for some"

    def nodes(self, graph: Graph) -> set[int]:
        """The nodes that must be carried out one by one: readers, and what they read comes from."""
        found = {reader for reader, _ in self.reads}
        for value in self.again_anywhere:
            maker = graph.values[value].producer
            found.add(maker)
            found.update(graph.values[operand].producer for operand in graph.nodes[maker].inputs)
        return found


NOTHING = Recompute({}, {}, {})


def plan_residuals(view: View, on: frozenset[str]) -> Recompute:
    """Finds the values that are cheaper to calculate again than to keep.

    Args:
        view: the program.
        on: the names of the optimizations in effect: what the device's compiler keeps
            (``recompute``, ``recompute_very_expensive``), whether ``normalized_softmax`` are taken,
            and whether it leaves the rounding of what is read at once out (``rounded_once``).

    Returns:
        The reads that take a second calculation, and what that needs.
    """
    expensive = {kind for kind, names in _KEPT.items() if not on.isdisjoint(names)}
    if not expensive:
        return NOTHING
    found = _Planner(view, expensive, normalized="normalized_softmax" in on).plan()
    if "rounded_once" not in on:
        return found
    exponential = (
        found.roots[place]
        for place, values in found.again.items()
        if any(_grows(view.graph, value) for value in values - found.products.keys())
    )
    return dataclasses.replace(found, firm=frozenset().union(*exponential))


_KEPT = {
    Pointwise.EXPENSIVE: ("recompute",),
    Pointwise.VERY_EXPENSIVE: ("recompute", "recompute_very_expensive"),
}
"""By kind of operation: the optimizations that recompute its result, which compilers keep."""


_SCALES = frozenset({Trait.FLIPS, Trait.MULTIPLIES, Trait.DIVIDES})


def _grows(graph: Graph, value: int) -> bool:
    """True if a value is an exponential, and no bell curve (the derivative of an exact GELU)."""
    node = graph.nodes[graph.values[value].producer]
    if Trait.EXPONENTIAL not in node.traits:
        return False
    while (producer := graph.values[node.inputs[0]].producer) >= 0:
        node = graph.nodes[producer]
        if Trait.SQUARES in node.traits or "exponent" in node.attributes:
            return False
        if node.traits.isdisjoint(_SCALES):
            break
    return True


class _Planner:
    """The analysis of one program; values are looked at in program order."""

    def __init__(self, view: View, expensive: Collection[Pointwise], *, normalized: bool) -> None:
        self.view = view
        self.graph = graph = view.graph
        self.classes = view.classes
        self.expensive = expensive
        self.normalized = normalized
        self.readers = graph.consumers
        self.levels = view.levels
        nodes = self.levels.nodes
        self.furthest = [max((nodes[r] for r, _ in rs), default=0) for rs in self.readers]
        self.kept: set[int] = {value for value, _ in graph.outputs}
        self.places: dict[tuple[int, int], int] = {}
        self.reads: dict[tuple[int, int], int] = {}
        self.again: dict[int, set[int]] = {}
        self.roots: dict[int, set[int]] = {}
        self.products: dict[int, Product] = {}
        for node in graph.nodes:
            if self.levels.anchors[node.index]:
                self.kept.update(node.inputs)
            if Trait.NAMES in node.traits:
                self.kept.update(node.outputs)

    def plan(self) -> Recompute:
        """One pass over all values, in program order."""
        for node in self.graph.nodes:
            for value in node.outputs:
                far = self._far_readers(value)
                if far:
                    self._decide(node, self.graph.values[value], far)
        self._share()
        return Recompute(
            self.reads,
            {place: frozenset(values) for place, values in self.again.items()},
            {place: frozenset(values) for place, values in self.roots.items()},
            self.products,
            frozenset(
                made.quotient
                for made in self.products.values()
                if self._is_read_half(made.quotient)
            ),
        )

    def _share(self) -> None:
        """Lets all far readers at a place read what is recomputed there, cheap or expensive."""
        for node in self.graph.nodes:
            place = self.places.get((node.body, self.levels.nodes[node.index]))
            if place is None or not self._may_read_again(node.index, node.body):
                continue
            for value in node.inputs:
                far = self.levels.is_far(value, node.index)
                if far and self._follows(value, place, node.body):
                    self.reads[node.index, value] = place

    def _follows(self, value: int, place: int, body: int) -> bool:
        """True if a value is calculated again at a place, or can be from what is there.

        A value of the program around is not: what it is made from may not be handed in.
        """
        if value in self.again[place]:
            return True
        producer = self.graph.values[value].producer
        if producer < 0 or value in self.kept or self.graph.values[value].body != body:
            return False
        found = self._chain(self.graph.nodes[producer], self.graph.values[value])
        if found is None or not found[1] or not found[1] <= self.roots[place]:
            return False
        self.again[place] |= found[0]
        return True

    def _has_far_readers(self, value: int) -> bool:
        return self.furthest[value] > self.levels.values[value]

    def _far_readers(self, value: int) -> list[int]:
        if not self._has_far_readers(value):
            return []
        return [reader for reader, _ in self.readers[value] if self.levels.is_far(value, reader)]

    def _decide(self, node: Node, value: Value, far: list[int]) -> None:
        """Keeps a value with far readers, calculates it again for them, or leaves it alone."""
        found = self._chain(node, value)
        if found is None or value.index in self.kept:
            self.kept.add(value.index)
            return
        chain, roots = found
        if not any(self._pointwise(made) in self.expensive for made in chain):
            if len(roots) > 1:
                self.kept.add(value.index)
            return
        needed = sum(self._bytes(root) for root in roots if not self._is_kept(root))
        here = all(self._may_read_again(reader, node.body) for reader in far)
        # A key, a token or a reference is not hidden from the compiler.
        numbers = all(self._bytes(root) for root in roots)
        may = self.normalized and needed and here and numbers
        if may and (product := self._product(node, value, far)):
            self.products[value.index] = product
            chain, roots, needed = {value.index}, {product.quotient}, 0
        if not (here and roots and numbers) or needed > self._bytes(value.index):
            self.kept.add(value.index)
            return
        self.kept.update(roots)
        for reader in far:
            level = self.levels.nodes[reader]
            place = self.places.setdefault((node.body, level), len(self.places))
            self.reads[reader, value.index] = place
            self.again.setdefault(place, set()).update(chain)
            self.roots.setdefault(place, set()).update(roots)

    def _product(self, node: Node, value: Value, far: list[int]) -> Product | None:
        """A quotient that is in memory anyway, from which a value is calculated.

        Of the exponentials of a softmax, dots read the quotient, now and later. Only where ranges
        say that half holds the value (so its sum is finite), divided by its sum (so that the
        quotient is as exact as anything that the value is weighed with), and only multiplied with.
        """
        multiplied = all(Trait.MULTIPLIES in self.graph.nodes[reader].traits for reader in far)
        if not multiplied or not self.classes.nodes[node.index].stores_half:
            return None
        for reader, slot in self.readers[value.index]:
            by = self.graph.nodes[reader]
            if (
                Trait.DIVIDES not in by.traits
                or slot
                or by.body != node.body
                or by.index > min(far)
            ):
                continue
            quotient, divisor = by.outputs[0], by.inputs[1]
            small = self._costs_nothing(self.graph.values[divisor], value)
            axes = self._summed_axes(divisor, value.index)
            if small and axes and self._is_kept(quotient):
                return Product(quotient, divisor, axes)
        return None

    def _summed_axes(self, divisor: int, value: int) -> tuple[int, ...]:
        """The axes along which ``divisor`` is a sum of ``value``, reshaped at most."""
        while (producer := self.graph.values[divisor].producer) >= 0:
            node = self.graph.nodes[producer]
            if Trait.SUMS_AXES in node.traits and node.inputs[0] == value:
                axes = node.attributes.get("axes", ())
                return axes if isinstance(axes, tuple) else ()
            if Trait.RESHAPES not in node.traits:
                break
            divisor = node.inputs[0]
        return ()

    def _is_read_half(self, value: int) -> bool:
        """True if all that read a value read it in half."""
        return all(self.view.computes_half(reader) for reader, _ in self.view.readers(value))

    def _may_read_again(self, reader: int, body: int) -> bool:
        node = self.graph.nodes[reader]
        compares = Trait.EQUALITY in self.classes.nodes[reader].entry.traits
        return node.body == body and Trait.STRUCTURAL not in node.traits and not compares

    def _is_kept(self, value: int) -> bool:
        """True if a value is in memory for far readers whatever is decided here."""
        return value in self.kept and self._has_far_readers(value)

    def _chain(self, node: Node, value: Value) -> tuple[set[int], set[int]] | None:
        """The values to calculate again for one value, it included, and their large roots."""
        chain: set[int] = set()
        roots: set[int] = set()
        stack = [value.index]
        while stack:
            index = stack.pop()
            held = self.graph.values[index]
            if index in chain or index in roots or self._costs_nothing(held, value):
                continue
            if index != value.index and index in self.kept:
                roots.add(index)
            elif index in self.products:
                chain.add(index)
                roots.add(self.products[index].quotient)
            elif held.body == node.body and self._pointwise(index) is not Pointwise.NO:
                chain.add(index)
                stack.extend(self.graph.nodes[held.producer].inputs)
            else:
                roots.add(index)
            if len(chain) > _LONGEST_CHAIN:
                return None
        return (chain, roots) if chain else None

    def _costs_nothing(self, held: Value, value: Value) -> bool:
        """True if an operand is read as it is: it is small, or not in memory at all."""
        if held.index == value.index:
            return False
        if held.constant is not None or not held.shape:
            return True
        return held.size * SMALL <= value.size

    def _pointwise(self, value: int) -> Pointwise:
        producer = self.graph.values[value].producer
        single = producer >= 0 and len(self.graph.nodes[producer].outputs) == 1
        if not single:
            return Pointwise.NO
        return self.classes.nodes[producer].entry.pointwise

    def _bytes(self, value: int) -> int:
        return self.view.value(value).bytes(half=self.view.is_stored_half(value))
