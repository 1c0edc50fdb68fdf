"""Dots in another order: of the axes of its arrays (``dot_orders``), or of its operands.

A dot gives batch axes, then what the left operand keeps, then what the right one keeps, and a
program that wants another order transposes. For a compiler a transpose is only a layout, until two
dots ask for different layouts of one array: then it writes that array once more. The gradient of an
attention's scores is such an array. Transposing *small* operands instead gives the large array in
the order wanted; large is what has no fewer elements than the two other arrays together::

    transpose(dot(a, b)), result large   = dot(b', a')            operands permuted
    dot(transpose(x), b), x large        = transpose(dot(x, b))   contracted in the order of x

Where a dot is bound in the form ``rows`` (:mod:`duotone.jaxpr.rules.dots`), each transpose costs a
copy, but for one that another follows, as after JAX's weight gradients (``swapped_rows``)::

    transpose(dot(a, b)) = dot(b, a)

A convolution whose windows tile the image, as one of 1 × 1, is bound as a dot there
(``window_dots``, :mod:`duotone.jaxpr.rules.windows`).

All give the same products and the same sums. The transposes that are written here cancel with those
of the program.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from duotone.graph.graph import Node
from duotone.ops.traits import Trait
from duotone.precision.optimize.labels import labels_of
from duotone.precision.optimize.optimization import Expression, Operation, Optimization
from duotone.precision.optimize.painted_view import View

Labels = Sequence[int]


@dataclasses.dataclass(frozen=True)
class Dot:
    """The axes of a dot, by label, as the letters of an Einstein sum.

    Attributes:
        operands: the labels of the left operand and of the right one.
        out: those of the result: batch, what the left keeps, what the right keeps.
        sizes: of each label.
    """

    operands: tuple[Labels, Labels]
    out: Labels
    sizes: Mapping[int, int]

    @property
    def batch(self) -> list[int]:
        """Labels that both operands and the result have."""
        return [x for x in self.out if x in self.operands[0] and x in self.operands[1]]

    @property
    def contracted(self) -> list[int]:
        """Labels that both operands have and the result has not, in the left operand's order."""
        return [x for x in self.operands[0] if x in self.operands[1] and x not in self.out]

    def size(self, labels: Labels) -> int:
        """Elements of an array."""
        return math.prod(self.sizes[label] for label in labels)

    def steps(
        self, left: tuple[int, Labels], right: tuple[int, Labels], batch: Labels, contracted: Labels
    ) -> tuple[Operation, ...]:
        """The dot of its operands, each in an order of its own, and the result as it was.

        Args:
            left: which operand, and the order of its axes.
            right: likewise.
            batch: in the order in which the dot gives them.
            contracted: in an order.
        """
        write, arrays = Expression(), []
        for slot, order in (left, right):
            places = tuple(map(self.operands[slot].index, order))
            arrays.append(write("transpose", write("operand", to=(slot,)), to=(places,)))
        pair = (left[1], right[1])
        numbers = tuple(
            tuple(tuple(map(order.index, labels)) for order in pair)
            for labels in (contracted, batch)
        )
        made = [*batch, *[x for order in pair for x in order if x not in (*batch, *contracted)]]
        product = write("contract", *arrays, to=(numbers,))
        write("transpose", product, to=(tuple(map(made.index, self.out)),))
        return write.steps


def match_orders(node: Node, view: View) -> Optimization | None:
    """A half dot whose large result, or large operand, is transposed."""
    dot = _known(node, view)
    if dot is None:
        return None
    reader = view.only_reader(node.outputs[0])
    if reader is not None and Trait.TRANSPOSES in reader.traits:
        steps = result_in_order(dot, view.axes(reader, "permutation"))
        if steps is not None:
            reason = "gives its large result in the order in which it is read"
            return Optimization("dot_orders", node.index, reason, steps)
    for slot, value in enumerate(node.inputs):
        maker = view.maker(value)
        if maker is not None and Trait.TRANSPOSES in maker.traits:
            steps = operand_in_order(dot, slot, view.axes(maker, "permutation"))
            if steps is not None:
                reason = "reads its large operand in the order in which it was made"
                return Optimization("dot_orders", node.index, reason, steps)
    return None


def match_swapped(node: Node, view: View) -> Optimization | None:
    """A half dot whose one reader moves what the right operand kept before what the left kept.

    JAX writes the gradient of a weight so. Told by shapes: a square result counts as moved.
    """
    dot, reader = _known(node, view), view.only_reader(node.outputs[0])
    transposed = reader is not None and Trait.TRANSPOSES in reader.traits
    if dot is None or reader is None or not transposed or dot.batch:
        return None
    left = [label for label in dot.out if label in dot.operands[0]]
    turned = [*dot.out[len(left) :], *left]
    if view.shape(reader.outputs[0]) != tuple(dot.sizes[label] for label in turned):
        return None
    reason = "gives its result in the order in which it is read"
    return Optimization("swapped_rows", node.index, reason, swapped(dot))


def match_windows(node: Node, view: View) -> Optimization | None:
    """A half convolution whose windows tile the image."""
    if "tiles" not in node.attributes or not view.computes_half(node):
        return None
    reason = "its windows neither overlap nor leave anything out: a dot"
    return Optimization("window_dots", node.index, reason, ())


def _known(node: Node, view: View) -> Dot | None:
    """The axes of a half dot; ``None`` if its arrays may not be moved."""
    if "labels" not in node.attributes or not view.computes_half(node):
        return None
    left, right, out = labels_of(view.graph, node)
    shape = [*view.shape(node.inputs[0]), *view.shape(node.inputs[1])]
    sizes = {x: s for x, s in zip((*left, *right), shape, strict=True) if isinstance(s, int) and s}
    return Dot((left, right), out, sizes) if len(sizes) == len({*left, *right}) else None


def swapped(dot: Dot) -> tuple[Operation, ...]:
    """Right by left, and transposed."""
    left, right = dot.operands
    return dot.steps((1, right), (0, left), dot.batch, dot.contracted)


def result_in_order(dot: Dot, permutation: Sequence[int]) -> tuple[Operation, ...] | None:
    """A dot whose result is transposed next, by transposing operands.

    Args:
        dot: its axes.
        permutation: of the transpose that reads the result.

    Returns:
        The dot, or ``None`` where the order cannot be had or costs too much.
    """
    if dot.size(dot.out) < sum(map(dot.size, dot.operands)):
        return None
    wanted = [dot.out[axis] for axis in permutation]
    batch = [label for label in wanted if label in dot.batch]
    kept = [[x for x in wanted if x in labels and x not in batch] for labels in dot.operands]
    turned = wanted == [*batch, *kept[1], *kept[0]]
    if not turned and wanted != [*batch, *kept[0], *kept[1]]:
        return None
    # What an operand keeps comes in another order, all else stays in its place.
    pair = [
        (slot, [orders.pop(0) if label in kept[slot] else label for label in labels])
        for slot, labels in enumerate(dot.operands)
        for orders in ([*kept[slot]],)
    ]
    first, second = pair[::-1] if turned else pair
    return dot.steps(first, second, batch, dot.contracted)


def operand_in_order(
    dot: Dot, slot: int, permutation: Sequence[int]
) -> tuple[Operation, ...] | None:
    """A dot of an operand that was transposed before, with that operand as it was.

    Args:
        dot: its axes.
        slot: which operand was transposed.
        permutation: by which.

    Returns:
        The dot, or ``None`` where this would cost too much.
    """
    if dot.size(dot.operands[slot]) < dot.size(dot.operands[1 - slot]) + dot.size(dot.out):
        return None
    labels = dot.operands[slot]
    before = [labels[permutation.index(axis)] for axis in range(len(labels))]
    contracted = [label for label in before if label in dot.contracted]
    left, right = ((each, before if each == slot else dot.operands[each]) for each in (0, 1))
    return dot.steps(left, right, dot.batch, contracted)
