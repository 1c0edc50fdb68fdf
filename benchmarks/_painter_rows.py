"""Records of the painter's benchmark: what a measurement is called, its limits and its tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks._common import Bar, Result, table

QUESTION = "Does a painted step move fewer bytes and need less memory than dtypes set by hand?"
COMMAND = "python -m benchmarks.painter"
LIST_ORDER = "v5e-list"
"""A v5e whose compiler schedules in list order, for both ways.

By default it makes three schedules and takes the one that needs least memory. In that two programs
of one model that differ by a few megabytes get orders that differ by gigabytes of traffic.
"""
HALF_TYPES = {
    "h200": ("float16", "bfloat16"),
    "v5e": ("bfloat16",),
    LIST_ORDER: ("bfloat16",),
}
"""By target: the types that it calculates fast in."""
_LIMIT = 1.0
_MEAN_LIMIT = 0.92
_FLOAT32_LIMIT = 0.55


@dataclasses.dataclass(frozen=True)
class Job:
    """One measurement.

    Attributes:
        model: name in the zoo or of a Keras twin.
        target: name of a target.
        way: name of a way to train.
        half: half type; empty for float32.
    """

    model: str
    target: str
    way: str
    half: str

    @property
    def key(self) -> str:
        """Its name among the records."""
        return "/".join(filter(None, (self.model, self.target, self.half, self.way)))


def is_tpu(target: str) -> bool:
    """Whether a target is a TPU: there float32 dots are bfloat16, and only bytes have a limit."""
    return target in ("v5e", LIST_ORDER)


def _ratio(
    records: Mapping[str, dict[str, Any]], ours: Job, other: Job, figure: str
) -> float | None:
    """Ours over another's; None where one of them was not measured."""
    first, second = (records.get(job.key, {}).get(figure) for job in (ours, other))
    if first is None or second is None:
        return None
    return first / second if second else 1.0 if not first else math.inf


def _mean(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    if not all(0 < ratio < math.inf for ratio in ratios):
        return math.inf
    return math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))


def bars_of(records: Mapping[str, dict[str, Any]]) -> list[Bar]:
    """The limits of the zoo's models; ratios are compared to a hundredth, means exactly."""
    from benchmarks.zoo import MODELS

    bars = []
    for target, half in _columns(records):
        names = {"bytes": "bytes"} | ({} if is_tpu(target) else {"temporary": "temporary memory"})
        for figure, name in names.items():
            pairs = [
                (
                    Job(model, target, "duotone", half),
                    Job(model, target, "by hand", half),
                    Job(model, target, "float32", ""),
                )
                for model in MODELS
            ]
            found = [(ours, _ratio(records, ours, hand, figure)) for ours, hand, _ in pairs]
            ratios = [(ours.model, ratio) for ours, ratio in found if ratio is not None]
            title = f"{target}, {half}: {name}"
            bars += [
                Bar(f"{title} over by hand, {model}", round(ratio, 2), _LIMIT, "times")
                for model, ratio in ratios
            ]
            if is_tpu(target) or not ratios:
                continue
            mean = _mean([ratio for _, ratio in ratios])
            bars.append(Bar(f"{title} over by hand, geometric mean", mean, _MEAN_LIMIT, "times"))
            full = [_ratio(records, ours, plain, figure) for ours, _, plain in pairs]
            mean = _mean([ratio for ratio in full if ratio is not None])
            bars.append(Bar(f"{title} over float32, geometric mean", mean, _FLOAT32_LIMIT, "times"))
    failed = [key for key, record in records.items() if "failed" in record and "mpx" not in key]
    # What is too large with dtypes set by hand as well has not failed.
    large = [key for key, record in records.items() if "too large" in record]
    failed += [key for key in large if f"{key.rpartition('/')[0]}/by hand" not in large]
    bars.append(Bar("steps that failed to compile", len(failed), 0, ""))
    return bars


def _columns(records: Mapping[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """The targets and half types of which something was painted."""
    found = {tuple(key.split("/")[1:3]) for key in records if key.endswith("/duotone")}
    return [
        (target, half)
        for target, halves in HALF_TYPES.items()
        for half in halves
        if (target, half) in found
    ]


def text_of(records: Mapping[str, dict[str, Any]]) -> str:
    """One table for each target and half type."""
    texts = [_table(records, target, half) for target, half in _columns(records)]
    gaps = {f"{key}: {gap}" for key, record in records.items() if (gap := gap_of(record))}
    texts.append(
        "GB are bytes moved between kernels, MB temporary memory, ms the roofline, half the share\n"
        "of FLOPs with half operands, s how long tracing and compiling took here; 'over' are\n"
        "ratios of bytes and of temporary memory. No time was measured on a device.\n"
        "v5e-list is a v5e whose compiler was told to schedule in list order\n"
        "(xla_memory_scheduler=list); by default it takes that of three orders which needs least\n"
        "memory.\n"
        "By hand is Flax with dtypes set by hand; for the Keras models a mixed policy. Keras\n"
        "models and mpx are not in the limits."
    )
    return "\n\n".join([*texts, *(["\n".join(sorted(gaps))] if gaps else [])])


def gap_of(record: Mapping[str, Any]) -> str:
    """Why a record has no figures; empty if it has."""
    said = record.get("failed") or record.get("absent")
    return str(said or (f"does not fit: {large}" if (large := record.get("too large")) else ""))


def _table(records: Mapping[str, dict[str, Any]], target: str, half: str) -> str:
    from benchmarks._ways import ALL_MODELS, WAYS

    head = [f"{target}, {half}", "GB", "over float32", "over by hand", "MB", "over by hand"]
    head += ["kernels", "casts", "half", "ms", "s"]
    rows: list[list[Any]] = []
    for model in ALL_MODELS:
        by_hand = Job(model, target, "by hand", half)
        plain = Job(model, target, "float32", "")
        for way in WAYS:
            job = plain if way == "float32" else Job(model, target, way, half)
            record = records.get(job.key, {})
            if "bytes" not in record:
                continue
            over = [
                _shown(_ratio(records, job, other, figure))
                for other, figure in ((plain, "bytes"), (by_hand, "bytes"), (by_hand, "temporary"))
            ]
            rows.append(
                [
                    f"{model}, {way}",
                    f"{record['bytes'] / 1e9:.2f}",
                    *over[:2],
                    f"{record['temporary'] / 1e6:.0f}",
                    over[2],
                    record["kernels"],
                    record["casts"],
                    f"{record['half share']:.0%}",
                    f"{record['seconds'] * 1e3:.2f}",
                    f"{record['compile seconds']:.0f}",
                ]
            )
    return table(head, rows)


def _shown(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def result_of(records: Mapping[str, dict[str, Any]]) -> Result:
    """What :func:`~benchmarks._common.write` writes."""
    bars, text = bars_of(records), text_of(records)
    return Result("painter", QUESTION, COMMAND, bars, text, {"records": dict(records)})
