"""Loops and existing casts: precisions that must agree after the passes have run.

A lowered while loop carries a value through ``Merge`` and back through ``NextIteration``. The
runtime requires one type there. So a NextIteration takes the precision of the Merges that read it,
and one full Merge makes its siblings full.

If all readers of a user's Cast to float32 are half, it casts to half directly.
"""

from __future__ import annotations

from collections.abc import Iterator

from duotone.errors import GraphDefError
from duotone.tensorflow.journal import Journal, PaintedUnit
from duotone.tensorflow.protos import FLOAT
from duotone.tensorflow.units import Units


def loops_of(units: Units) -> Iterator[tuple[int, list[int]]]:
    """Yields the unit of each NextIteration, and those of the Merges that read it.

    Raises:
        GraphDefError: an op other than Merge reads a NextIteration.
    """
    for position, node in enumerate(units.nodes):
        if node.op != "NextIteration":
            continue
        readers = units.readers[position].get(0, ())
        for merge in (units.nodes[reader.node] for reader in readers):
            if merge.op != "Merge":
                raise GraphDefError(
                    f"node {merge.name!r} ({merge.op}) reads the NextIteration {node.name!r}; only "
                    "a Merge may: the loop is damaged."
                )
        yield units.inputs[position][0], [units.inputs[r.node][r.slot] for r in readers]


def agree_on_loops(units: Units, allow: dict[int, str], journal: Journal) -> None:
    """Makes NextIterations and Merges agree, in the order of the nodes; changes ``allow``."""
    for carried, merges in loops_of(units):
        if all(merge in allow for merge in merges):
            if carried not in allow:
                allow[carried] = "loop"
                journal.append(PaintedUnit("loop", carried))
            continue
        for unit in (*merges, carried):
            if allow.pop(unit, None):
                cause = None if unit == carried else carried
                journal.append(PaintedUnit("loop", unit, deny=True, cause=cause))


def shorten_casts(units: Units, allow: dict[int, str]) -> None:
    """Lets existing casts to float32 cast to half if all that read them are half."""
    for position, node in enumerate(units.nodes):
        if node.op != "Cast":
            continue
        target = units.outputs[position][0]
        readers = units.readers[position].get(0, ())
        if units.dtype[target] != FLOAT or not readers:
            continue
        if all(units.inputs[r.node][r.slot] in allow for r in readers):
            allow.setdefault(target, "existing_cast")
