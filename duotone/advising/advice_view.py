"""Prints advice: findings in order, each with its cost, source line and remedy."""

from __future__ import annotations

from collections.abc import Iterator

from duotone.advising.advice import AdviceRecord, Finding
from duotone.comparing.comparison_view import duration
from duotone.text.columns import ending
from duotone.text.lines import Lines
from duotone.text.numbers import amount
from duotone.text.source_lines import short_source

_INDENT = "   "


class AdviceView(Lines):
    """A record as a rich renderable."""

    widest = 80

    def __init__(self, record: AdviceRecord) -> None:
        self._record = record

    def _lines(self, width: int) -> Iterator[str]:
        r = self._record
        if not r.findings:
            yield f"{_where(r)}: nothing to advise"
            return
        yield heading(r)
        for number, finding in enumerate(r.findings, 1):
            yield ""
            yield from _finding(number, finding, width)
        for note in r.notes:
            yield ""
            yield note


def heading(r: AdviceRecord) -> str:
    """Returns the step, the target and the cost of the step, if it is known."""
    cost = duration(r.seconds) or (amount(r.bytes, "B") if r.bytes else "")
    made = "compiled" if r.compiled else "estimated"
    return f"{_where(r)}: {cost} per step, {made}" if cost else f"{_where(r)}: time not estimated"


def _where(r: AdviceRecord) -> str:
    return f"{r.function} on {r.target}" + (f" ({r.half})" if r.half else "")


def _finding(number: int, f: Finding, width: int) -> Iterator[str]:
    yield f"{number}. {f.kind}: {cost_of(f)}"
    yield _INDENT + f.what
    if f.operation:
        name, more = f.named
        line = f"{_INDENT}at {short_source(f.source, 30) or '(no source)'}: "
        room = max(width - len(line) - len(more), 8)
        yield line + ending(name, room) + more
    yield f"{_INDENT}-> {f.remedy}"


def cost_of(f: Finding) -> str:
    """Formats the cost of a finding.

    Example:
        >>> cost_of(Finding("tiles", "…", "…", seconds=0.0003, share=0.12))
        '12% of the step, 300 us'
    """
    costs = [f"{f.share:.0%} of the step"] if f.share is not None else []
    costs += [duration(f.seconds)] if f.seconds else []
    costs += [amount(f.bytes, "B")] if f.bytes else []
    return ", ".join(costs) or "the cost of a compilation"
