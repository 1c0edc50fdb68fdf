"""Free scales: leaves out a factor of a recomputed softmax that cancels in its gradient.

::

    e, s = exp(x - max), sum(e)                of the forward pass
    f(e, s) = e * (g / s - sum(g * e / s^2))   of the backward pass: f(c * e, c * s) = f(e, s)

The backward pass recomputes ``e`` as the normalized softmax ``e / s`` times ``s``
(``residuals.py``). If the factor ``s`` cancels in all results that the backward pass computes
from ``e`` and ``s``, this module leaves the product out, and ``s`` is 1, the sum of ``e / s``. Then
nothing outside of the softmax reads the sum, so a compiler makes one kernel of the softmax,
instead of one that sums and another that divides. This requires that a row fits into one kernel.

::

    power(v)   = n where v is proportional to c ** n: 1 for e and its sum, the sum of the powers
                 for a product, the difference for a quotient
    the factor cancels if every far reader of a value with a power other than 0 has a power, and
    no such value leaves the program
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence

from duotone.graph.graph import FULL_DTYPE, SMALL, Node
from duotone.ops.traits import Trait
from duotone.precision.optimize.painted_view import View
from duotone.precision.optimize.residuals import Product, Recompute, Site
from duotone.precision.optimize.row_statistics import fits_kernel

FREE_SCALES = "free_scales"
"""The name of this optimization."""


def without_scale(view: View, found: Recompute, on: frozenset[str]) -> Recompute:
    """Leaves out the scale of recomputed exponentials if it cancels.

    Args:
        view: the program.
        found: the values that are recomputed.
        on: the names of the optimizations in effect.

    Returns:
        The same plan, in which products whose factor cancels have no divisor.
    """
    if FREE_SCALES not in on:
        return found
    for value, product in found.products.items():
        scaled = _scaled(view, value) if fits_kernel(view, value, product.axes) else None
        small = None if scaled is None else _small_values(view, found, scaled)
        if scaled is not None and small is not None:
            found = _without_divisor(view, found, scaled, product, small)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Scaled:
    """A value with a common factor, and the values that are proportional to a power of it.

    Attributes:
        value: the value itself.
        powers: by value, the power of the factor in it; 0 where the factor cancels.
        reads: each (node, value) that must read the recomputed value.
    """

    value: int
    powers: Mapping[int, int]
    reads: Sequence[tuple[int, int]]


def _scaled(view: View, value: int) -> _Scaled | None:
    """Follows a factor of ``value`` in program order; ``None`` if it does not cancel."""
    graph, levels = view.graph, view.levels
    body = graph.values[value].body
    powers = {value: 1}
    reads: list[tuple[int, int]] = []
    follow_recomputed: set[int] = set()  # values that are made of the recomputed ones
    waiting = [reader for reader, _ in graph.consumers[value]]
    heapq.heapify(waiting)
    seen: set[int] = set()
    while waiting:
        node = graph.nodes[heapq.heappop(waiting)]
        if node.index in seen:
            continue
        seen.add(node.index)
        read = [operand for operand in node.inputs if powers.get(operand)]
        recomputed = follow_recomputed.intersection(read)
        far = [v for v in read if v not in recomputed and levels.is_far(v, node.index)]
        count = len(far) + len(recomputed)
        power = _power(view, node, powers) if node.body == body else None
        if power is None and not count:
            continue  # it reads the values of the first computation
        if power is None or 0 < count < len(read):
            return None
        reads.extend((node.index, operand) for operand in far)
        made = node.outputs[0]
        powers[made] = power
        if power:
            for reader, _ in graph.consumers[made]:
                heapq.heappush(waiting, reader)
            if count:
                follow_recomputed.add(made)
    leaves = not follow_recomputed.isdisjoint(output for output, _ in graph.outputs)
    return None if leaves else _Scaled(value, powers, reads)


def _power(view: View, node: Node, powers: Mapping[int, int]) -> int | None:
    """Returns the power of the factor in a node's result; ``None`` if not proportional.

    A half result with the factor could leave the range of half, so it counts as ``None`` too.
    """
    one = len(node.outputs) == 1 and Trait.STRUCTURAL not in node.traits
    if not one or view.computes_half(node):
        return None
    made = node.outputs[0]
    power = _power_of(node, [powers.get(value, 0) for value in node.inputs])
    full = view.value(made).dtype == FULL_DTYPE and not view.is_stored_half(made)
    return power if full or not power else None


def _power_of(node: Node, powers: Sequence[int]) -> int | None:
    """Returns the power of the factor in a node's result, from the powers in its operands."""
    traits = node.traits
    if traits & {Trait.RESHAPES, Trait.TRANSPOSES, Trait.FLIPS, Trait.SUMS_AXES}:
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


def _small_values(view: View, found: Recompute, scaled: _Scaled) -> frozenset[int] | None:
    """Returns the small values with the factor that must be recomputed with the value.

    Later nodes read them, or operations that are recomputed already. The result is ``None`` if
    one of them is not small, or not computed from the value and from numbers.
    """
    values, nodes = view.graph.values, view.graph.nodes
    stack = [value for _, value in scaled.reads]
    for site in found.sites:
        for value in site.recomputed - {scaled.value}:
            operands = nodes[values[value].producer].inputs
            read = [operand for operand in operands if scaled.powers.get(operand)]
            cancels = scaled.powers.get(value) == 0 and scaled.value in site.recomputed
            if read and not cancels:
                return None
            stack.extend(read)
    small: set[int] = set()
    while stack:
        index = stack.pop()
        if index == scaled.value or index in small or values[index].constant is not None:
            continue
        is_small = values[index].size * SMALL <= values[scaled.value].size
        if not is_small or not scaled.powers.get(index):
            return None
        small.add(index)
        stack.extend(nodes[values[index].producer].inputs)
    return frozenset(small)


def _without_divisor(
    view: View, found: Recompute, scaled: _Scaled, product: Product, small: frozenset[int]
) -> Recompute:
    """Returns the plan in which a value is recomputed without its factor."""
    sites = {(site.body, site.level): site for site in found.sites}
    reads = dict(found.reads)
    for reader, read in scaled.reads:
        key = view.graph.nodes[reader].body, view.levels.nodes[reader]
        site = sites.get(key, Site(*key))
        sites[key] = dataclasses.replace(
            site,
            recomputed=site.recomputed | {scaled.value},
            roots=site.roots | {product.normalized},
        )
        reads[reader, read] = list(sites).index(key)
    with_small = tuple(
        dataclasses.replace(site, recomputed=site.recomputed | small)
        if scaled.value in site.recomputed
        else site
        for site in sites.values()
    )
    ones = found.ones | _reshapes(view, product.divisor)
    return dataclasses.replace(found, reads=reads, sites=with_small, ones=ones)


def _reshapes(view: View, divisor: int) -> frozenset[int]:
    """Returns the divisor of a softmax and what it is a reshape of, down to the sum itself."""
    found = {divisor}
    while Trait.SUMS_AXES not in (node := view.graph.nodes[view.value(divisor).producer]).traits:
        divisor = node.inputs[0]
        found.add(divisor)
    return frozenset(found)
