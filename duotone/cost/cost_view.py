"""A compiled program's cost as text."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from duotone.cost.compiled_record import ProgramCost
from duotone.text.columns import plain
from duotone.text.numbers import add_row

_SHOWN = 12


def render(cost: ProgramCost) -> str:
    """Returns a cost as plain text."""
    return plain(table(cost), 110)


def table(cost: ProgramCost) -> Any:
    """Returns a cost as a Rich renderable: totals, and the kernels that move most bytes."""
    kernels = Table("kernel", "op", "runs", "bytes", "FLOPs", "dots", "source")
    for kernel in cost.largest(_SHOWN):
        add_row(
            kernels,
            kernel.name,
            kernel.op,
            str(kernel.runs),
            amount(kernel.total_bytes, "B"),
            amount(kernel.flops * kernel.runs, ""),
            kernel.dtype,
            kernel.source[-40:],
        )
    return Group(Text("\n".join(lines(cost))), kernels)


def lines(cost: ProgramCost) -> list[str]:
    """Returns the totals, one on each line."""
    how = "compiled on it" if cost.compiled_on_device else "compiled without it"
    dots = ", ".join(
        f"{types}: {count} ({amount(cost.flops[types], 'FLOP')})"
        for types, count in sorted(cost.dots.items())
    )
    found = [
        f"{cost.target} ({cost.device}, {how})",
        f"bytes moved    {amount(cost.bytes, 'B')} by {cost.kernel_count} kernels",
        f"dots           {dots or 'none'}",
        f"casts          {cost.casts} between float32 and half",
        f"memory         {amount(cost.temporary_bytes, 'B')} temporary, "
        f"{amount(cost.peak_bytes, 'B')} in all",
    ]
    if cost.devices > 1:
        kinds: Counter[str] = Counter()
        for collective in cost.collectives:
            kinds[f"{collective.kind} {collective.dtype}"] += collective.total_bytes
        told = ", ".join(f"{kind} {amount(sent, 'B')}" for kind, sent in kinds.most_common())
        found[0] += f", one of {cost.devices} devices"
        found.append(f"sends          {amount(cost.sent_bytes, 'B')}: {told or 'nothing'}")
    if cost.seconds:
        found.append(f"roofline time  {cost.seconds * 1e3:.3f} ms")
    if cost.compiler_seconds:
        found.append(f"compiler says  {cost.compiler_seconds * 1e3:.3f} ms")
    return [*found, *(f"note: {note}" for note in cost.notes)]


def amount(number: float, unit: str) -> str:
    """Returns a number with a decimal prefix: ``26.30 GB``."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {prefix}{unit}"
    return f"{number:.0f} {unit}".rstrip()
