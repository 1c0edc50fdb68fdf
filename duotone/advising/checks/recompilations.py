"""Programs that a step is compiled to, where its calls differ."""

from __future__ import annotations

from collections.abc import Iterator

from duotone.advising.advice import Finding
from duotone.advising.step_model import StepModel

FEW_PROGRAMS = 2
"""Programs that a jitted step may hold: that of a whole batch, and that of the last one."""
_SHOWN = 3


def recompiles(step: StepModel) -> Iterator[Finding]:
    """``recompiles``: calls whose shapes or types differ, of which each is compiled."""
    if step.calls:
        differing = "; ".join(
            f"argument {name} is {', '.join(kinds[:_SHOWN])}{', …' if len(kinds) > _SHOWN else ''}"
            for name, kinds in list(step.calls.items())[:_SHOWN]
        )
        what = f"the calls need {step.programs} programs, each compiled by itself: {differing}"
    elif step.programs > FEW_PROGRAMS:
        what = (
            f"the jitted step holds {step.programs} programs already: it was called with that "
            "many shapes or types, and compiled for each"
        )
    else:
        return
    yield step.finding(
        "recompiles",
        what,
        "pad batches to one shape or a few (drop or fill the last one, buckets of lengths), and "
        "pass numbers that change as arrays of one dtype",
    )
