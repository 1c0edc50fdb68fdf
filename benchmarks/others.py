# python -m benchmarks.others
"""What are duotone, its rules and its optimizations worth on models that are not in the zoo?

Fourteen small models (``benchmarks/other/``), each with its whole training step, compiled for a
device that need not be here (extras ``cuda``, ``tpu``): bytes moved between kernels and temporary
memory, over those with dtypes set by hand. duotone wraps the whole step and around the
loss alone (``value_and_grad(autocast(loss))``); ``--without`` switches rules and optimizations off
by name, one at a time, in the whole step.

``benchmarks.ablation`` asks the same of the zoo: what is worth nothing there may be worth a tenth
here. Each measurement is written as soon as it is there, next to what was measured before;
``--resume`` leaves out what was.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import duotone
from benchmarks._common import RESULTS, Bar, Result, chosen_names, table, write
from benchmarks._painter_rows import UNSEEN, Job, gap_of, is_tpu
from benchmarks._ways import FORMS, SHORT
from benchmarks.ablation import geometric_mean, policies
from benchmarks.other import OTHERS, Size
from benchmarks.zoo.case import Differentiated, Loss, Step, TrainCase
from duotone.devices import assuming, find_target
from duotone.errors import MissingExtraError

QUESTION = (
    "What are duotone, its rules and its optimizations worth on models that are not in the zoo?"
)
COMMAND = "python -m benchmarks.others"
BY_HAND = "by hand"
WHOLE = FORMS["whole"]
WITHOUT = "without "
"""How the name of a way begins that is the whole step without a rule or optimization."""
ABOVE_ZOO = ("operand", "materialize_widened", "factors")
"""Profitability less than 1 % of the zoo's bytes, and kept for these models: switched off by
default."""
HALF_TYPES = ("float16", "bfloat16")
Records = Mapping[str, Mapping[str, Any]]
"""By the key of a :class:`~benchmarks._painter_rows.Job`."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def step_of(case: TrainCase, way: str, half: str, policy: duotone.Policy) -> Step:
    """A float32 case's training step, painted in one of the ways with duotone.

    Args:
        case: written in float32.
        way: one of :data:`~benchmarks._ways.FORMS`, or ``without`` and a name.
        half: half type.
        policy: what painting starts from; a way without a rule takes it out of this one.
    """
    if way.startswith(WITHOUT):
        policy = _without(policy, way.removeprefix(WITHOUT))
    if way != SHORT:
        return duotone.autocast(case.step, dtype=half, policy=policy)
    assert case.step_with is not None

    def value_and_grad(loss: Loss) -> Differentiated:
        painted = duotone.autocast(loss, dtype=half, policy=policy)
        return jax.value_and_grad(painted, has_aux=True)

    return case.step_with(value_and_grad)


def _without(policy: duotone.Policy, name: str) -> duotone.Policy:
    removed = policies()[name]
    return policy.replace(
        rules_remove=removed.rules_remove, optimizations_remove=removed.optimizations_remove
    )


def measure(job: Job, whole: Mapping[str, Any], size: Size = "full") -> dict[str, Any]:
    """Compiles one step.

    Args:
        job: which.
        whole: the record of the whole step with every rule; a step whose traced program is the same
            is not compiled again. May be empty.
        size: of the model.
    """
    make = OTHERS[job.model].make
    plain = make(None, size)
    step = (
        make(jnp.dtype(job.half), size).step
        if job.way == BY_HAND
        else step_of(plain, job.way, job.half, duotone.Policy())
    )
    shapes = plain.step_shapes()
    if job.way.startswith(WITHOUT) and "bytes" in whole:
        every = step_of(plain, WHOLE, job.half, duotone.Policy())
        if _program(step, shapes, job.target) == _program(every, shapes, job.target):
            return {**whole, "same program": True, "compile seconds": 0.0}
    try:
        seen = duotone.compile_for(jax.jit(step, donate_argnums=0), *shapes, target=job.target)
    except jax.errors.JaxRuntimeError as error:
        return {"failed": str(error).splitlines()[0][:300]}
    return {
        "bytes": seen.bytes,
        "temporary": seen.temporary_bytes,
        "kernels": seen.kernel_count,
        "casts": seen.casts,
        "compile seconds": seen.compile_seconds,
    }


def _program(step: Callable[..., Any], shapes: tuple[Any, ...], target: str) -> str:
    """A step's traced program for a target, as text."""
    with assuming(find_target(target).device()):
        return _ADDRESS.sub("", str(jax.make_jaxpr(step)(*shapes)))


def ways_of(records: Records, target: str, half: str) -> list[str]:
    """The ways with duotone that something was measured in: both forms, then without a name."""
    known = [*FORMS.values(), *(WITHOUT + name for name in policies())]
    found = {key.split("/", 3)[3] for key in records if key.split("/")[1:3] == [target, half]}
    return [way for way in known if way in found]


def ratios_of(records: Records, target: str, half: str, way: str) -> dict[str, tuple[float, float]]:
    """By model: bytes and temporary memory of a way over by hand's, where both were measured."""
    found = {}
    for model in OTHERS:
        ours = records.get(Job(model, target, way, half).key, {})
        hand = records.get(Job(model, target, BY_HAND, half).key, {})
        if "bytes" in ours and "bytes" in hand:
            found[model] = (
                ours["bytes"] / hand["bytes"],
                ours["temporary"] / hand["temporary"] if hand["temporary"] else math.inf,
            )
    return found


def columns_of(records: Records) -> list[tuple[str, str]]:
    """The targets and half types that something was measured for, in order."""
    found = dict.fromkeys((key.split("/")[1], key.split("/")[2]) for key in records)
    return sorted(found)


def bars_of(records: Records) -> list[Bar]:
    """The limits of the zoo's second half; ratios are compared to a hundredth, means exactly."""
    bars = []
    for target, half in columns_of(records):
        for form, way in FORMS.items():
            bars += _bars(ratios_of(records, target, half, way), target, f"{half}, {form}")
    failed = sum("failed" in record for record in records.values())
    bars.append(Bar("steps that failed to compile", failed, 0, ""))
    return bars


def _bars(ratios: Mapping[str, tuple[float, float]], target: str, rest: str) -> Iterator[Bar]:
    if not ratios:
        return
    title = f"{target}, {rest}"
    for model, (moved, _) in ratios.items():
        name = f"{title}: bytes over by hand, {model}"
        yield Bar(name, round(moved, 2), UNSEEN.each, "times")
    moved, kept = (_mean(column) for column in zip(*ratios.values(), strict=True))
    name = f"{title}: bytes over by hand, geometric mean"
    yield Bar(name, moved, UNSEEN.mean, "times")
    if not is_tpu(target):
        name = f"{title}: temporary memory over by hand, geometric mean"
        yield Bar(name, kept, UNSEEN.mean_memory, "times")


def _mean(ratios: Sequence[float]) -> float:
    return geometric_mean(ratios) if all(0 < ratio < math.inf for ratio in ratios) else math.inf


def text_of(records: Records) -> str:
    """A table for each target and half type, and what failed."""
    texts = [_table(records, target, half) for target, half in columns_of(records)]
    texts.append(
        "Bytes moved between kernels / temporary memory, over those with dtypes set by hand (GB\n"
        "of each in the second column). Without a name: the whole step with that rule or\n"
        "optimization switched off; = where the program is the same. No time was measured on a\n"
        "device."
    )
    gaps = [f"{key}: {gap}" for key, record in records.items() if (gap := gap_of(record))]
    return "\n\n".join([*texts, *(["\n".join(gaps)] if gaps else [])])


def _table(records: Records, target: str, half: str) -> str:
    ways = ways_of(records, target, half)
    titles = {way: form for form, way in FORMS.items()}
    head = [f"{target}, {half}", "by hand", *(titles.get(way, way) for way in ways)]
    found = {way: ratios_of(records, target, half, way) for way in ways}
    rows: list[list[str]] = []
    for model in OTHERS:
        hand = records.get(Job(model, target, BY_HAND, half).key, {})
        if "bytes" not in hand:
            continue
        row = [model, f"{hand['bytes'] / 1e9:.2f} / {hand['temporary'] / 1e9:.2f}"]
        for way in ways:
            record = records.get(Job(model, target, way, half).key, {})
            same = "= " if record.get("same program") else ""
            row.append(same + _shown(found[way].get(model)))
        rows.append(row)
    most = max(map(len, found.values()), default=0)
    for title, summed in ((f"geometric mean of {most}", _mean), ("worst", max)):
        row = [title, ""]
        for way in ways:
            # Of fewer models than the row names it would be a mean of something else.
            whole = found[way] if len(found[way]) == most else {}
            summary = [summed(column) for column in zip(*whole.values(), strict=True)]
            row.append(_shown((summary[0], summary[1]) if summary else None))
        rows.append(row)
    return table(head, rows)


def _shown(ratios: tuple[float, float] | None) -> str:
    return "-" if ratios is None else f"{ratios[0]:.3f} / {ratios[1]:.3f}"


def result_of(records: Records) -> Result:
    """What :func:`~benchmarks._common.write` writes."""
    figures = {"records": dict(records)}
    return Result("others", QUESTION, COMMAND, bars_of(records), text_of(records), figures)


def load(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The records that have been written."""
    file = folder / "others.json"
    return json.loads(file.read_text())["figures"]["records"] if file.exists() else {}


def run(todo: Sequence[Job], folder: Path = RESULTS, size: Size = "full") -> None:
    """Measures, one step after another, and writes after each."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(todo))
        for job in todo:
            progress.update(task, description=job.key)
            records = load(folder)
            whole = records.get(Job(job.model, job.target, WHOLE, job.half).key, {})
            record = measure(job, whole, size)
            with contextlib.redirect_stdout(io.StringIO()):
                write(result_of({**records, job.key: record}), folder)
            said = gap_of(record)
            said = said or f"{record['bytes'] / 1e9:.2f} GB in {record['compile seconds']:.0f} s"
            progress.console.print(f"{job.key}: {said}", markup=False, highlight=False)
            progress.advance(task)
            jax.clear_caches()


def jobs(arguments: Sequence[str] | None = None) -> list[Job]:
    """The measurements that the command line asks for, model by model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(OTHERS), help="models, divided by commas")
    parser.add_argument("--dtype", default="bfloat16", help="half types, comma-separated")
    parser.add_argument("--target", default="h200", help="to compile for")
    parser.add_argument(
        "--without",
        default=",".join(ABOVE_ZOO),
        help="rules and optimizations to switch off, (default %(default)s; '' for none)",
    )
    parser.add_argument("--resume", action="store_true", help="leave out what was measured")
    options = parser.parse_args(arguments)
    names = chosen_names(options.without, list(policies()), "rule or optimization")
    ways = [BY_HAND, *FORMS.values(), *(WITHOUT + name for name in names)]
    target = find_target(options.target).name
    known = load() if options.resume else {}
    todo = [
        Job(model, target, way, half)
        for half in chosen_names(options.dtype, HALF_TYPES, "half type")
        for model in chosen_names(options.only, list(OTHERS), "model")
        for way in ways
    ]
    return [job for job in todo if "bytes" not in known.get(job.key, {})]


def main() -> None:
    """Measures and writes the result."""
    try:
        run(jobs())
    except MissingExtraError as reason:
        print(f"not measured: {reason}", file=sys.stderr)
        return
    write(result_of(load()))


if __name__ == "__main__":
    main()
