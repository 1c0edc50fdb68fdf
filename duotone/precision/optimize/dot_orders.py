"""Dots in another order: of the axes of its arrays (``dot_orders``), or of its operands.

A dot returns batch axes, then the free axes of the left operand, then those of the right one. A
program that wants another order transposes. For a compiler a transpose is only a layout, until
two dots need different layouts of one array: then it writes that array once more. The gradient of
an attention's scores is such an array. If the program transposes *small* operands instead, the
dot returns the large array in the wanted order. An array is large if it has at least as many
elements as the two other arrays together::

    transpose(dot(a, b)), result large   = dot(b', a')            operands permuted
    dot(transpose(x), b), x large        = transpose(dot(x, b))   contracted in the order of x

If a dot is bound in the form ``rows`` (:mod:`duotone.jaxpr.rules.dots`), each transpose costs a
copy. The exception is a transpose that another one follows, as after JAX's weight gradients
(``swapped_rows``)::

    transpose(dot(a, b)) = dot(b, a)

All of them compute the same products and the same sums. The transposes that this module adds cancel
with those of the program.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from duotone.graph.graph import Node
from duotone.ops.traits import Trait
from duotone.precision.optimize.labels import labels_of
from duotone.precision.optimize.optimization import Expression, ExpressionStep, Optimization
from duotone.precision.optimize.painted_view import View

Labels = Sequence[int]


@dataclasses.dataclass(frozen=True)
class Dot:
    """The axes of a dot, by label, like the letters of an Einstein sum.

    Attributes:
        operands: the labels of the left operand and of the right one.
        out: the labels of the result: batch axes, free axes of the left operand, of the right one.
        sizes: the length of the axis of each label.
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
        """Labels that both operands have and the result lacks, in the left operand's order."""
        return [x for x in self.operands[0] if x in self.operands[1] and x not in self.out]

    def size(self, labels: Labels) -> int:
        """Returns the number of elements of an array with these labels."""
        return math.prod(self.sizes[label] for label in labels)

    def steps(
        self, left: tuple[int, Labels], right: tuple[int, Labels], batch: Labels, contracted: Labels
    ) -> tuple[ExpressionStep, ...]:
        """Returns the dot of transposed operands, with its result transposed back.

        Args:
            left: the slot of the operand to read as the left one, and the order of its axes.
            right: the slot of the operand to read as the right one, and the order of its axes.
            batch: the batch labels, in the order in which the dot returns them.
            contracted: the contracted labels, in any order.
        """
        write, arrays = Expression(), []
        for slot, order in (left, right):
            permutation = tuple(map(self.operands[slot].index, order))
            arrays.append(write("transpose", write("operand", to=(slot,)), to=(permutation,)))
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
    """Matches a half dot whose large result, or large operand, is transposed."""
    dot = _known(node, view)
    if dot is None:
        return None
    reader = view.only_reader(node.outputs[0])
    if reader is not None and Trait.TRANSPOSES in reader.traits:
        steps = result_in_order(dot, view.axes(reader, "permutation"))
        if steps is not None:
            reason = "gives its large result in the order in which its reader wants it"
            return Optimization("dot_orders", node.index, reason, steps)
    for slot, value in enumerate(node.inputs):
        maker = view.maker(value)
        if maker is not None and Trait.TRANSPOSES in maker.traits:
            steps = operand_in_order(dot, slot, view.axes(maker, "permutation"))
            if steps is not None:
                reason = "reads its large operand in the order in which its maker gives it"
                return Optimization("dot_orders", node.index, reason, steps)
    return None


def match_swapped(node: Node, view: View) -> Optimization | None:
    """Matches a half dot whose one reader moves the right operand's free axes to the front.

    JAX writes the gradient of a weight so. The test compares shapes, so a square result matches
    too.
    """
    dot, reader = _known(node, view), view.only_reader(node.outputs[0])
    transposed = reader is not None and Trait.TRANSPOSES in reader.traits
    if dot is None or reader is None or not transposed or dot.batch:
        return None
    left = [label for label in dot.out if label in dot.operands[0]]
    turned = [*dot.out[len(left) :], *left]
    if view.shape(reader.outputs[0]) != tuple(dot.sizes[label] for label in turned):
        return None
    reason = "gives its result in the order in which its reader wants it"
    return Optimization("swapped_rows", node.index, reason, swapped(dot))


def _known(node: Node, view: View) -> Dot | None:
    """Returns the axes of a half dot; ``None`` if a dimension or a label is unknown."""
    if "labels" not in node.attributes or not view.computes_half(node):
        return None
    left, right, out = labels_of(view.graph, node)
    shape = [*view.shape(node.inputs[0]), *view.shape(node.inputs[1])]
    sizes = {x: s for x, s in zip((*left, *right), shape, strict=True) if isinstance(s, int) and s}
    return Dot((left, right), out, sizes) if len(sizes) == len({*left, *right}) else None


def swapped(dot: Dot) -> tuple[ExpressionStep, ...]:
    """Returns the dot with its operands swapped, and its result transposed back."""
    left, right = dot.operands
    return dot.steps((1, right), (0, left), dot.batch, dot.contracted)


def result_in_order(dot: Dot, permutation: Sequence[int]) -> tuple[ExpressionStep, ...] | None:
    """Returns a dot that gives its result in the order of the transpose after it.

    Args:
        dot: the axes of the dot.
        permutation: the permutation of the transpose that reads the result.

    Returns:
        The dot, or ``None`` if no transposes of operands give that order or they cost too much.
    """
    if dot.size(dot.out) < sum(map(dot.size, dot.operands)):
        return None
    wanted = [dot.out[axis] for axis in permutation]
    batch = [label for label in wanted if label in dot.batch]
    kept = [[x for x in wanted if x in labels and x not in batch] for labels in dot.operands]
    turned = wanted == [*batch, *kept[1], *kept[0]]
    if not turned and wanted != [*batch, *kept[0], *kept[1]]:
        return None
    pair = [_with_free_axes(dot.operands[slot], kept[slot], slot) for slot in (0, 1)]
    first, second = pair[::-1] if turned else pair
    return dot.steps(first, second, batch, dot.contracted)


def operand_in_order(
    dot: Dot, slot: int, permutation: Sequence[int]
) -> tuple[ExpressionStep, ...] | None:
    """Returns a dot that reads an operand as it was before its transpose.

    Args:
        dot: the axes of the dot.
        slot: the slot of the transposed operand.
        permutation: the permutation of that transpose.

    Returns:
        The dot, or ``None`` if this would cost too much.
    """
    if dot.size(dot.operands[slot]) < dot.size(dot.operands[1 - slot]) + dot.size(dot.out):
        return None
    labels = dot.operands[slot]
    before = [labels[permutation.index(axis)] for axis in range(len(labels))]
    contracted = [label for label in before if label in dot.contracted]
    left, right = ((each, before if each == slot else dot.operands[each]) for each in (0, 1))
    return dot.steps(left, right, dot.batch, contracted)


def _with_free_axes(labels: Labels, free: Labels, slot: int) -> tuple[int, Labels]:
    """Returns a slot and its labels, with the free labels in the given order."""
    order = iter(free)
    return slot, [next(order) if label in free else label for label in labels]
