"""Mincut: precisions with the fewest bytes of casts, under TensorFlow's rules for full units.

::

    half   : the allow-list units that TensorFlow makes half
    full   : denied units, units without a half kernel on the device, units of nodes that are not
             processed, infer units with no allow op before them
    open   : all other units; a list of tensors and a loop have one precision each
    choose : for each output port of n elements, one cast of n elements if it is half and any reader
             is full, or if it is full and any reader is half; minimize the sum
    ties   : as many half units as possible

Each of the two terms is the cost of one variable being full and another half ("any" is a separate
variable), so a minimum cut finds the exact minimum. TensorFlow's painting obeys the same rules, so
it is one of the choices. Sizes that are not in the graph (a variable whose handle is fed, a batch)
are guessed. TensorFlow's painting stays unless the choice is cheaper with the guessed sizes and not
more expensive with the known ones.

References:
    ``duotone/graph/cut.py`` for the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from duotone.graph.cut import FULL, HALF, Labelling, pay_for_casts
from duotone.graph.graph import Paint
from duotone.graph.reach import reach
from duotone.ops.entries import Kind
from duotone.tensorflow.journal import PaintedUnit
from duotone.tensorflow.loops import agree_on_loops, loops_of, shorten_casts
from duotone.tensorflow.passes import Precisions, reads_variable
from duotone.tensorflow.protos import FLOAT
from duotone.tensorflow.unit_facts import Facts

ElementCount = Callable[[int, int], int | None]
"""Takes a node and its port; returns the number of elements, None where it is not known."""


def paint_mincut(facts: Facts, precisions: Precisions) -> Precisions:
    """Repaints the units for which TensorFlow's rules leave a choice.

    Returns:
        Precisions whose casts move no more bytes than those of ``precisions``.
    """
    if not precisions.found_work or facts.resolved.force_all:
        return precisions
    variables = _Variables(facts, precisions)
    guessed, elements = facts.shapes.guessed_elements, facts.shapes.elements
    chosen = _solve(facts, variables, guessed)
    allow = {
        unit: precisions.allow.get(unit, "cut")
        for unit in range(len(facts.units))
        if chosen[variables.of_unit(unit)]
    }
    # Units of other types keep the precision from the passes.
    allow |= {u: rule for u, rule in precisions.allow.items() if not facts.is_float(u)}
    _keep_user_casts(facts, allow)
    agree_on_loops(facts.units, allow, [])
    shorten_casts(facts.units, allow)
    for count, unknown, least in ((guessed, 1, 1), (elements, 1, 0), (elements, 0, 0)):
        before = cast_elements(facts, precisions.allow, count, unknown)
        if cast_elements(facts, allow, count, unknown) > before - least:
            return precisions
    opened = frozenset(u for u in range(len(facts.units)) if variables.of_unit(u) > FULL)
    changed = sorted(allow.keys() ^ precisions.allow.keys())
    journal = [*precisions.journal, *(PaintedUnit("cut", u, deny=u not in allow) for u in changed)]
    return Precisions(allow, precisions.deny, precisions.clusters, journal, chosen=opened)


def cast_elements(
    facts: Facts, allow: Iterable[int], elements: ElementCount, unknown: int = 0
) -> int:
    """Returns elements that go through casts."""
    units = facts.units
    half = set(allow)
    total = 0
    for node, ports in enumerate(units.readers):
        for port, readers in ports.items():
            unit = units.outputs[node][port]
            if units.dtype[unit] != FLOAT:
                continue
            mine = unit in half
            if any((units.inputs[r.node][r.slot] in half) != mine for r in readers):
                count = elements(node, port)
                total += unknown if count is None else count
    return total


class _Variables:
    """The variables of the minimum cut, and the variable of each unit."""

    def __init__(self, facts: Facts, precisions: Precisions) -> None:
        self.count = 2
        self._of_unit = [FULL] * len(facts.units)
        below = _below_allow(facts, precisions)
        casts = _user_casts(facts)
        for unit in range(len(facts.units)):
            if not facts.is_float(unit):
                continue
            if unit in precisions.allow and facts.kind(unit) is Kind.ALLOW:
                self._of_unit[unit] = HALF
            elif unit in casts or _is_open(facts, precisions, unit, below):
                self._of_unit[unit] = self.count
                self.count += 1
        self._tied = list(range(self.count))
        for cluster in precisions.clusters:
            self._tie(cluster.members)
        for carried, merges in loops_of(facts.units):
            if facts.is_float(carried):
                self._tie([carried, *merges])

    def of_unit(self, unit: int) -> int:
        """Returns the variable of a unit; 0 and 1 mean fixed precisions."""
        variable = self._of_unit[unit]
        while self._tied[variable] != variable:
            variable = self._tied[variable]
        return variable

    def _tie(self, group: Iterable[int]) -> None:
        """Gives units one variable; one that must be full makes all of them full."""
        found = {self.of_unit(unit) for unit in group}
        one = FULL if FULL in found else min(found)
        for variable in found - {HALF}:
            self._tied[variable] = one


def _below_allow(facts: Facts, precisions: Precisions) -> set[int]:
    """Returns units downstream of an allow op with no denied or impossible unit in between."""
    roots = [u for u in precisions.allow if facts.kind(u) is Kind.ALLOW]

    def passable(unit: int) -> bool:
        listed = facts.kind(unit) in (Kind.INFER, Kind.CLEAR)
        return listed and unit not in precisions.deny and facts.may_be_half(unit)

    return reach(roots, facts.units.after, passable)


def _is_open(facts: Facts, precisions: Precisions, unit: int, below: set[int]) -> bool:
    """Returns True if a unit may take either precision."""
    if unit in precisions.allow:
        return True
    if unit in precisions.deny or not facts.may_be_half(unit):
        return False
    if facts.kind(unit) is Kind.INFER:
        return unit in below
    clear = facts.kind(unit) is Kind.CLEAR
    return clear and not reads_variable(facts.units, facts.units.node[unit])


def _user_casts(facts: Facts) -> set[int]:
    """Returns the units of existing casts to float32 that something reads."""
    units = facts.units
    return {
        units.outputs[position][0]
        for position, node in enumerate(units.nodes)
        if node.op == "Cast" and units.readers[position].get(0)
    }


def _solve(facts: Facts, variables: _Variables, elements: ElementCount) -> list[bool]:
    """Returns, for each variable, whether it is half."""
    # If several labellings are cheapest, the cut returns the one with the fewest "half" labels. We
    # want the one with the most half units, so "half" and "full" are swapped.
    labels = Labelling(variables.count)
    units = facts.units
    total = 1
    for node, ports in enumerate(units.readers):
        for port, readers in ports.items():
            unit = units.outputs[node][port]
            if units.dtype[unit] != FLOAT:
                continue
            cost = max(elements(node, port) or 1, 1)
            producer = variables.of_unit(unit)
            read = {variables.of_unit(units.inputs[r.node][r.slot]) for r in readers}
            read.discard(producer)
            if read:
                pay_for_casts(labels, producer, read, cost)
                total += 2 * cost * (len(read) + 1)
    labels.prefer(HALF, half=total)
    labels.prefer(FULL, full=total)
    return [paint is Paint.FULL for paint in labels.solve()]


def _keep_user_casts(facts: Facts, allow: dict[int, str]) -> None:
    """Keeps a user's cast a cast to float32 if anything reads float32.

    It costs the same: one cast for the other readers instead of one for these.
    """
    units = facts.units
    for unit in _user_casts(facts) & allow.keys():
        if facts.kind(unit) in (Kind.INFER, Kind.CLEAR):
            continue  # a policy put Cast on a list
        readers = units.readers[units.node[unit]].get(0, ())
        if any(units.inputs[r.node][r.slot] not in allow for r in readers):
            del allow[unit]
