"""The case catalogue: every case of every family, and what they cover.

To add a case, add it to the family it belongs to; nothing else needs to know. ``test_cases.py``
checks every case in every variation, ``scripts/coverage_table.py`` writes ``docs/coverage/``.
"""

from __future__ import annotations

from tests.catalogue import (
    contractions,
    control_flow,
    custom_rules,
    elementwise,
    leaves,
    linear_algebra,
    movement,
    opaque,
    parallel,
    reductions,
    transformations,
)
from tests.catalogue.case import VARIATIONS, Case

FAMILIES: dict[str, list[Case]] = {
    "elementwise": elementwise.CASES,
    "movement": movement.CASES,
    "reductions": reductions.CASES,
    "contractions": contractions.CASES,
    "linear algebra": linear_algebra.CASES,
    "transformations": transformations.CASES,
    "custom rules": custom_rules.CASES,
    "control flow": control_flow.CASES,
    "parallel": parallel.CASES,
    "opaque": opaque.CASES,
    "leaves": leaves.CASES,
}
"""By the name of the family."""

CASES: tuple[Case, ...] = tuple(case for family in FAMILIES.values() for case in family)
"""All cases."""

CALLS: tuple[tuple[Case, str], ...] = tuple(
    (case, variation)
    for case in CASES
    for variation in VARIATIONS
    if variation not in case.limits
    and (variation != "forced" or case.primitives)
    and (not variation.startswith("grad") or case.through is not None)
)
"""Every case in every variation that can be had for it."""
