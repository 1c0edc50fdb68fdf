"""Factors: what is taken out of a sum, since it is the same for all that is added up.

::

    sum(-(g * s)) = -(s * sum(g)),    s of size 1 along the axes that the sum removes

The gradient of a mean, behind a norm whose scale is one number a channel, is such a sum, and that
of the bias next to it is ``sum(g)`` itself. Taken out, both are one sum, which a compiler finds;
otherwise it reads ``g`` once more. Both sums are in float32, so only where roundings fall differs.

Who calls this: :mod:`duotone.road`. Only where all of it is calculated full and in one place.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence

from duotone.graph.classes import Classes
from duotone.graph.graph import Graph, Node
from duotone.graph.levels import Levels, find_levels
from duotone.graph.painting import Painting

_MOST = 16
"""Factors of one sum."""


class Take(enum.Enum):
    """Out of which sums a device gains from taking factors."""

    NOTHING = "nothing"
    PASSING = "passing"
    """Of what goes on along no shortcut: it is added up once, and no operation behind the next dot
    reads it. A compiler for TPUs adds up in the kernel that makes it in any case; along shortcuts
    one sum less made its scheduler prefer an order that puts all weight gradients last
    (ResNet-50: 3 % more bytes)."""
    ALL = "all"


@dataclasses.dataclass(frozen=True, slots=True)
class Factored:
    """A sum with factors before it.

    Attributes:
        value: what is added up.
        reader: the node that reads it in the original program.
        factors: values to multiply the sum with, each with the node that reads it.
        negative: whether the sum's sign changes.
    """

    value: int
    reader: int
    factors: tuple[tuple[int, int], ...]
    negative: bool


def plan_factors(
    graph: Graph, classes: Classes, painting: Painting, take: Take = Take.ALL
) -> Mapping[int, Factored]:
    """Finds sums whose terms have a common factor.

    Args:
        graph: the program.
        classes: what each node is.
        painting: its colours.
        take: of which values.

    Returns:
        By the index of the sum's node.
    """
    if take is Take.NOTHING:
        return {}
    levels = find_levels(graph, classes)
    found: dict[int, Factored] = {}
    for node in graph.nodes:
        if node.op != "reduce_sum" or not painting.is_full(node):
            continue
        axes = node.attributes.get("axes", ())
        assert isinstance(axes, tuple)
        value, reader, factors, negative = node.inputs[0], node.index, [], False
        while len(factors) < _MOST and (made := full_maker(graph, painting, node, value)):
            operand, factor = parts_of(graph, made, axes)
            if operand is None or levels.is_far(operand, node.index):
                break
            value, reader = operand, made.index
            negative ^= factor is None
            if factor is not None:
                factors.append((factor, made.index))
        if factors and (take is Take.ALL or not _goes_on(graph, levels, value)):
            found[node.index] = Factored(value, reader, tuple(factors), negative)
    return found


def _goes_on(graph: Graph, levels: Levels, value: int) -> bool:
    """Whether a value is read along a shortcut too: behind the next dot, or by a second sum."""
    readers = [reader for reader, _ in graph.consumers[value]]
    sums = sum(graph.nodes[reader].op == "reduce_sum" for reader in readers)
    return sums > 1 or any(levels.is_far(value, reader) for reader in readers)


def full_maker(graph: Graph, painting: Painting, node: Node, value: int) -> Node | None:
    """The node that makes ``value``, if it stands beside ``node`` and is full as well."""
    producer = graph.values[value].producer
    if producer < 0:
        return None
    made = graph.nodes[producer]
    return made if made.body == node.body and painting.is_full(made) else None


def parts_of(graph: Graph, made: Node, axes: Sequence[int]) -> tuple[int | None, int | None]:
    """What ``made`` multiplies, and by what factor of all that a sum over ``axes`` adds up.

    The factor is ``None`` for a change of sign, both are for anything else.
    """
    if made.op == "neg":
        return made.inputs[0], None
    shape = graph.values[made.outputs[0]].shape
    if made.op == "mul":
        for operand, factor in (made.inputs, made.inputs[::-1]):
            common = is_common(graph.values[factor].shape, shape, axes)
            if graph.values[operand].shape == shape and common:
                return operand, factor
    return None, None


def is_common(factor: Sequence[object], shape: Sequence[object], axes: Sequence[int]) -> bool:
    """Whether a factor is the same for all elements along some axes.

    Args:
        factor: its shape.
        shape: of what it is calculated with, element by element.
        axes: those that a sum removes, say.
    """
    return not factor or (len(factor) == len(shape) and all(factor[axis] == 1 for axis in axes))
