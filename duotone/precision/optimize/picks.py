"""Picks: operations on a large full value run after the gather that picks few of its elements.

::

    gather(x - m - s, at) = gather(x, at) - m - s,    x in memory in half; m, s of size 1 along axes
                                                      from which one element is picked

The loss of a language model picks one log-probability for each token, out of 50,000 that no other
operation reads from memory. A gather reads memory too. So a device whose compiler fuses nothing
into a gather writes all of them in float32: on a TPU v5e, 2.5 of the 44 GB of a training step of
GPT-2. Computed after picking, the numbers are the same bit for bit.

The derivative is that of the original gather, over all elements in full. So elements out of bounds
have none, as before. If the prediction is sure, the cotangents of the picked logit are almost equal
(``softmax`` from the sum over all, 1 from the pick), and their difference is computed in full.
"""

from __future__ import annotations

import math

from duotone.graph.graph import SMALL, Node
from duotone.ops.traits import Trait
from duotone.precision.optimize.optimization import Expression, Optimization
from duotone.precision.optimize.painted_view import View

_LONGEST_CHAIN = 16


def match(node: Node, view: View) -> Optimization | None:
    """Matches a gather of few elements of a value that is computed in full from half values."""
    if not (view.is_full(node) and _picks_few(node, view)):
        return None
    chain = _chain(node, view)
    if chain is None:
        return None
    write = Expression()
    original, at = (write.read(value, node.index) for value in node.inputs)
    plain = write("own", original, at)
    made: dict[int, int] = {}
    for index in chain:
        maker = view.graph.nodes[view.value(index).producer]
        for value in maker.inputs:
            if value not in made:
                read = write.read(value, maker.index, None)
                taken = write("take", read, at) if view.shape(value) else read
                made[value] = write("widen", taken)
        operands = [made[value] for value in maker.inputs]
        made[index] = write("made", *operands, to=(index,))
    write("instead", plain, made[chain[-1]])
    return Optimization(
        "picks",
        node.index,
        f"{len(chain)} operations run on the picked elements, not on all",
        write.steps,
    )


def _picks_few(node: Node, view: View) -> bool:
    fill = node.attributes.get("fill", math.nan)
    few = view.value(node.outputs[0]).size * SMALL <= view.value(node.inputs[0]).size
    return few and isinstance(fill, float) and math.isnan(fill)


def _chain(node: Node, view: View) -> list[int] | None:
    """Returns values to compute after picking, in program order; ``None`` if that does not pay."""
    chain: set[int] = set()
    roots: set[int] = set()
    shape = view.shape(node.inputs[0])
    stack = [node.inputs[0]]
    while stack:
        index = stack.pop()
        if index in chain or index in roots:
            continue
        if view.shape(index) != shape:
            if not _is_the_same_for_all(index, node, view):
                return None
            continue
        producer = view.full_maker(node, index)
        # A gather gives NaN for indices outside of its operand.
        if producer is not None and Trait.KEEPS_NAN in producer.traits:
            chain.add(index)
            stack.extend(producer.inputs)
        else:
            roots.add(index)
        if len(chain) > _LONGEST_CHAIN:
            return None
    halved = any(view.is_stored_half(root) for root in roots)
    if not (chain and halved and all(_is_in_memory(root, chain, view) for root in roots)):
        return None
    return sorted(chain)


def _is_the_same_for_all(value: int, node: Node, view: View) -> bool:
    """Checks if a value is constant along all axes where its size differs from the operand's.

    No such axis may be one that the operand and the indices of the gather share.
    """
    shape = view.shape(node.inputs[0])
    pairs = enumerate(zip(view.shape(value), shape, strict=False))  # a scalar has no axes
    lacking = [axis for axis, (mine, size) in pairs if mine != size]
    return view.is_common(value, shape, lacking) and not {*lacking} & {*view.axes(node, "paired")}


def _is_in_memory(root: int, chain: set[int], view: View) -> bool:
    """Returns True if a root is in memory in any case: it has other readers, or is an argument."""
    makers = {view.value(value).producer for value in chain}
    others = [reader for reader, _ in view.graph.consumers[root] if reader not in makers]
    return bool(others) or view.value(root).producer < 0
