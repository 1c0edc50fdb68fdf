"""Declining: keeps full the operations that gain nothing from half on a device.

::

    classes  ─ decline ───────────► classes   before painting: operations that do not gain are full
    painting ─ keep_accumulators ─► painting  after painting: how allow operations store results

Both stages respect the user's decisions (pins, list edits), and do nothing for
:data:`~duotone.precision.classify.profitability.EVERYTHING`. They work for every painter: a
declined node is on the deny list without taint.
"""

from __future__ import annotations

import dataclasses
import math

from duotone.graph.graph import Node, Paint
from duotone.graph.products import flops_of
from duotone.graph.terms import moved
from duotone.ops.entries import Kind, Taint
from duotone.ops.traits import Trait
from duotone.precision.casts.cast_plan import body_of_cast
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
            refused = _refusal(node, background)
            if refused is not None:
                rule, reason, lacks = refused
                denied = known.denied(reason, Taint.NONE, rule)
                found[node.index] = dataclasses.replace(denied, lacks_options=lacks)
        elif profitability.only_allow and known.kind is not Kind.UNLISTED:
            key = (known.entry.op, known.listed)
            if key not in passive:
                reason = f"{profitability.device}: only {profitability.gaining} gain from half"
                passive[key] = known.denied(reason, Taint.NONE, Rule.DEVICE)
            found[node.index] = passive[key]
    return dataclasses.replace(classes, nodes=tuple(found))


def _refusal(node: Node, background: Background) -> tuple[Rule, str, bool] | None:
    """Returns why an allow operation does not gain; ``None`` if it does.

    Returns:
        The rule, the reason, and whether it lacks compiler options.
    """
    graph, profitability = background.graph, background.profitability
    limits = _limits(node, profitability)
    if limits is None:
        would = (
            # A CPU's library may compute convolutions with these attributes.
            not node.attributes.keys().isdisjoint({"slides", "phases"})
            and flops_of(node) >= profitability.min_flops
        )
        missing = profitability.missing if would else ""
        reason = f"{profitability.device}: {node.op} gains nothing from half{missing}"
        return Rule.DEVICE, reason, bool(missing)
    shapes = [graph.values[value].shape for value in (*node.inputs, *node.outputs)]
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        return None  # a symbolic dimension may be large
    flops, intensity = limits
    if flops_of(node) < flops:
        reason = f"below {flops:.3g} FLOP, a cast costs more"
        return Rule.SMALL, f"{profitability.device}: {reason}", False
    is_dot = Trait.WIDE in node.traits or "tiles" in node.attributes
    read = node.inputs if is_dot else (*node.inputs, *node.outputs)
    elements = sum(graph.values[value].size for value in read)
    if flops_of(node) >= intensity * elements or (
        is_dot and _shares_casts(node, background, intensity)
    ):
        return None
    verb = "read" if is_dot else "read or written"
    reason = f"below {intensity:g} FLOP per element {verb}, a cast costs more"
    return Rule.SMALL, f"{profitability.device}: {reason}", False


def _shares_casts(node: Node, background: Background, intensity: float) -> bool:
    """Checks if a small dot gains, since it shares the casts of its operands with other runs.

    An operand that a loop does not change is cast once, before the loop, and a weight before any
    call. Such casts are of large arrays, and cost more than those of what was just computed.
    """
    limits, graph = background.profitability.shared_casts, background.graph
    if limits is None:
        return False
    elements = own = shared = 0.0
    for value in node.inputs:
        found = graph.values[value]
        elements += found.size
        if moved(graph, value).index not in background.weights:
            body, _ = body_of_cast(graph, found.body, node.body)
            runs = graph.trips(node) / graph.bodies[body].trips
            if runs > 1:
                shared += found.size / runs
            else:
                own += found.size
    read, cast = limits
    return flops_of(node) >= max(read * elements, intensity * own, cast * shared)


def _limits(node: Node, profitability: Profitability) -> tuple[float, float] | None:
    """Returns the FLOP, and FLOP per element, from which a node gains; ``None`` if it never does.

    A convolution that could be a dot counts as a dot.
    """
    allowed, dots = profitability.allow, profitability.window_dots
    if dots is not None and "tiles" in node.attributes:
        return dots
    if allowed is None or not node.traits.isdisjoint(allowed):
        return profitability.min_flops, profitability.min_intensity
    if "phases" in node.attributes and profitability.phases < math.inf:
        return profitability.phases, profitability.convolution_intensity
    if "slides" not in node.attributes or profitability.convolutions == math.inf:
        return None
    return profitability.convolutions, profitability.convolution_intensity


def keep_accumulators(painting: Painting, background: Background) -> Painting:
    """Stores the results of allow operations in the precision that is fast, if only they gain.

    Args:
        painting: the painting of any painter.
        background: the program, and the operations that gain.

    Returns:
        A painting in which dots keep their float32 accumulators, by rule ``wide``. On a device
        where float32 sums are slow, one in which they store half, by rule ``allow``.
    """
    profitability = background.profitability
    if not profitability.only_allow:
        return painting
    kept, rounded = (Paint.FULL, Rule.WIDE), (Paint.HALF, Rule.ALLOW)
    old, new = (rounded, kept) if profitability.float32_sums else (kept, rounded)
    store, rules = list(painting.store), list(painting.rules)
    for index, node in enumerate(background.graph.nodes):
        wide = Trait.WIDE in node.traits or "tiles" in node.attributes
        half = painting.compute[index] is Paint.HALF
        if half and wide and (store[index], rules[index]) == old:
            store[index], rules[index] = new
    return dataclasses.replace(painting, store=tuple(store), rules=tuple(rules))
