"""Records of the painter's benchmark: what a measurement is called, its limits and its tables."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks._common import Bar, Result, geometric_mean, table
from benchmarks._ways import FORMS, KERAS_MODELS, WAYS
from benchmarks.zoo import HALVES, ZOO, Half, names_of

QUESTION = "Does a painted step move fewer bytes and need less memory than dtypes set by hand?"
COMMAND = "python -m benchmarks.painter"
LIST_ORDER = "v5e-list"
"""A v5e whose compiler schedules in list order, for both ways.

By default it makes three schedules and takes the one that needs least memory. In that two programs
of one model that differ by a few megabytes get orders that differ by gigabytes of traffic.
"""
HALF_TYPES = {"h200": ("float16", "bfloat16"), "v5e": ("bfloat16",), LIST_ORDER: ("bfloat16",)}
"""By target: the types that it computes fast in."""
_FLOAT32_LIMIT = 0.55


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a form in one half of the zoo, as ratios to dtypes set by hand.

    Attributes:
        each: bytes of any model.
        mean: the geometric mean of bytes.
        memory: temporary memory of any model; None where only the mean has a limit.
        mean_memory: the geometric mean of temporary memory.
    """

    each: float
    mean: float
    memory: float | None
    mean_memory: float


_TUNED = Limits(each=1.0, mean=0.92, memory=1.0, mean_memory=0.92)
"""The limits of the whole step in the first half, for which the rules were made."""
UNSEEN = Limits(each=1.05, mean=0.92, memory=None, mean_memory=0.85)
"""The limits of the second half and of small models, and of the short form in the first half."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One measurement.

    Attributes:
        model: name in the zoo or of a Keras reference.
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
    """Returns True for a TPU, where float32 dots are bfloat16 and only bytes have a limit."""
    return target in ("v5e", LIST_ORDER)


def _ratio(
    records: Mapping[str, dict[str, Any]], ours: Job, other: Job, figure: str
) -> float | None:
    """Ours over another's; None where one of them was not measured."""
    first, second = (records.get(job.key, {}).get(figure) for job in (ours, other))
    if first is None or second is None:
        return None
    return first / second if second else 1.0 if not first else math.inf


def bars_of(records: Mapping[str, dict[str, Any]]) -> list[Bar]:
    """The limits of the zoo's models; ratios are compared to a hundredth, means exactly."""
    bars = []
    for target, half in _columns(records):
        for part in HALVES:
            for form, way in FORMS.items():
                bars += _bars(records, Job("", target, way, half), part, form)
            bars += _over_float32(records, Job("", target, "duotone", half), part)
    failed = [key for key, record in records.items() if "failed" in record and "mpx" not in key]
    # A step that is too large with dtypes set by hand as well has not failed.
    large = [key for key, record in records.items() if "too large" in record]
    failed += [key for key in large if f"{key.rpartition('/')[0]}/by hand" not in large]
    bars.append(Bar("steps that failed to compile", len(failed), 0, ""))
    return bars


def _found(
    records: Mapping[str, dict[str, Any]], job: Job, part: Half, other: str, figure: str
) -> dict[str, float]:
    """By model of a half of the zoo: the ratio to another way, where both were measured."""
    ratios = {}
    for model in names_of(part):
        ours = dataclasses.replace(job, model=model)
        kind = "" if other == "float32" else job.half
        ratio = _ratio(records, ours, dataclasses.replace(ours, way=other, half=kind), figure)
        if ratio is not None:
            ratios[model] = ratio
    return ratios


def _bars(records: Mapping[str, dict[str, Any]], job: Job, part: Half, form: str) -> Iterator[Bar]:
    """The limits of one form in one half of the zoo, on one target with one half type."""
    limits = _TUNED if (part, form) == ("first", "whole") else UNSEEN
    title = f"{job.target}, {job.half}, {HALVES[part]}, {form}"
    bytes_ = _found(records, job, part, "by hand", "bytes")
    for model, ratio in bytes_.items():
        name = f"{title}: bytes over by hand, {model}"
        yield Bar(name, round(ratio, 2), limits.each, "times")
    if is_tpu(job.target) or not bytes_:
        return
    name = f"{title}: bytes over by hand, geometric mean"
    yield Bar(name, geometric_mean([*bytes_.values()]), limits.mean, "times")
    memory = _found(records, job, part, "by hand", "temporary")
    for model, ratio in memory.items() if limits.memory is not None else ():
        name = f"{title}: temporary memory over by hand, {model}"
        yield Bar(name, round(ratio, 2), limits.memory or 0.0, "times")
    name = f"{title}: temporary memory over by hand, geometric mean"
    yield Bar(name, geometric_mean([*memory.values()]), limits.mean_memory, "times")


def _over_float32(records: Mapping[str, dict[str, Any]], job: Job, part: Half) -> Iterator[Bar]:
    """The limits of the first half's whole steps over float32."""
    if is_tpu(job.target) or part != "first":
        return
    for figure, name in (("bytes", "bytes"), ("temporary", "temporary memory")):
        ratios = _found(records, job, part, "float32", figure)
        if ratios:
            title = f"{job.target}, {job.half}, {part} half, whole: {name} over float32"
            mean = geometric_mean([*ratios.values()])
            yield Bar(f"{title}, geometric mean", mean, _FLOAT32_LIMIT, "times")


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
    """A table for each target, half type and half of the zoo."""
    groups: dict[str, Sequence[str]] = {title: names_of(half) for half, title in HALVES.items()}
    groups["Keras"] = KERAS_MODELS
    texts = [
        text
        for target, half in _columns(records)
        for group, models in groups.items()
        if (text := _table(records, Job("", target, "", half), group, models))
    ]
    gaps = {f"{key}: {gap}" for key, record in records.items() if (gap := gap_of(record))}
    texts.append(
        "GB are bytes moved between kernels, MB temporary memory, ms the roofline, half the share\n"
        "of FLOPs with half operands, s how long tracing and compiling took here; 'over' are\n"
        "ratios of bytes and of temporary memory. No time was measured on a device.\n"
        "v5e-list is a v5e whose compiler was told to schedule in list order\n"
        "(xla_memory_scheduler=list); by default it takes that of three orders which needs least\n"
        "memory.\n"
        "Rules may be made looking at the first half and at the small models; the second half is\n"
        "reported only.\n"
        "By hand is Flax with dtypes set by hand; for the Keras models a mixed policy. Keras\n"
        "models and mpx are not in the limits."
    )
    return "\n\n".join([*texts, *(["\n".join(sorted(gaps))] if gaps else [])])


def gap_of(record: Mapping[str, Any]) -> str:
    """Why a record has no figures; empty if it has."""
    said = record.get("failed") or record.get("absent")
    return str(said or (f"does not fit: {large}" if (large := record.get("too large")) else ""))


def _table(
    records: Mapping[str, dict[str, Any]], column: Job, group: str, models: Sequence[str]
) -> str:
    """The models of one group, and their geometric means; empty where none was measured."""
    target, half = column.target, column.half
    head = [
        f"{target}, {half}, {group}",
        "GB",
        "over float32",
        "over by hand",
        "MB",
        "over by hand",
    ]
    head += ["kernels", "casts", "half", "ms", "s"]
    rows: list[list[Any]] = []
    for model in models:
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
    for part, way in itertools.product(HALVES, FORMS.values()):
        if group == HALVES[part]:
            rows += _means(records, Job("", target, way, half), part, len(head))
    return table(head, rows) if rows else ""


def _means(
    records: Mapping[str, dict[str, Any]], job: Job, part: Half, width: int
) -> Iterator[list[str]]:
    """A row of geometric means of one form, with how many models they are of."""
    over = [
        _found(records, job, part, other, figure)
        for other, figure in (("float32", "bytes"), ("by hand", "bytes"), ("by hand", "temporary"))
    ]
    if over[1]:
        # A mean of fewer models than the row names would be one of something else.
        whole = [found if found.keys() == over[1].keys() else {} for found in over]
        shown = [_shown(geometric_mean([*found.values()]) if found else None) for found in whole]
        row = [f"geometric mean of {len(over[1])}, {job.way}", "", *shown[:2], "", shown[2]]
        yield row + [""] * (width - len(row))


def _shown(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def result_of(records: Mapping[str, dict[str, Any]]) -> Result:
    """What :func:`~benchmarks._common.write` writes."""
    bars, text = bars_of(records), text_of(records)
    halves = {name: HALVES[entry.half] for name, entry in ZOO.items()}
    figures = {"records": dict(records), "halves": halves}
    return Result("painter", QUESTION, COMMAND, bars, text, figures)
