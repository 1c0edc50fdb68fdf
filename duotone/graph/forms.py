"""Forms: what is worth painting on a device, and what an allow operation hands on there.

The lists say what half *may* do; a device says what half is *good for*. On a GPU everything that is
half moves fewer bytes. On a CPU only large dots gain: casting the operands of a small one costs
more than the dot, and everything between dots is calculated in float32 anyway.

::

    classes  ─ decline ─────────► classes   before painting: what does not gain is kept full
    painting ─ hand_on_full ────► painting  after painting: accumulators are handed on unrounded

Both stages leave what the user decided (pins, list edits) as it is, and do nothing for
:data:`EVERYTHING`. They work for every painter: a declined node is on the deny list without taint.

Who calls this: ``duotone.road``. The figures come from ``duotone/targets/forms.py``.
"""

from __future__ import annotations

import dataclasses

from duotone.graph.classes import Classes, NodeClass
from duotone.graph.graph import Graph, Node, Paint
from duotone.graph.lists import Kind, Taint
from duotone.graph.painting import Painting

PLAIN, ROWS, WIDENED = "plain", "rows", "widened"
"""The forms of a dot, see :mod:`duotone.jaxpr.dots`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Forms:
    """What gains from half on a device.

    Attributes:
        device: in words, for reasons.
        allow: the allow operations that gain; ``None`` for all.
        min_flops: floating point operations of one execution below which an allow operation does
            not gain: starting the fast kernel costs more than it saves.
        min_intensity: floating point operations for each element of the operands below which it
            does not gain: casting the operands costs more than it saves.
        only_allow: nothing but allow operations gains: all else stays full, and allow operations
            hand on their float32 accumulators.
    """

    device: str
    allow: frozenset[str] | None = None
    min_flops: float = 0.0
    min_intensity: float = 0.0
    only_allow: bool = False


EVERYTHING = Forms("any device")
"""Nothing is declined."""

NOTHING_GAINS = Forms("this device", allow=frozenset(), only_allow=True)
"""Everything is declined."""


def decline(classes: Classes, graph: Graph, forms: Forms) -> Classes:
    """Keeps full what does not gain from half on a device.

    Args:
        classes: what each node is.
        graph: the program.
        forms: the device.

    Returns:
        Classes in which such nodes are denied, without taint, by rule ``small`` or ``device``.
    """
    if forms == EVERYTHING:
        return classes
    found = list(classes.nodes)
    passive: dict[tuple[str, Kind], NodeClass] = {}
    for node in graph.nodes:
        known = found[node.index]
        if known.pin is not None or known.entry.source == "policy":
            continue
        if known.kind is Kind.ALLOW:
            refused = _refusal(node, graph, forms)
            if refused is not None:
                rule, reason = refused
                found[node.index] = known.denied(reason, Taint.NONE, rule=rule)
        elif forms.only_allow and known.kind is not Kind.UNLISTED:
            key = (known.entry.op, known.listed)
            if key not in passive:
                reason = f"{forms.device}: only large dots gain from half"
                passive[key] = known.denied(reason, Taint.NONE, rule="device")
            found[node.index] = passive[key]
    return dataclasses.replace(classes, nodes=tuple(found))


def _refusal(node: Node, graph: Graph, forms: Forms) -> tuple[str, str] | None:
    """Why an allow operation does not gain, as a rule and a reason; ``None`` where it does."""
    if forms.allow is not None and node.op not in forms.allow:
        return "device", f"{forms.device}: {node.op} gains nothing from half"
    shapes = [graph.values[value].shape for value in (*node.inputs, *node.outputs)]
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        return None  # a symbolic dimension may be large
    if node.flops < forms.min_flops:
        return "small", f"{forms.device}: below {forms.min_flops:.3g} FLOP a cast costs more"
    read = sum(graph.values[value].size for value in node.inputs)
    if node.flops < forms.min_intensity * read:
        reason = f"below {forms.min_intensity:g} FLOP for each element read a cast costs more"
        return "small", f"{forms.device}: {reason}"
    return None


def hand_on_full(painting: Painting, classes: Classes, forms: Forms) -> Painting:
    """Where only allow operations gain, their results are kept as they were accumulated.

    Args:
        painting: of any painter.
        classes: what each node is.
        forms: the device.

    Returns:
        A painting in which allow operations store full, by rule ``wide``.
    """
    if not forms.only_allow:
        return painting
    store, rules = list(painting.store), list(painting.rules)
    for index, found in enumerate(classes.nodes):
        half = painting.compute[index] is Paint.HALF and store[index] is Paint.HALF
        if half and rules[index] == "allow" and found.entry.wide:
            store[index] = Paint.FULL
            rules[index] = "wide"
    return dataclasses.replace(painting, store=tuple(store), rules=tuple(rules))
