"""Painting: duotone's painter for TensorFlow graphs, through the pipeline of all front ends.

::

    Facts ─ read ─► Graph ─ decide ─► Decisions ─► the units that are half
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from duotone.graph.graph import Paint
from duotone.precision.pipeline import Capabilities, Decisions, decide
from duotone.precision.ranges.find import Measured, measured_values
from duotone.precision.ranges.kernels import KERNEL_RULES
from duotone.precision.rules import Rule
from duotone.precision.safety.safety_rules import SAFETY_RULES
from duotone.tensorflow.loops import agree_on_loops, shorten_casts
from duotone.tensorflow.passes import Precisions, Reason
from duotone.tensorflow.reading import ReadGraph, read
from duotone.tensorflow.rewrite_record import RULES
from duotone.tensorflow.unit_facts import Facts

CAPABILITIES = Capabilities(
    painters=frozenset({"duotone"}),
    two_precisions=False,
    fuses_casts=False,
    takes_optimizations=False,
    trained_constants=True,
    ranges_for_all_painters=False,
    interval_rules=KERNEL_RULES,
)
"""TensorFlow graphs: an op has one type, a cast is an op, and weights may be constants."""


def paint_duotone(facts: Facts, measured: Mapping[str, Measured]) -> Precisions:
    """Paints the units by duotone's rules; calibration has measured ranges by port."""
    built = read(facts)
    can = dataclasses.replace(CAPABILITIES, fuses_casts=facts.compiled)
    nodes, ports = facts.units.nodes, built.ports if measured else {}
    names = {v: f"{nodes[node].name}:{port}" for (node, port), v in ports.items()}
    found = decide(
        built.graph,
        facts.resolved,
        can,
        assumptions=measured_values(built.graph, names, measured),
        weights=tuple(built.constants),
    )
    allow, reasons = _half_units(built, found)
    _agree_on_lists(built, allow, reasons)
    agree_on_loops(facts.units, allow, [])
    shorten_casts(facts.units, allow)
    return Precisions(allow, {}, [], [], reasons=reasons)


_UNSAFE = frozenset({Rule.CONSTANT, *SAFETY_RULES}) - {Rule.DEVICE, Rule.RANGE}
"""The rules that keep an operation float32 because half cannot hold its numbers."""


def find_unsafe(facts: Facts) -> dict[int, Reason]:
    """Returns the units that duotone's safety rules keep float32, with their reasons."""
    built = read(facts)
    found = decide(built.graph, facts.resolved, CAPABILITIES)
    unsafe: dict[int, Reason] = {}
    for node, units in enumerate(built.units):
        rule = found.painting.rules[node]
        if rule in _UNSAFE or (rule is Rule.TAINT and found.painting.details.get(node)):
            unsafe.update(dict.fromkeys(units, Reason(rule.value, found.painting.reason(node))))
    return unsafe


def _half_units(built: ReadGraph, found: Decisions) -> tuple[dict[int, str], dict[int, Reason]]:
    """Returns the half units with their rules, and the reason of every unit that was read."""
    painting = found.painting
    allow: dict[int, str] = {}
    reasons: dict[int, Reason] = {}
    for node, units in enumerate(built.units):
        reason = Reason(painting.rules[node].value, painting.reason(node))
        reasons.update(dict.fromkeys(units, reason))
        if painting.compute[node] is Paint.HALF:
            allow.update(dict.fromkeys(units, reason.rule))
    for value, unit in built.constants.items():
        if found.graph.values[value].given is Paint.HALF:
            allow[unit] = Rule.WEIGHTS.value
            reasons[unit] = Reason(Rule.WEIGHTS.value, "all its readers are half")
    return allow, reasons


def _agree_on_lists(built: ReadGraph, allow: dict[int, str], reasons: dict[int, Reason]) -> None:
    """Makes a list of tensors half if all that write and read it are, else full."""
    for units in built.lists:
        read = [unit for unit in units if unit in reasons]
        if read and all(unit in allow for unit in read):
            allow.update((unit, "tensor_list") for unit in units if unit not in allow)
            continue
        for unit in units:
            if allow.pop(unit, ""):
                reasons[unit] = Reason("tensor_list", RULES["tensor_list"])
