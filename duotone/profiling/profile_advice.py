"""Advice on a profile: sentences that name a problem and a remedy.

Each rule has a threshold, so a step without a problem gets no advice. ``duotone advise``
predicts what a program could gain on a device before it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duotone.profiling.profile_record import ProfileRecord
from duotone.profiling.time_sums import Sum

_IDLE = 0.2
_PART = 0.1
"""The least share of the time that makes advice."""
_SHORT = 5e-6
"""Shorter kernels, in seconds, take less time than their launch."""


def advise(record: ProfileRecord, sums: Sequence[Sum]) -> tuple[str, ...]:
    """Gives advice on a profile."""
    if not sums:
        return ()
    rules = (_compiles, _waits, _full, _uneven, _casts, _copies)
    return tuple(sentence for rule in rules for sentence in rule(record, sums))


def _compiles(record: ProfileRecord, sums: Sequence[Sum]) -> Iterator[str]:
    rows = [row for row in record.iterations if row.counted]
    compiled = [row for row in rows if row.compiled]
    if len(rows) > 1 and 2 * len(compiled) > len(rows):
        yield (
            f"{len(compiled)} of {len(rows)} iterations compile something: shapes, dtypes or "
            "static arguments change from step to step. Pad to a few shapes, and pass numbers as "
            "arrays."
        )


def _waits(record: ProfileRecord, sums: Sequence[Sum]) -> Iterator[str]:
    summary = record.summary
    if summary.idle < _IDLE or summary.platform not in ("GPU", "TPU"):
        return
    mean = sum(s.seconds for s in sums) / sum(s.calls for s in sums)
    if mean < _SHORT:
        yield (
            f"the device is idle for {summary.idle:.0%} of an iteration, and its kernels last "
            f"{mean * 1e6:.2g} us on average: launches bound it. Raise the batch, or put several "
            "steps into one program (jax.lax.scan). (Without a profiler XLA launches many at once.)"
        )
    else:
        yield (
            f"the device is idle for {summary.idle:.0%} of an iteration: it waits for the host. "
            "Load data ahead, fetch no results in each step, and jit what runs between steps."
        )


def _full(record: ProfileRecord, sums: Sequence[Sum]) -> Iterator[str]:
    full = [s for s in sums if s.eligible and _is_full(s) and s.uses is not True]
    share = _share(full, sums)
    if record.summary.platform == "GPU" and share > _PART:
        yield (
            f"{share:.0%} of the time is in float32 dots and convolutions without Tensor "
            f"Cores, first {_in_words(full[0])}: duotone.autocast makes them half, or "
            "Policy(float32_math='tf32')."
        )


def _uneven(record: ProfileRecord, sums: Sequence[Sum]) -> Iterator[str]:
    uneven = [
        s
        for s in sums
        if s.uses is False
        and s.eligible
        and s.fact
        and not _is_full(s)
        and any(product.uneven for product in s.fact.products)
    ]
    share = _share(uneven, sums)
    if record.summary.platform == "GPU" and share > _PART:
        yield (
            f"{share:.0%} of the time is in half dots and convolutions without Tensor "
            f"Cores, with sides that are not multiples of 8, first {_in_words(uneven[0])}: pad "
            "them."
        )


def _casts(record: ProfileRecord, sums: Sequence[Sum]) -> Iterator[str]:
    casts = [s for s in sums if s.fact and s.fact.only_casts]
    share = _share(casts, sums)
    if share > _PART:
        yield (
            f"{share:.0%} of the time is in kernels that only cast, first "
            f"{_in_words(casts[0])}: `duotone explain` shows what needs both dtypes there."
        )


def _copies(record: ProfileRecord, sums: Sequence[Sum]) -> Iterator[str]:
    copies = [s for s in sums if s.kind.kernel in ("MemcpyH2D", "MemcpyD2H")]
    share = _share(copies, sums)
    if record.summary.platform == "GPU" and share > _PART:
        yield (
            f"{share:.0%} of the time is in copies between host and device: keep state on "
            "the device, and load data ahead."
        )


def _share(chosen: Sequence[Sum], sums: Sequence[Sum]) -> float:
    """Returns the share of the time of all operations that the chosen ones take."""
    total = sum(s.seconds for s in sums)
    return sum(s.seconds for s in chosen) / total if total else 0.0


def _is_full(one: Sum) -> bool:
    products = one.fact.products if one.fact else ()
    return any(not {"f16", "bf16"} & set(product.dtypes) for product in products)


def _in_words(one: Sum) -> str:
    """Names an operation by its scope, primitive and source line."""
    fact = one.fact
    name = f"{one.kind.module}/{one.kind.operation}"
    if fact is None:
        return name
    where = f" at {fact.source}" if fact.source else ""
    return f"{'/'.join(filter(None, (fact.scope, fact.primitive))) or name}{where}"
