"""Residuals: values of the forward pass that the backward pass recomputes instead of keeping.

A value of the forward pass that the backward pass reads crosses memory twice. A compiler
recomputes it if that costs nothing, but it keeps the results of transcendental functions. For a
GELU between two dots it keeps three or four arrays, although all of them follow from the first
dot's result, which is in memory anyway. Storing them in half does not help, since a compiler
removes the rounding of a value that is rounded and widened again (see ``docs/measured.md``). So
the program recomputes such a value from the half results of dots. It reads these through a
barrier, which keeps the compiler from reusing the first computation.

::

    far reader   = a reader on a higher level (``levels.py``): never in one kernel with the producer
    chain(v)     = the pointwise operations that lead to v from roots. Roots are values that are in
                   memory anyway: results of other operations, operands of allow operations,
                   arguments. Small values on the way are kept; constants do not count.
    v is recomputed for its far readers if its chain contains an operation whose result the device's
    compiler would keep (a transcendental one), and the roots that nothing else keeps have no more
    bytes than v

If dots read a normalized softmax, now and later, its exponentials are recomputed from it. Then
neither the exponentials nor the scores are kept.

The compiler recomputes a chain of cheap operations without being asked. On a TPU, whose dots and
convolutions compute their operands themselves, this covers nearly every value. Values that the user
named (``jax.ad_checkpoint.checkpoint_name``) are kept. Only pointwise operations are recomputed, so
nothing random and nothing with effects is.

References:
    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016), and ``jax.checkpoint``.
    This module handles the case that recomputes no dot.
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
    """A value that is recomputed as ``normalized * (divisor / sum(normalized))``.

    The normalized value was rounded, so its sum is not quite 1. The gradient of a softmax subtracts
    a mean weighted with it. Without the division by the sum, that mean would carry its error.

    Attributes:
        normalized: the index of the value divided by its sum.
        divisor: the index of the sum.
        axes: the axes of the sum.
    """

    normalized: int
    divisor: int
    axes: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """One level of one body; its far readers share the values that are recomputed there.

    Attributes:
        body: index of the body.
        level: the level of the readers.
        recomputed: the values that are recomputed.
        roots: the large values from which they are recomputed.
    """

    body: int
    level: int
    recomputed: frozenset[int] = frozenset()
    roots: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Recompute:
    """The values that are recomputed, and the reads that take them.

    Attributes:
        reads: for each (node, value) that reads a recomputed value, the index of its site.
        sites: the sites.
        products: the values that are recomputed from a normalized value.
        halved: roots that are stored full but read in half, since all their readers read them so.
        rounded_once: the roots of recomputed exponentials, on a device whose compiler removes
            roundings. All their readers must see the same rounded numbers: exponentials of a logit
            and of the rounded logit are far apart, and their difference is a gradient if a
            prediction is sure.
        statistics: recomputed maxima and sums of rows (``row_statistics.py``).
        ones: sums that count as 1, since the scale of what they sum does not matter
            (``free_scales.py``): divisors of products, and what those are reshapes of.
    """

    reads: Mapping[tuple[int, int], int] = dataclasses.field(default_factory=dict)
    sites: tuple[Site, ...] = ()
    products: Mapping[int, Product] = dataclasses.field(default_factory=dict)
    halved: frozenset[int] = frozenset()
    rounded_once: frozenset[int] = frozenset()
    statistics: frozenset[int] = frozenset()
    ones: frozenset[int] = frozenset()

    @property
    def recomputed(self) -> frozenset[int]:
        """The values that any site recomputes."""
        return frozenset().union(*(site.recomputed for site in self.sites))

    def reasons(self, on: frozenset[str]) -> Iterator[tuple[int, str, str]]:
        """Yields each value that changes, the name of the optimization, and the reason.

        Args:
            on: the names of the optimizations in effect.
        """
        general = "recompute" if "recompute" in on else "recompute_very_expensive"
        for value in sorted(self.recomputed):
            if value in self.products:
                reason = "not kept: recomputed from the normalized softmax and its sum"
                yield value, "normalized_softmax", reason
                if self.products[value].divisor in self.ones:
                    yield value, "free_scales", "its sum is not kept: later readers need no scale"
            elif value in self.statistics:
                yield value, "row_statistics", "not kept: recomputed with the exponentials"
            else:
                yield value, general, "not kept: recomputed for later readers"
        for value in sorted(self.rounded_once):
            yield value, "rounded_once", "rounded for all its readers, not for some"

    def nodes(self, graph: Graph) -> set[int]:
        """Returns the nodes to apply one by one: readers, and the makers of what they read."""
        found = {reader for reader, _ in self.reads}
        for value in self.recomputed:
            maker = graph.values[value].producer
            found.add(maker)
            found.update(graph.values[operand].producer for operand in graph.nodes[maker].inputs)
        return found


NOTHING = Recompute()


def plan_residuals(view: View, on: frozenset[str]) -> Recompute:
    """Finds the values that are cheaper to recompute than to keep.

    Args:
        view: the program.
        on: the names of the optimizations in effect: which results the device's compiler keeps
            (``recompute``, ``recompute_very_expensive``), whether to use ``normalized_softmax``,
            and whether the compiler removes roundings (``rounded_once``).

    Returns:
        The reads that take a recomputed value, and the sites that recompute it.
    """
    expensive = {kind for kind, names in _KEPT.items() if not on.isdisjoint(names)}
    if not expensive:
        return NOTHING
    found = _Planner(view, expensive, normalized="normalized_softmax" in on).plan()
    if "rounded_once" not in on:
        return found
    exponential = (
        site.roots
        for site in found.sites
        if any(_grows(view.graph, value) for value in site.recomputed - found.products.keys())
    )
    return dataclasses.replace(found, rounded_once=frozenset().union(*exponential))


_KEPT = {
    Pointwise.EXPENSIVE: ("recompute",),
    Pointwise.VERY_EXPENSIVE: ("recompute", "recompute_very_expensive"),
}
"""The optimizations that recompute a kept result, by the cost of its operation."""


def _grows(graph: Graph, value: int) -> bool:
    """Checks if a value is an exponential, and no bell curve (the derivative of an exact GELU)."""
    node = graph.nodes[graph.values[value].producer]
    if Trait.EXPONENTIAL not in node.traits:
        return False
    while (producer := graph.values[node.inputs[0]].producer) >= 0:
        node = graph.nodes[producer]
        if Trait.SQUARES in node.traits or "exponent" in node.attributes:
            return False
        if node.traits.isdisjoint({Trait.FLIPS, Trait.MULTIPLIES, Trait.DIVIDES}):
            break
    return True


@dataclasses.dataclass(slots=True)
class _OpenSite:
    """A :class:`Site` to which the planner still adds values."""

    index: int
    recomputed: set[int] = dataclasses.field(default_factory=set)
    roots: set[int] = dataclasses.field(default_factory=set)


class _Planner:
    """The analysis of one program; it visits values in program order.

    Attributes:
        far: values with readers that need them in memory, or recomputed.
        kept: values that are in memory for their far readers, if they have any.
        sites: the sites, by body and level.
        reads: as in :class:`Recompute`.
        products: as in :class:`Recompute`.
    """

    def __init__(self, view: View, expensive: Collection[Pointwise], *, normalized: bool) -> None:
        self.view = view
        self.graph = graph = view.graph
        self.classes = view.classes
        self.expensive = expensive
        self.normalized = normalized
        self.readers = graph.consumers
        self.levels = view.levels
        nodes, heights = self.levels.nodes, self.levels.values
        furthest = (max([nodes[r] for r, _ in rs], default=0) for rs in self.readers)
        pairs = enumerate(zip(furthest, heights, strict=True))
        self.far = {value for value, (level, height) in pairs if level > height}
        self.kept: set[int] = {value for value, _ in graph.outputs}
        self.sites: dict[tuple[int, int], _OpenSite] = {}
        self.reads: dict[tuple[int, int], int] = {}
        self.products: dict[int, Product] = {}
        for node in graph.nodes:
            if self.levels.anchors[node.index]:
                self.kept.update(node.inputs)
            if Trait.NAMES in node.traits:
                self.kept.update(node.outputs)

    def plan(self) -> Recompute:
        """Decides on all values in program order, then shares the recomputed ones."""
        for node in self.graph.nodes:
            for value in node.outputs:
                if value in self.far:
                    self._decide(node, self.graph.values[value], self._far_readers(value))
        self._share()
        sites = (
            Site(body, level, frozenset(site.recomputed), frozenset(site.roots))
            for (body, level), site in self.sites.items()
        )
        normalized = (product.normalized for product in self.products.values())
        halved = frozenset(value for value in normalized if self._is_read_half(value))
        return Recompute(self.reads, tuple(sites), self.products, halved)

    def _share(self) -> None:
        """Lets all far readers at a site read the values recomputed there, cheap ones too."""
        readers = {reader for value in self.far for reader in self._far_readers(value)}
        for node in map(self.graph.nodes.__getitem__, sorted(readers)):
            site = self.sites.get((node.body, self.levels.nodes[node.index]))
            if site is None or not self._may_read_recomputed(node.index, node.body):
                continue
            for value in node.inputs:
                far = self.levels.is_far(value, node.index)
                if far and self._is_available(value, site, node.body):
                    self.reads[node.index, value] = site.index

    def _is_available(self, value: int, site: _OpenSite, body: int) -> bool:
        """Returns True if a site recomputes a value, or can recompute it from its roots.

        A value of another body is not available, since its operands may not enter this one.
        """
        if value in site.recomputed:
            return True
        producer = self.graph.values[value].producer
        if producer < 0 or value in self.kept or self.graph.values[value].body != body:
            return False
        found = self._chain(self.graph.nodes[producer], self.graph.values[value])
        if found is None or not found[1] or not found[1] <= site.roots:
            return False
        site.recomputed |= found[0]
        return True

    def _far_readers(self, value: int) -> list[int]:
        return [reader for reader, _ in self.readers[value] if self.levels.is_far(value, reader)]

    def _decide(self, node: Node, value: Value, far: list[int]) -> None:
        """Keeps a value with far readers, recomputes it for them, or leaves it to the compiler."""
        found = self._chain(node, value)
        if found is None or value.index in self.kept:
            self.kept.add(value.index)
            return
        chain, roots = found
        if not any(self._pointwise(made) in self.expensive for made in chain):
            if len(roots) > 1:
                self.kept.add(value.index)
            return
        added = sum(self._bytes(root) for root in roots if not self._is_kept(root))
        readable = all(self._may_read_recomputed(reader, node.body) for reader in far)
        # A barrier does not hide a key, a token or a reference from the compiler.
        numbers = all(self._bytes(root) for root in roots)
        may = self.normalized and added and readable and numbers
        if may and (product := self._product(node, value, far)):
            self.products[value.index] = product
            chain, roots, added = {value.index}, {product.normalized}, 0
        if not (readable and roots and numbers) or added > self._bytes(value.index):
            self.kept.add(value.index)
            return
        self.kept.update(roots)
        for reader in far:
            key = node.body, self.levels.nodes[reader]
            site = self.sites.setdefault(key, _OpenSite(len(self.sites)))
            self.reads[reader, value.index] = site.index
            site.recomputed |= chain
            site.roots |= roots

    def _product(self, node: Node, value: Value, far: list[int]) -> Product | None:
        """Returns a normalized value in memory from which a value can be recomputed.

        Dots read the exponentials of a softmax normalized, now and later. This requires that the
        value fits half, so that its sum is finite; that the normalized value is as exact as other
        weights, so that its divisor is the sum; and that far readers only multiply the value.
        """
        multiplied = all(Trait.MULTIPLIES in self.graph.nodes[reader].traits for reader in far)
        if not multiplied or not self.classes.nodes[node.index].stores_half:
            return None
        for reader, slot in self.readers[value.index]:
            division = self.graph.nodes[reader]
            divides = Trait.DIVIDES in division.traits and not slot
            if not divides or division.body != node.body or division.index > min(far):
                continue
            normalized, divisor = division.outputs[0], division.inputs[1]
            small = self._costs_nothing(self.graph.values[divisor], value)
            axes = self._summed_axes(divisor, value.index)
            if small and axes and self._is_kept(normalized):
                return Product(normalized, divisor, axes)
        return None

    def _summed_axes(self, divisor: int, value: int) -> tuple[int, ...]:
        """Returns the axes along which ``divisor`` is a sum of ``value``, reshaped at most."""
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
        """Returns True if all readers of a value read it in half."""
        return all(self.view.computes_half(reader) for reader, _ in self.view.readers(value))

    def _may_read_recomputed(self, reader: int, body: int) -> bool:
        node = self.graph.nodes[reader]
        compares = Trait.EQUALITY in self.classes.nodes[reader].entry.traits
        return node.body == body and Trait.STRUCTURAL not in node.traits and not compares

    def _is_kept(self, value: int) -> bool:
        """Returns True if a value is in memory for far readers whatever is decided here."""
        return value in self.kept and value in self.far

    def _chain(self, node: Node, value: Value) -> tuple[set[int], set[int]] | None:
        """Returns the values to recompute for one value, including it, and their large roots."""
        chain, roots = set[int](), set[int]()
        stack = [value.index]
        while stack:
            index = stack.pop()
            operand = self.graph.values[index]
            if index in chain or index in roots or self._costs_nothing(operand, value):
                continue
            if index != value.index and index in self.kept:
                roots.add(index)
            elif index in self.products:
                chain.add(index)
                roots.add(self.products[index].normalized)
            elif operand.body == node.body and self._pointwise(index) is not Pointwise.NO:
                chain.add(index)
                stack.extend(self.graph.nodes[operand.producer].inputs)
            else:
                roots.add(index)
            if len(chain) > _LONGEST_CHAIN:
                return None
        return (chain, roots) if chain else None

    def _costs_nothing(self, operand: Value, value: Value) -> bool:
        """Checks if reading an operand costs nothing next to ``value``: it is small or constant."""
        if operand.index == value.index:
            return False
        is_number = operand.constant is not None or not operand.shape
        return is_number or operand.size * SMALL <= value.size

    def _pointwise(self, value: int) -> Pointwise:
        producer = self.graph.values[value].producer
        single = producer >= 0 and len(self.graph.nodes[producer].outputs) == 1
        return self.classes.nodes[producer].entry.pointwise if single else Pointwise.NO

    def _bytes(self, value: int) -> int:
        return self.view.value(value).bytes(half=self.view.is_stored_half(value))
