"""Prints the record of ``blame``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

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
        yield from _wrapped(f"{r.verdict.value}: {r.verdict.words}", width)
        if r.of_gradient:
            yield from _wrapped("the step itself is finite, but its gradient is not", width)
        if r.inputs and r.verdict is not Verdict.INPUT:
            yield from _wrapped(f"arguments that are not finite: {', '.join(r.inputs)}", width)
        if r.verdict is Verdict.INPUT:
            yield from _wrapped(f"  {', '.join(r.inputs)}", width)
        elif r.first is not None:
            yield from _suspect_lines(r.first, r, width)
            if r.culprit is not None:
                yield from _wrapped("because of", width)
                yield from _suspect_lines(r.culprit, r, width)
            yield from _remedy(r, width)
        if r.verdict in (Verdict.FINITE, Verdict.LOSS_SCALE, Verdict.INPUT):
            lost = [(s, f"{s.underflow:.1%}") for s in r.underflows]
            errors = [(s, f"{s.error:.1e}") for s in r.errors]
            title = f"{r.half_dtype} loses (0 or subnormal where float32 is normal)"
            yield from _ranking(title, lost, width, self._rows)
            title = "error against float32, relative to its rms"
            yield from _ranking(title, errors, width, self._rows)


def _suspect_lines(s: Suspect, r: BlameRecord, width: int) -> Iterator[str]:
    line = f" at {short_source(s.source)}" if s.source else ""
    yield from _wrapped(f"  {s.path}{line}", width, "    ")
    cast = f", cast to {s.dtype} for {s.reader}" if s.reader else ""
    where = "backward pass" if s.backward else "forward pass"
    loop = "" if s.iteration is None else f", iteration {s.iteration}"
    yield from _wrapped(f"  {s.dtype}[{','.join(map(str, s.shape))}]{cast}; {where}{loop}", width)
    fits = f"; {r.half_dtype} ends at ±{r.half_largest:.5g}"
    yield from _wrapped(f"  in float32 it ranges from {s.low:.4g} to {s.high:.4g}{fits}", width)
    if s.nonfinite:
        yield from _wrapped(f"  not finite: {plural(s.nonfinite, 'element')}", width)
    if s.underflow and not s.nonfinite:
        yield from _wrapped(f"  {s.underflow:.1%} of its elements become 0 or subnormal", width)
    if s.rule:
        yield from _wrapped(f"  rule {s.rule}: {WORDS.get(s.rule, '')}", width, "    ")


def _remedy(r: BlameRecord, width: int) -> Iterator[str]:
    if r.loss_scale is not None:
        fits = "" if r.fitting_scale is None else f"; the backward pass fits at {r.fitting_scale:g}"
        yield from _wrapped(f"the loss scale is {r.loss_scale:g}{fits}", width)
    elif r.verdict is Verdict.BACKWARD:
        yield from _wrapped(
            "no loss scale was seen: if the loss is multiplied by hand, multiply by less", width
        )
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


def _wrapped(text: str, width: int, indent: str = "  ") -> Iterable[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent) or [""]
