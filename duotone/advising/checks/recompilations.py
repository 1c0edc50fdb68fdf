"""Finds calls that compile separate programs."""

from __future__ import annotations

from collections.abc import Iterator

from duotone.advising.advice import Finding
from duotone.advising.step_model import StepModel

FEW_PROGRAMS = 2
"""The number of programs of a jitted step that is no finding: one for full batches, one for the
last."""
_SHOWN = 3


def recompiles(step: StepModel) -> Iterator[Finding]:
    """Yields ``recompiles``: calls whose shapes or types differ, so that each compiles."""
    if step.calls:
        differing = "; ".join(
            f"argument {name} is {', '.join(kinds[:_SHOWN])}{', …' if len(kinds) > _SHOWN else ''}"
            for name, kinds in list(step.calls.items())[:_SHOWN]
        )
        what = f"the calls need {step.programs} separately compiled programs: {differing}"
    elif step.programs > FEW_PROGRAMS:
        what = (
            f"the jitted step has compiled {step.programs} programs already, one for each shape or "
            "type of its arguments"
        )
    else:
        return
    yield step.finding(
        "recompiles",
        what,
        "pad batches to one shape or a few (drop or fill the last one, buckets of lengths), and "
        "pass numbers that change as arrays of one dtype",
    )
