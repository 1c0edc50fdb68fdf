"""The record of ``duotone.compare``: the forms of a function on several devices."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from duotone.cost.compiled_record import Kernel, ProgramCost
from duotone.cost.roofline import time_by
from duotone.devices.specifications import Target
from duotone.errors import ArgumentError, shown

FLOAT32, WRITTEN, DUOTONE = "float32", "as written", "duotone"
FORMS = (FLOAT32, WRITTEN, DUOTONE)
"""The compared forms of a function."""
_MOST_EXPENSIVE = 3
ESTIMATE = (
    "estimated; nothing was compiled. Time, bytes and kernels come from a model of the compiler's "
    "fusion. The least time counts only dots and convolutions, at the device's peak; the most "
    "counts each operation as a separate kernel. Memory counts only arguments and results."
)
NOTE = "{}: {}."
"""The note on forms whose compiled programs have one."""
DOUBT = "no estimate of {}: {} take much of the time, and an estimate of those may be far off."
"""The note on forms without an estimate, and why they have none."""
EXACT = "compiled. Time is the roofline of its kernels, a bound that no device reaches."
SHARDED = (
    "it is sharded over several devices; only a compiler divides it, so the estimate is for one "
    "device that computes everything."
)
NO_TIME = "no time, since its speed is not known."
LARGEST = {
    True: "the largest batch fills the memory, extrapolated from the memory of two sizes.",
    False: "only a compiler can tell the largest batch.",
}
"""Notes on the figures. The key of :data:`LARGEST` is whether the figures are exact."""


@dataclasses.dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One form of the function on one target.

    Attributes:
        target: name of the target.
        device: its maker's name of the device.
        form: ``"float32"``: with duotone off; ``"as written"``: unchanged; ``"duotone"``: with
            ``duotone.autocast``.
        same_as: another form with the same program and figures; empty for none.
        exact: whether the program was compiled. If not, ``seconds``, ``bytes``, ``kernel_count``
            and ``most_expensive`` are an estimate, and ``memory`` counts only arguments and
            results.
        half: the half type of ``"duotone"``; empty if none is fast and for other forms.
        seconds: roofline time of one call; 0 if the device's speed is not known, or in doubt.
        doubt: why an estimate may be far off, so that ``seconds``, ``bytes``, ``kernel_count`` and
            ``most_expensive`` are 0 or empty; empty if they are given.
        least_seconds: lower bound of an estimate (dots and convolutions alone); ``None`` if exact.
        most_seconds: upper bound of an estimate (a separate kernel for each operation); ``None`` if
            exact.
        speedup: ``seconds`` of ``"float32"`` over those of this row; ``None`` if not known.
        bytes: bytes moved between kernels and memory.
        flops: FLOPs of dots and convolutions.
        half_flops_share: the share of ``flops`` with two half operands.
        kernel_count: how many kernels run.
        casts: how many conversions between float32 and half run.
        memory: bytes that one call needs.
        fits: whether ``memory`` fits into the device; ``None`` if not known, because the device's
            memory is not known, or because arguments and results fit and the rest is not compiled.
        time_by: shares of ``seconds`` by ``"dots"``, ``"bandwidth"``, ``"links"`` (between
            devices) and ``"launches"``.
        most_expensive: the three kernels or operations that take the most seconds over all runs.
        devices: how many devices run the program. Above 1, all figures describe one device and its
            part of the arrays. An estimate has 1.
        largest_batch: the largest batch that fits into the device's memory; ``None`` if not asked
            for or not known.
        sent: bytes that one device sends to others, by kind of collective: ``"all-gather"``, ….
        notes: what the figures of this compiled program leave out; empty for an estimate.
    """

    target: str
    device: str
    form: str
    same_as: str
    exact: bool
    half: str
    seconds: float
    least_seconds: float | None
    most_seconds: float | None
    speedup: float | None
    bytes: int
    flops: float
    half_flops_share: float
    kernel_count: int
    casts: int
    memory: int
    fits: bool | None
    time_by: Mapping[str, float]
    most_expensive: tuple[Kernel, ...]
    devices: int
    sent: Mapping[str, int]
    largest_batch: int | None = None
    doubt: str = ""
    notes: tuple[str, ...] = ()

    @property
    def bounded_by(self) -> str:
        """The key of ``time_by`` with the largest share; empty if there is none."""
        return max(self.time_by, key=lambda name: self.time_by[name], default="")


def make_row(
    cost: ProgramCost, target: Target, form: str, half: str, bounds: tuple[float, float] | None
) -> ComparisonRow:
    """Makes a row, without its speed-up; ``bounds`` are those of an estimate."""
    fits = cost.peak_bytes <= target.memory if target.memory else None
    exact = bounds is None
    least, most = bounds or (None, None)
    by = "seconds" if target.bandwidth else "bytes"
    sent: Counter[str] = Counter()
    for collective in cost.collectives:
        sent[collective.kind] += collective.total_bytes
    return ComparisonRow(
        target=target.name,
        device=cost.device,
        form=form,
        same_as="",
        exact=exact,
        half=_half_of(cost) or half if half else "",
        seconds=cost.seconds,
        least_seconds=least,
        most_seconds=most,
        speedup=None,
        bytes=cost.bytes,
        flops=cost.total_flops,
        half_flops_share=cost.half_flops_share,
        kernel_count=cost.kernel_count,
        casts=cost.casts,
        memory=cost.peak_bytes,
        fits=fits if exact or fits is False else None,
        time_by=time_by(cost.kernels, target),
        most_expensive=cost.largest(_MOST_EXPENSIVE, by),
        devices=cost.devices,
        sent=dict(sent),
        notes=cost.notes if exact else (),
    )


def _half_of(cost: ProgramCost) -> str:
    """Returns the half type of the dots that have most of the FLOPs; empty if none is half."""
    flops: Counter[str] = Counter()
    for types, count in cost.flops.items():
        for name, half in (("bf16×", "bfloat16"), ("f16×", "float16")):
            flops[half] += count * types.startswith(name)  # pyright: ignore[reportArgumentType]
    return max(flops, key=flops.__getitem__) if flops.total() else ""


def without_estimate(row: ComparisonRow, doubt: str) -> ComparisonRow:
    """Returns a row without the figures that a doubt is about; bounds and memory stay."""
    if not doubt:
        return row
    none = {"seconds": 0.0, "bytes": 0, "kernel_count": 0, "most_expensive": (), "time_by": {}}
    return dataclasses.replace(row, doubt=doubt, **none)


def with_speedups(rows: list[ComparisonRow]) -> list[ComparisonRow]:
    """Adds to the rows of one target their speed-ups over float32."""
    full = next(row.seconds for row in rows if row.form == FLOAT32)
    return [
        dataclasses.replace(row, speedup=full / row.seconds if full and row.seconds else None)
        for row in rows
    ]


@dataclasses.dataclass(frozen=True)
class SideBySide:
    """A function in several forms on several targets.

    Attributes:
        function: the name of the function.
        rows: rows by target, in the order of the call, and form: float32, as written, duotone.
        notes: lines that explain the figures and their limits.
    """

    function: str
    rows: tuple[ComparisonRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the targets."""
        return tuple(dict.fromkeys(row.target for row in self.rows))

    def row(self, target: str, form: str = DUOTONE) -> ComparisonRow:
        """Returns one row.

        Args:
            target: name of the target, in upper or lower case.
            form: ``"float32"``, ``"as written"`` or ``"duotone"``.

        Raises:
            ArgumentError: there is no such row.
        """
        if not isinstance(form, str) or form not in FORMS:
            raise ArgumentError(f"row: form is {shown(form)}; it takes {_listed(FORMS)}")
        for row in self.rows:
            if (row.target, row.form) == (str(target).lower(), form):
                return row
        raise ArgumentError(f"row: target is {shown(target)}; there are {_listed(self.targets)}")

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data: ``{"function": …, "rows": […], "notes": […]}``."""
        rows = []
        for row in self.rows:
            data = {f.name: getattr(row, f.name) for f in dataclasses.fields(row)}
            data |= {"time_by": dict(row.time_by), "sent": dict(row.sent)}
            data["most_expensive"] = [dataclasses.asdict(kernel) for kernel in row.most_expensive]
            rows.append({**data, "bounded_by": row.bounded_by})
        return {"function": self.function, "rows": rows, "notes": list(self.notes)}

    def to_json(self, *, indent: int | None = None) -> str:
        """Returns :meth:`to_dict` as JSON.

        Args:
            indent: spaces of each level, as for ``json.dumps``; ``None`` for one line.
        """
        return json.dumps(self.to_dict(), indent=indent)

    def page_section(self) -> dict[str, Any]:
        """Returns the record as a section of the report page."""
        from duotone.comparing.comparison_page import comparison_section

        return comparison_section(self)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names))
