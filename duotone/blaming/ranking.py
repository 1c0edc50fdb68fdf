"""The rankings of ``blame``: the sites that lose most to half if nothing overflows.

::

    error       relative to the float32 reference
    negligible  a sum whose reference is as small as float32's own rounding of its terms. The true
                sum is 0 (the gradient of a bias before a softmax, or of a mean), so the error is
                relative to the terms. Values that depend only on such sums are not ranked.
    order       lines of the user's files, then libraries and the optimizer's update; most first
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from duotone import _jax
from duotone.blaming.reference_run import MOVING, ValueSite
from duotone.blaming.reference_statistics import COUNT, ERROR, SIZE, UNDERFLOW
from duotone.graph.graph import UPDATE
from duotone.ops.entries import names_with
from duotone.ops.jax import TRAITS
from duotone.ops.traits import Trait
from duotone.policy.regions import region_of

if TYPE_CHECKING:
    from duotone.blaming.suspects import StepRun

MOST = 20
"""The most operations of each group in a ranking."""
_SUMS = names_with(TRAITS, Trait.ADDS, Trait.SUBTRACTS, Trait.SUMS)
_DOTS = names_with(TRAITS, Trait.CONTRACTS)
_ROUNDING = 4 * 2.0**-24
"""The rounding error of a float32 sum, relative to a term, for each term."""
_ALL_IS_LOST = 0.05
"""From this error on, a value computed from negligible sums counts as negligible too."""


def shares_lost(run: StepRun) -> np.ndarray:
    """Returns for each site the share of elements that are 0 or subnormal only in half."""
    return run.rows[:, UNDERFLOW] / np.maximum(run.rows[:, COUNT], 1)


def errors(run: StepRun) -> np.ndarray:
    """Returns for each site its relative error; 0 if the site is not ranked."""
    found = np.array([run.error(k) for k in range(len(run.sites))])
    wrong = found > 0
    negligible = set[int]()
    for k, site in enumerate(run.sites):
        reads = [read for read in site.reads if read >= 0]
        if found[k] and (terms := _terms(run, site, reads)):
            number = _number(run, k, reads)
            if run.reference(k) <= _ROUNDING * number * terms:
                off = math.sqrt(run.rows[k, ERROR] / max(run.rows[k, COUNT], 1))
                found[k] = off / terms
                negligible.add(k)
        mistaken = [read for read in reads if wrong[read] or read in negligible]
        unknown = not run.rows[k, SIZE]  # squares too small for float32
        if (found[k] >= _ALL_IS_LOST or unknown) and negligible.issuperset(mistaken) and mistaken:
            found[k] = 0.0
            negligible.add(k)
    return found


def _terms(run: StepRun, site: ValueSite, reads: list[int]) -> float:
    """Returns the greatest magnitude of the terms that a site adds; 0 if it is not a sum."""
    name = "" if site.eqn is None else site.eqn.primitive.name
    if name in _SUMS:
        return max(map(run.reference, reads), default=0.0)
    return math.prod(map(run.reference, reads)) if name in _DOTS and len(reads) == 2 else 0.0


def _number(run: StepRun, k: int, reads: list[int]) -> float:
    """Estimates how many terms each element of a sum has."""
    counts = [float(run.rows[read, COUNT]) for read in reads]
    result = max(float(run.rows[k, COUNT]), 1.0)
    if len(reads) == 2 and run.sites[k].eqn.primitive.name in _DOTS:
        return max(math.sqrt(counts[0] * counts[1] / result), 1.0)
    return max(max(counts, default=1.0) / result, 1.0)


def order(run: StepRun, sizes: np.ndarray) -> list[list[int]]:
    """Sorts sites by size in two groups, the user's own lines and others, greatest first.

    Sites of size 0, and results that only move a value, are left out.
    """
    moved = {k for k in run.results if k >= 0 and _moves(run.sites[k])}
    groups: list[list[int]] = [[], []]
    for k in np.argsort(-sizes, kind="stable").tolist():
        if sizes[k] <= 0:
            break
        if k not in moved:
            groups[not _is_users(run.sites[k])].append(k)
    return groups


def _is_users(site: ValueSite) -> bool:
    """Checks if a line of the user's own files makes a value, outside of an optimizer's update."""
    if site.eqn is None:
        return True
    if region_of([name for name, by in site.names if not by]) == UPDATE:
        return False
    first = site.first_known(_jax.source_line(site.eqn))
    return not _jax.LIBRARIES & set(Path(first.partition(" > ")[0]).parts)


def _moves(site: ValueSite) -> bool:
    """Returns True if the operation at a site only moves values."""
    return site.eqn is not None and site.eqn.primitive.name in MOVING
