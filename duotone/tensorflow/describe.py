"""Describe: a painting as records, with the reason for each precision."""

from __future__ import annotations

from duotone.ops.entries import Kind
from duotone.tensorflow.devices import WANTED, placement
from duotone.tensorflow.passes import Precisions, Reason
from duotone.tensorflow.protos import FLOAT
from duotone.tensorflow.rewrite_record import PRECISIONS, RULES, Decision
from duotone.tensorflow.unit_facts import Facts

ARGUMENTS = ("_Arg", "_Retval")
"""Ops for the arguments and results of a function."""


def describe(
    facts: Facts, precisions: Precisions, *, hidden: bool, skipped: bool
) -> tuple[dict[str, dict[str, str]], tuple[Decision, ...]]:
    """Returns the painting of all float32 type attributes, and why."""
    units = facts.units
    painting: dict[str, dict[str, str]] = {}
    decisions = []
    half = PRECISIONS[facts.dtype]
    for unit, dtype in enumerate(units.dtype):
        node = units.nodes[units.node[unit]]
        if dtype != FLOAT or (hidden and node.op in ARGUMENTS):
            continue
        attribute = units.attribute[unit]
        precision = half if unit in precisions.allow else "f32"
        if attribute.name:
            painting.setdefault(node.name, {})[str(attribute)] = precision
        kind = facts.kind(unit)
        reason = precisions.reasons.get(unit)
        if reason is None:
            rule = _rule(facts, precisions, unit, skipped)
            reason = Reason(rule, RULES[rule])
        decisions.append(
            Decision(node.name, node.op, str(attribute), kind.value, precision, *reason)
        )
    return painting, tuple(decisions)


def _rule(facts: Facts, precisions: Precisions, unit: int, skipped: bool) -> str:
    """Returns the rule of TensorFlow's passes that decided on a unit, a key of ``RULES``."""
    if unit in precisions.chosen:
        return "cut"
    if unit in precisions.allow:
        return precisions.allow[unit]
    if not facts.is_processed(unit):
        node = facts.units.nodes[facts.units.node[unit]]
        on_device = placement(node.device, facts.device).is_on(WANTED[facts.dtype])
        return "preserved" if on_device and not skipped else "placement"
    if not precisions.found_work:
        return "nothing_allowed"
    if unit in precisions.deny:
        return precisions.deny[unit]
    if facts.kind(unit) is Kind.UNLISTED:
        return "unlisted"
    if not facts.allows_half(unit):
        return "impossible"
    return "no_half_operand" if facts.can_be_half(unit) else "kernel"
