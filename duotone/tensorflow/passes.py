"""The passes of TensorFlow 2.21's ``auto_mixed_precision`` on the units of a GraphDef.

::

    0  lists of tensors: denied where unsafe; edges from their writers to their readers
    1  units of processed allow-list nodes are allow; none: stop
    2  deny runs forward from deny-list units through infer, deny and clear; a clear unit only if an
       infer or deny unit lies below it through clear units
    3  infer and clear units on a path allow ... allow without deny become allow
    4  an infer unit with a direct allow input and no denied input becomes allow; in the order of
       the nodes, seeing earlier results; its kernel is not asked
    5  allow runs both ways through clear units that are not denied
    6  allow-list units that cannot be half, or of a node with a quantized type, are no longer allow
       (lists of tensors agree on a precision after 2 and after 6)
    7  NextIteration and Merge agree; existing casts to float32 become casts to half

``duotone/precision/painters/tensorflow_passes.py`` has the same passes for any numerical program.
The two share only the walk. Here a unit is a type and not an operation, deny also runs through
integers and preserved nodes, a precision depends on kernels and devices, and a later pass may undo
a precision (6, 7).

References:
    TensorFlow, ``tensorflow/core/grappler/optimizers/auto_mixed_precision.cc``, version 2.21.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from duotone.graph.reach import reach
from duotone.ops.entries import Kind
from duotone.precision.rules import Rule
from duotone.tensorflow.journal import Journal, PaintedUnit, walk
from duotone.tensorflow.loops import agree_on_loops, shorten_casts
from duotone.tensorflow.tensor_lists import ListCluster, agree, find_clusters, hidden_edges
from duotone.tensorflow.unit_facts import Facts
from duotone.tensorflow.units import Units


class Reason(NamedTuple):
    """Why a unit has its precision.

    Attributes:
        rule: the name of the rule.
        words: the rule in words.
    """

    rule: str
    words: str


@dataclasses.dataclass(slots=True)
class Precisions:
    """The decisions of the passes.

    Attributes:
        allow: the units that become half if they are float32, each with its rule.
        deny: the units that deny reached, each with its rule.
        clusters: the lists of tensors.
        journal: all paint events in order, including those that were undone later.
        found_work: whether there is any allow-list unit; without one nothing changes.
        chosen: the units whose precision, half or full, a minimum cut chose.
        reasons: the reasons of units, from a painter that gives them.
    """

    allow: dict[int, str]
    deny: dict[int, str]
    clusters: list[ListCluster]
    journal: Journal
    found_work: bool = True
    chosen: frozenset[int] = frozenset()
    reasons: dict[int, Reason] = dataclasses.field(default_factory=dict)


def paint(facts: Facts) -> Precisions:
    """Paints the units as TensorFlow does; adds edges between lists of tensors to them.

    Raises:
        GraphDefError: a loop or a list of tensors is damaged.
    """
    units = facts.units
    clusters = find_clusters(facts)
    deny = {unit: "tensor_list" for c in clusters if c.unsafe for unit in c.roots}
    units.join(hidden_edges(facts, clusters))
    journal: Journal = []
    allow = _listed(facts, journal)
    if not allow:
        return Precisions({}, deny, clusters, journal, found_work=False)
    if not facts.resolved.force_all:
        _spread_deny(facts, deny, journal)
    for cluster in clusters:
        agree(cluster, allow, deny, journal, "lists_after_deny")
    _fill_between(facts, allow, deny, journal)
    _follow_allow(facts, allow, deny, journal)
    _spread_allow(facts, allow, deny, journal)
    _remove_impossible(facts, allow, journal)
    for cluster in clusters:
        agree(cluster, allow, deny, journal, "lists_after_all")
    agree_on_loops(units, allow, journal)
    shorten_casts(units, allow)
    return Precisions(allow, deny, clusters, journal)


def _listed(facts: Facts, journal: Journal) -> dict[int, str]:
    """Pass 1."""
    allow = {}
    for unit in range(len(facts.units)):
        if not facts.is_processed(unit):
            continue
        if facts.kind(unit) is Kind.ALLOW:
            allow[unit] = "allow_list"
        elif facts.is_forced(unit):
            allow[unit] = "forced"
    journal.extend(PaintedUnit("allow_list", unit) for unit in allow)
    return allow


def _spread_deny(facts: Facts, deny: dict[int, str], journal: Journal) -> None:
    """Applies pass 2; units denied before neither spread deny nor let it through."""
    units = facts.units
    stops = [u for u in range(len(units)) if facts.kind(u) in (Kind.DENY, Kind.INFER)]
    above = reach(stops, units.before, lambda u: facts.kind(u) is Kind.CLEAR).union(stops)
    roots = [u for u in stops if facts.kind(u) is Kind.DENY and u not in deny]
    spread = walk(roots, lambda u: sorted(units.after[u]), lambda u: u in above and u not in deny)
    deny.update(dict.fromkeys(roots, Rule.DENY.value))
    for unit in spread:
        deny.setdefault(unit, Rule.TAINT.value)
        journal.append(PaintedUnit("deny", unit, deny=True))


def _fill_between(
    facts: Facts, allow: dict[int, str], deny: dict[int, str], journal: Journal
) -> None:
    """Pass 3."""
    units = facts.units
    roots = [
        unit
        for unit in range(len(units))
        if facts.kind(unit) is Kind.ALLOW and facts.is_processed(unit)
    ]

    def passable(unit: int) -> bool:
        listed = facts.kind(unit) in (Kind.INFER, Kind.CLEAR)
        return listed and unit not in deny and facts.may_be_half(unit)

    below = reach(roots, units.after, passable).union(roots)
    # Sets all allow-list units again, even if a list of tensors has denied one since. Its readers
    # then see it as allow until the lists agree again.
    for unit in walk(roots, lambda u: sorted(units.before[u]), below.__contains__):
        if unit not in allow:
            allow[unit] = "allow_list" if facts.kind(unit) is Kind.ALLOW else "between"
            journal.append(PaintedUnit("between", unit))


def _follow_allow(
    facts: Facts, allow: dict[int, str], deny: dict[int, str], journal: Journal
) -> None:
    """Pass 4."""
    units = facts.units
    for unit in range(len(units)):
        if unit in deny or unit in allow or facts.kind(unit) is not Kind.INFER:
            continue
        if not facts.is_processed(unit) or not facts.is_float(unit):
            continue
        before = units.before[unit]
        if any(u in deny for u in before) or not any(u in allow for u in before):
            continue
        if facts.allows_half(unit):
            allow[unit] = "follow"
            journal.append(PaintedUnit("follow", unit))


def reads_variable(units: Units, node: int) -> bool:
    """Checks if a node gives the value of an old-style variable: Identity, Enter over Identity."""
    op = units.nodes[node].op
    while op == "Enter" and units.sources[node]:
        node = units.sources[node][0][0]
        op = units.nodes[node].op
    if op != "Identity" or not units.sources[node]:
        return False
    return units.nodes[units.sources[node][0][0]].op in ("Variable", "VariableV2")


def _spread_allow(
    facts: Facts, allow: dict[int, str], deny: dict[int, str], journal: Journal
) -> None:
    """Pass 5."""
    units = facts.units
    roots = [unit for unit in sorted(allow) if facts.is_processed(unit)]

    def passable(unit: int) -> bool:
        return (
            unit not in allow
            and unit not in deny
            and facts.kind(unit) is Kind.CLEAR
            and facts.may_be_half(unit)
            and not reads_variable(units, units.node[unit])
        )

    def neighbours(unit: int) -> list[int]:
        return sorted(units.before[unit]) + sorted(units.after[unit])

    for unit in walk(roots, neighbours, passable):
        if unit not in allow:
            allow[unit] = "clear"
            journal.append(PaintedUnit("clear", unit))


def _remove_impossible(facts: Facts, allow: dict[int, str], journal: Journal) -> None:
    """Pass 6."""
    for unit in [u for u in sorted(allow) if facts.kind(u) is Kind.ALLOW]:
        if not facts.allows_half(unit) or facts.is_quantized(unit):
            del allow[unit]
            journal.append(PaintedUnit("impossible", unit, deny=True))
