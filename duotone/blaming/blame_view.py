"""Prints the record of ``blame``."""

from __future__ import annotations

from collections.abc import Iterator

from duotone.blaming.findings import BlameRecord, Suspect, Verdict
from duotone.errors import plural
from duotone.precision.rules import WORDS
from duotone.text.columns import columns, ending
from duotone.text.lines import Lines
from duotone.text.source_lines import short_source

MOST_ROWS = 5
"""The default number of lines of each ranking."""
_SOURCE, _FIGURE = 22, 8


class BlameView(Lines):
    """A record as a rich renderable."""

    def __init__(self, record: BlameRecord, rows: int = MOST_ROWS) -> None:
        self._record, self._rows = record, rows

    def _lines(self, width: int) -> Iterator[str]:
        r = self._record
        yield f"{r.verdict.value}: {r.verdict.words}"
        if not r.in_half and r.verdict is Verdict.FINITE:
            yield "no value of the step is half: duotone explain names the rules that decided"
        if r.of_gradient:
            yield "the step itself is finite, but its gradient is not"
        if r.inputs and r.verdict is not Verdict.INPUT:
            yield f"arguments that are not finite: {', '.join(r.inputs)}"
        if r.verdict is Verdict.INPUT:
            yield f"  {', '.join(r.inputs)}"
        elif r.first is not None:
            yield from _suspect_lines(r.first, r)
            if r.culprit is not None:
                yield "because of"
                yield from _suspect_lines(r.culprit, r)
            yield from _remedy(r)
        if r.verdict in (Verdict.FINITE, Verdict.LOSS_SCALE, Verdict.INPUT):
            lost = [(s, f"{s.underflow:.1%}") for s in r.underflows]
            errors = [(s, f"{s.error:.1e}") for s in r.errors]
            title = f"{r.half_dtype} loses (0 or subnormal where float32 is normal)"
            yield from _ranking(title, lost, width, self._rows)
            title = "error against float32, relative to its rms"
            yield from _ranking(title, errors, width, self._rows)


def _suspect_lines(s: Suspect, r: BlameRecord) -> Iterator[str]:
    line = f" at {short_source(s.source)}" if s.source else ""
    yield f"  {s.path}{line}"
    cast = f", cast to {s.dtype} for {s.reader}" if s.reader else ""
    where = "backward pass" if s.backward else "forward pass"
    loop = "" if s.iteration is None else f", iteration {s.iteration}"
    yield f"  {s.dtype}[{','.join(map(str, s.shape))}]{cast}; {where}{loop}"
    fits = f"; {r.half_dtype} ends at ±{r.half_largest:.5g}"
    yield f"  in float32 it ranges from {s.low:.4g} to {s.high:.4g}{fits}"
    if s.nonfinite:
        yield f"  not finite: {plural(s.nonfinite, 'element')}"
    if s.underflow and not s.nonfinite:
        yield f"  {s.underflow:.1%} of its elements become 0 or subnormal"
    if s.rule:
        yield f"  rule {s.rule}: {WORDS.get(s.rule, '')}"


def _remedy(r: BlameRecord) -> Iterator[str]:
    if r.loss_scale is not None:
        fits = "" if r.fitting_scale is None else f"; the backward pass fits at {r.fitting_scale:g}"
        yield f"the loss scale is {r.loss_scale:g}{fits}"
    elif r.verdict is Verdict.BACKWARD:
        yield "no loss scale was seen: if the loss is multiplied by hand, multiply by less"
    if r.pins:
        yield "keep it full:"
        yield "  policy = duotone.Policy(keep_full=["
        for pin in r.pins:
            yield f"      {pin!r},"
        yield "  ])"


def _ranking(title: str, rows: list[tuple[Suspect, str]], width: int, most: int) -> Iterator[str]:
    if not rows:
        return
    yield ""
    yield title
    for s, figure in rows[:most]:
        name = f"{s.path} for {s.reader}" if s.reader else s.path
        name = ending(name, width - _SOURCE - _FIGURE - 4)
        source = short_source(s.source.rsplit("/", 1)[-1], _SOURCE) if s.source else ""
        yield columns(width, ("  " + name, 0), (source, _SOURCE), (figure, -_FIGURE))
    if len(rows) > most:
        yield f"  … and {len(rows) - most} more"
