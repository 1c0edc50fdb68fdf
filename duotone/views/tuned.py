"""A tuning for people: what was tried, what it costs, what was kept.

Who calls this: :class:`duotone.Tuned`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from duotone.views.columns import columns
from duotone.views.comparison import duration
from duotone.views.lines import Lines
from duotone.views.text import amount


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """One program that was compiled.

    Attributes:
        change: against the best one before it; of the first one, that there is none.
        kept: it became the best one.
        seconds: of one call, estimated from the compiled program; 0 where that is unknown.
        bytes: that it moves; ``None`` where the compiler refused the program.
        temporary_bytes: that it needs beside arguments and results; likewise.
    """

    change: str
    kept: bool
    seconds: float = 0.0
    bytes: float | None = None
    temporary_bytes: int | None = None


class TunedView(Lines):
    """The trials as a rich renderable.

    Args:
        title: the first line.
        trials: in order.
    """

    widest = 80

    def __init__(self, title: str, trials: Sequence[Trial]) -> None:
        self._title, self._trials = title, trials

    def _lines(self, width: int) -> Iterator[str]:
        yield self._title
        if self._trials:
            yield ""
            yield columns(
                width, *zip(("tried", "time", "bytes", "memory", ""), _SIZES, strict=True)
            )
        for trial in self._trials:
            cells = (trial.change, *_figures(trial), "kept" if trial.kept else "")
            yield columns(width, *zip(cells, _SIZES, strict=True))


_SIZES = (0, -9, -9, -9, 4)


def _figures(trial: Trial) -> tuple[str, str, str]:
    if trial.bytes is None or trial.temporary_bytes is None:
        return "refused", "", ""
    return (
        duration(trial.seconds),
        amount(trial.bytes, "B"),
        amount(trial.temporary_bytes, "B"),
    )
