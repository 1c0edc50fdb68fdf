"""Declining: keeps full the operations that gain nothing from half on a device.

::

    classes  ─ decline ───────────► classes   before painting: operations that do not gain are full
    painting ─ keep_accumulators ─► painting  after painting: allow operations store float32

Both stages respect the user's decisions (pins, list edits), and do nothing for
:data:`~duotone.precision.classify.profitability.EVERYTHING`. They work for every painter: a
declined node is on the deny list without taint.
"""

from __future__ import annotations

import dataclasses

from duotone.graph.graph import Graph, Node, Paint
from duotone.ops.entries import Kind, Taint
from duotone.ops.traits import Trait
from duotone.precision.classify.classes import Classes, NodeClass
from duotone.precision.classify.profitability import EVERYTHING, Profitability
from duotone.precision.context import Background
from duotone.precision.painters.painting import Painting
from duotone.precision.rules import Rule


def decline(classes: Classes, background: Background) -> Classes:
    """Keeps full the operations that gain nothing from half on a device.

    Args:
        classes: the class of each node.
        background: the program, and the operations that gain.

    Returns:
        Classes in which such nodes are denied, without taint, by rule ``small`` or ``device``.
    """
    profitability = background.profitability
    if profitability == EVERYTHING:
        return classes
    found = list(classes.nodes)
    passive: dict[tuple[str, Kind], NodeClass] = {}
    for node in background.graph.nodes:
        known = found[node.index]
        if known.is_users:
            continue
        if known.kind is Kind.ALLOW:
            refused = _refusal(node, background.graph, profitability)
            if refused is not None:
                rule, reason = refused
                found[node.index] = known.denied(reason, Taint.NONE, rule)
        elif profitability.only_allow and known.kind is not Kind.UNLISTED:
            key = (known.entry.op, known.listed)
            if key not in passive:
                reason = f"{profitability.device}: only large dots gain from half"
                passive[key] = known.denied(reason, Taint.NONE, Rule.DEVICE)
            found[node.index] = passive[key]
    return dataclasses.replace(classes, nodes=tuple(found))


def _refusal(node: Node, graph: Graph, profitability: Profitability) -> tuple[Rule, str] | None:
    """Returns why an allow operation does not gain, as a rule and a reason; ``None`` if it does."""
    is_dot = profitability.window_dots and "tiles" in node.attributes
    gains = profitability.allow is None or not node.traits.isdisjoint(profitability.allow)
    if not gains and not is_dot:
        return Rule.DEVICE, f"{profitability.device}: {node.op} gains nothing from half"
    shapes = [graph.values[value].shape for value in (*node.inputs, *node.outputs)]
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        return None  # a symbolic dimension may be large
    if node.flops < profitability.min_flops:
        return (
            Rule.SMALL,
            f"{profitability.device}: below {profitability.min_flops:.3g} FLOP, a cast costs more",
        )
    read = sum(graph.values[value].size for value in node.inputs)
    if node.flops < profitability.min_intensity * read:
        reason = f"below {profitability.min_intensity:g} FLOP per element read, a cast costs more"
        return Rule.SMALL, f"{profitability.device}: {reason}"
    return None


def keep_accumulators(painting: Painting, classes: Classes, background: Background) -> Painting:
    """Lets allow operations keep their float32 accumulators if only they gain from half.

    Args:
        painting: the painting of any painter.
        classes: the class of each node.
        background: the program, and the operations that gain.

    Returns:
        A painting in which allow operations store full, by rule ``wide``.
    """
    if not background.profitability.only_allow:
        return painting
    store, rules = list(painting.store), list(painting.rules)
    for index, node in enumerate(background.graph.nodes):
        half = painting.compute[index] is Paint.HALF and store[index] is Paint.HALF
        wide = Trait.WIDE in node.traits or "tiles" in node.attributes
        if half and rules[index] is Rule.ALLOW and wide:
            store[index] = Paint.FULL
            rules[index] = Rule.WIDE
    return dataclasses.replace(painting, store=tuple(store), rules=tuple(rules))
