# python -m benchmarks.painter
"""Does a painted training step move fewer bytes and need less memory than dtypes set by hand?

For each model of the zoo the whole step, compiled for devices that need not be here: in float32,
with dtypes set by hand, painted by duotone, and by peers that run. Bytes moved between kernels,
temporary memory, kernels, casts and the roofline time are read from the compiled program
(``duotone.compile_for``). It needs the extras ``cuda`` and ``tpu``.

The zoo has two halves (``--half``): rules may be made looking at the first, the second is reported
only. ``--half small`` takes the small models beside them. duotone wraps the whole step or the loss
alone (``--form``).

Each measurement is a process of its own, and is written as soon as it is there. ``--resume`` leaves
out what has been measured, ``--changed`` what has been measured with the present sources.

``--without NAME`` says what a rule or an optimization is worth: it compiles whole steps without it
too, prints bytes and temporary memory over those with it, and writes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import duotone
from benchmarks._common import RESULTS, chosen_names, write
from benchmarks._painter_rows import (
    HALF_TYPES,
    LIST_ORDER,
    QUESTION,
    Job,
    gap_of,
    is_tpu,
    result_of,
)
from benchmarks._ways import ALL_MODELS, FORMS, KERAS_MODELS, WAYS, Absent
from benchmarks.zoo import HALVES, ZOO, names_of
from duotone.devices.specifications import find_target
from duotone.errors import MissingExtraError
from duotone.precision.removable import REMOVABLE

_ROOT = Path(__file__).parent.parent
_BESIDE_PAINTER = ("adapters", "cli", "samples", "scale", "tensorflow")
"""Folders of duotone that no measurement depends on."""
_WITHOUT_EXTRA = 3
"""Exit status of a measurement whose target needs a compiler that is not installed."""
_NO_MEMORY = re.compile(r"total memory required [^\n]*? exceeds available [^\n(]*\([^)]*\)")
_WITHOUT_TRITON = frozenset({"vit"})


class MissingExtra(Exception):  # noqa: N818 (no error: there is nothing to measure with)
    """The compiler of a target is not installed."""


def jobs(models: Sequence[str], targets: Sequence[str], halves: Sequence[str]) -> Iterator[Job]:
    """All measurements, model by model, so that the first rows are complete early.

    On a TPU, where float32 dots are bfloat16 anyway and compiling takes minutes, only what the
    limit there compares.
    """
    for target, model in itertools.product(targets, models):
        if is_tpu(target):
            ways = [] if model in KERAS_MODELS else ["by hand", "duotone"]
        else:
            yield Job(model, target, "float32", "")
            ways = [way for way in WAYS if way != "float32"]
        for half in HALF_TYPES[target]:
            if half in halves:
                yield from (Job(model, target, way, half) for way in ways)


def source(way: str) -> str:
    """A digest of the sources that a measurement depends on."""
    package = _ROOT / "duotone"
    painter = [p for p in sorted(package.iterdir()) if p.name not in _BESIDE_PAINTER]
    folders = [_ROOT / "benchmarks" / name for name in ("zoo", "_ways.py")]
    folders += painter if way in FORMS.values() else [package / "devices"]
    found = hashlib.sha256()
    for folder in folders:
        files = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
        for file in files:
            found.update(file.read_bytes())
    return found.hexdigest()[:12]


def _target(job: Job) -> Any:
    """The target; some models are compiled without Triton's dots, in float32 as in half.

    Autotuning, which needs the device, would choose another tile where XLA's default one does not
    divide the shape (12,608 rows: 64 images of 197 tokens) and the compiler stops.
    """
    if job.target == LIST_ORDER:
        target = find_target("v5e")
        options = {**target.options, "xla_memory_scheduler": "list"}
        return dataclasses.replace(target, options=options)
    target = find_target(job.target)
    if job.model in _WITHOUT_TRITON and target.platform == "cuda":
        return dataclasses.replace(target, options={"xla_gpu_enable_triton_gemm": False})
    return target


def measure(job: Job) -> dict[str, Any]:
    """Compiles one step; to be called in a process of its own."""
    digest = source(job.way)
    try:
        made = WAYS[job.way](job.model, job.half)
    except Absent as reason:
        return {"absent": str(reason), "source": digest}
    seen = duotone.compile_for(made.step, *made.arguments, target=_target(job))
    return {
        "bytes": seen.bytes,
        "temporary": seen.temporary_bytes,
        "peak": seen.peak_bytes,
        "kernels": seen.kernel_count,
        "casts": seen.casts,
        "dots": dict(seen.dots),
        "half share": seen.half_flops_share,
        "seconds": seen.seconds,
        "compiler seconds": seen.compiler_seconds,
        "compile seconds": seen.compile_seconds,
        "notes": list(seen.notes),
        "source": digest,
    }


def without(name: str, job: Job) -> list[float]:
    """Bytes and temporary memory of a painted step without a rule or optimization, over with it."""
    case = ZOO[job.model].make(None, "full")
    (field,) = (field for field, names in REMOVABLE.items() if name in names)
    found = []
    for policy in (duotone.Policy().replace(**{field: [name]}), duotone.Policy()):
        step = jax.jit(duotone.autocast(case.step, dtype=job.half, policy=policy), donate_argnums=0)
        seen = duotone.compile_for(step, *case.step_shapes(), target=_target(job))
        found.append((seen.bytes, max(seen.temporary_bytes, 1)))
    return [less / plain for less, plain in zip(*found, strict=True)]


def _measure_into(file: Path, job: Job) -> None:
    try:
        file.write_text(json.dumps(measure(job)))
    except MissingExtraError as error:
        print(error, file=sys.stderr)
        raise SystemExit(_WITHOUT_EXTRA) from error


def measured_apart(job: Job) -> dict[str, Any]:
    """:func:`measure` in a new process, whose memory is then free again."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "record.json"
        command = [sys.executable, "-m", "benchmarks.painter", "--measure", job.model, job.target]
        command += [job.way, job.half, "--into", str(into)]
        done = subprocess.run(
            command,
            cwd=_ROOT,
            capture_output=True,
            text=True,
            env={**_surroundings(), **os.environ},
        )
        if done.returncode == 0:
            return json.loads(into.read_text())
    if done.returncode == _WITHOUT_EXTRA:
        raise MissingExtra(done.stderr.strip().splitlines()[-1])
    return _refused(done.stderr) or {"failed": f"ended with {done.returncode}"}


def _refused(said: str) -> dict[str, str]:
    """A record of a step that was not compiled: too large for the target, or failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any("RESOURCE_EXHAUSTED" in line for line in lines):
        sizes = _NO_MEMORY.search(said)
        return {"too large": sizes.group() if sizes else "the target has not the memory for it"}
    return {"failed": lines[-1][:300]} if lines else {}


def _surroundings() -> dict[str, str]:
    """Variables of a measurement: two may run at once, and no device is searched in vain."""
    several = {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    return several if Path("/dev/nvidiactl").exists() else {**several, "JAX_PLATFORMS": "cpu"}


def load(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The records that have been written."""
    file = folder / "painter.json"
    return json.loads(file.read_text())["figures"]["records"] if file.exists() else {}


def run(todo: Sequence[Job], records: dict[str, dict[str, Any]], folder: Path = RESULTS) -> None:
    """Measures, one at a time, and writes after each."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(todo))
        for job in todo:
            progress.update(task, description=job.key)
            record = measured_apart(job)
            # Another run may have written in the meantime: what it found is kept.
            records = {**records, **load(folder), job.key: record}
            with contextlib.redirect_stdout(io.StringIO()):
                write(result_of(records), folder)
            said = gap_of(record)
            said = said or f"{record['bytes'] / 1e9:.2f} GB in {record['compile seconds']:.0f} s"
            progress.console.print(f"{job.key}: {said}", markup=False, highlight=False)
            progress.advance(task)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--only", default=",".join(ALL_MODELS), help="models, divided by commas")
    parser.add_argument("--half", choices=HALVES, help="only these models of the zoo")
    parser.add_argument("--form", choices=FORMS, help="only one of the forms with duotone")
    parser.add_argument("--target", default=",".join(HALF_TYPES), help="targets, comma-separated")
    parser.add_argument("--dtype", default="float16,bfloat16", help="half types, comma-separated")
    parser.add_argument("--way", default=",".join(WAYS), help="ways, comma-separated")
    parser.add_argument("--resume", action="store_true", help="leave out what was measured")
    parser.add_argument(
        "--changed", action="store_true", help="leave out what was measured with these sources"
    )
    parser.add_argument("--show", action="store_true", help="measure nothing")
    names = [name for some in REMOVABLE.values() for name in some]
    parser.add_argument("--without", choices=names, metavar="NAME", help="what one of these gains")
    parser.add_argument("--measure", nargs=4, metavar=("MODEL", "TARGET", "WAY", "HALF"))
    parser.add_argument("--into", type=Path)
    options = parser.parse_args()
    options.models = chosen_names(options.only, ALL_MODELS, "model")
    options.targets = chosen_names(options.target, list(HALF_TYPES), "target")
    options.halves = chosen_names(options.dtype, ["float16", "bfloat16"], "half type")
    options.ways = chosen_names(options.way, list(WAYS), "way")
    if options.half:
        half = names_of(options.half)
        options.models = [model for model in options.models if model in half]
    if options.form:
        left_out = {*FORMS.values()} - {FORMS[options.form]}
        options.ways = [way for way in options.ways if way not in left_out]
    return options


def main() -> None:
    """Measures and writes the result."""
    options = _options()
    if options.measure:
        _measure_into(options.into, Job(*options.measure))
        return
    every = list(jobs(options.models, options.targets, options.halves))
    if options.without:
        for job in (job for job in every if job.way == "duotone"):
            try:
                moved, kept = without(options.without, job)
            except MissingExtraError as error:
                raise SystemExit(f"not measured: {error}") from error
            print(f"{job.key}: bytes {moved:.3f}, memory {kept:.3f}", flush=True)
        return
    records = load()
    todo = []
    for job in every:
        known = records.get(job.key, {})
        done = options.resume and known and "failed" not in known
        same = options.changed and known.get("source") == source(job.way)
        if job.way in options.ways and not done and not same and not options.show:
            todo.append(job)
    try:
        run(todo, records)
    except MissingExtra as reason:
        print(f"not measured: {reason}", file=sys.stderr)
        return
    write(result_of(load()))


if __name__ == "__main__":
    main()
