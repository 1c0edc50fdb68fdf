"""The table of checks.

A new check needs a function of a step in this folder, a line here, a section in ``docs/advise.md``
and a case in ``tests/advising/test_advise.py``.
"""

from __future__ import annotations

import math

from duotone.advising.advice import Finding
from duotone.advising.checks.cast_kernels import in_memory
from duotone.advising.checks.dot_sizes import small_convolutions, uneven
from duotone.advising.checks.float32_regions import islands
from duotone.advising.checks.recompilations import recompiles
from duotone.advising.checks.shards import whole_weights
from duotone.advising.checks.step_bounds import embeddings, launches, optimizer
from duotone.advising.checks.widths import doubles, promotions
from duotone.advising.step_model import Check, StepModel

CHECKS: tuple[Check, ...] = (
    doubles,
    promotions,
    uneven,
    small_convolutions,
    islands,
    in_memory,
    whole_weights,
    embeddings,
    optimizer,
    recompiles,
    launches,
)
_LAST = "launches"
"""The last finding, since its remedy, a larger batch, makes the costs of all others larger."""


def found_in(step: StepModel) -> tuple[Finding, ...]:
    """Runs all checks and sorts the findings, most expensive first."""
    findings = [finding for check in CHECKS for finding in check(step)]
    return tuple(sorted(findings, key=_sort_key))


def _sort_key(finding: Finding) -> tuple[bool, float]:
    """Sorts unknown costs first: a compilation can cost as much as thousands of steps."""
    cost = math.inf if finding.share is None else finding.share
    return finding.kind == _LAST, -cost
