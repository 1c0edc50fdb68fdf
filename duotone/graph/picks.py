"""Picks: what is picked of a large full value is calculated after picking.

::

    gather(x - m - s, at)    =    gather(x, at) - m - s,    x in memory in half; m, s of size 1
                                                             where one element is picked

The loss of a language model picks one log-probability for each token, out of 50,000 that no other
operation reads from memory. A gather reads memory too, so on a device whose compiler fuses nothing
into it all of them are written in float32: on a TPU v5e that is 2.5 of the 44 GB of a training step
of GPT-2. Calculated after picking, they are the same numbers bit for bit.

Who calls this: :mod:`duotone.road`. Carried out by :mod:`duotone.jaxpr.picks`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from duotone.graph.factors import is_common
from duotone.graph.graph import SMALL, Graph, Node, Paint
from duotone.graph.painting import Painting

_KEEP_NAN = frozenset(
    "add add_any sub mul div neg exp exp2 log log1p expm1 tanh logistic sqrt rsqrt square".split()
)
"""Operations, element by element, that give NaN where an operand is NaN: a gather gives NaN for
places outside of its operand."""
_LONGEST_CHAIN = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Picked:
    """A gather from values that are in memory, and what is calculated of the picked elements.

    Attributes:
        chain: the values to calculate, in program order; the last one is what the gather reads in
            the original program.
        roots: the values in memory from which they are calculated, as large as they are.
    """

    chain: tuple[int, ...]
    roots: frozenset[int]


def plan_picks(graph: Graph, painting: Painting) -> Mapping[int, Picked]:
    """Finds gathers of few elements of what is calculated in full from half values in memory.

    Args:
        graph: the program.
        painting: its colours.

    Returns:
        By the index of the gather's node.
    """
    found: dict[int, Picked] = {}
    for node in graph.nodes:
        if node.op == "gather" and painting.is_full(node) and _picks_few(graph, node):
            picked = _picked(graph, painting, node)
            if picked is not None:
                found[node.index] = picked
    return found


def _picks_few(graph: Graph, node: Node) -> bool:
    fill = node.attributes.get("fill", math.nan)
    few = graph.values[node.outputs[0]].size * SMALL <= graph.values[node.inputs[0]].size
    return few and isinstance(fill, float) and math.isnan(fill)


def _picked(graph: Graph, painting: Painting, node: Node) -> Picked | None:
    """The chain behind what ``node`` reads; ``None`` if there is none, or none that pays."""
    chain: set[int] = set()
    roots: set[int] = set()
    shape = graph.values[node.inputs[0]].shape
    stack = [node.inputs[0]]
    while stack:
        index = stack.pop()
        held = graph.values[index]
        if index in chain or index in roots:
            continue
        if held.shape != shape:
            if not _is_the_same_for_all(held.shape, shape, node):
                return None
            continue
        producer = graph.nodes[held.producer] if held.producer >= 0 else None
        if producer is not None and _is_calculated(painting, producer, node):
            chain.add(index)
            stack.extend(producer.inputs)
        else:
            roots.add(index)
        if len(chain) > _LONGEST_CHAIN:
            return None
    halved = any(graph.stored(painting.store, graph.values[root]) is Paint.HALF for root in roots)
    if not (chain and halved and all(_is_in_memory(graph, root, chain) for root in roots)):
        return None
    return Picked(tuple(sorted(chain)), frozenset(roots))


def _is_the_same_for_all(small: Sequence[object], shape: Sequence[object], node: Node) -> bool:
    """Whether a value is the same for all elements along the axes that it does not have in full.

    An axis that operand and indices of the gather have in common must be there in full.
    """
    paired = node.attributes.get("paired", ())
    assert isinstance(paired, tuple)
    pairs = enumerate(zip(small, shape, strict=False))  # a scalar has no axes
    lacking = [axis for axis, (mine, size) in pairs if mine != size]
    return is_common(small, shape, lacking) and not set(lacking) & set(paired)


def _is_calculated(painting: Painting, made: Node, node: Node) -> bool:
    """Whether ``made`` calculates full, element by element, beside ``node``."""
    return made.op in _KEEP_NAN and made.body == node.body and painting.is_full(made)


def _is_in_memory(graph: Graph, root: int, chain: set[int]) -> bool:
    """Whether something reads a root from memory whether the gather does or not."""
    makers = {graph.values[value].producer for value in chain}
    others = [reader for reader, _ in graph.consumers[root] if reader not in makers]
    return bool(others) or graph.values[root].producer < 0
