# python -m benchmarks.gpu_steps
"""How fast are the zoo's training steps on the GPU that is here, and how fast were they said to be?

Each model of the zoo at its published size, its whole training step (loss, gradient, update) with
its state donated: in float32 (whose dots are TF32 on a GPU unless JAX is told otherwise), with
dtypes set by hand, in ``duotone.autocast`` as a whole, as ``value_and_grad(autocast(f))``, and
``without optimizations``: ``duotone.autocast`` with every optimization switched off.
The programs of all models are compiled first, several at a time, and kept; then each model's run in
turn, some steps of each after some of the other, round after round, alone on the GPU. A time is the
median over rounds. What ``duotone.compile_for`` would predict is read from the same program.

It needs a GPU that is a target of duotone's. ``--prepare`` and ``--time`` do one half each; what
``--folder`` holds already is not done again. ``python -m benchmarks.gpu_kernels`` looks into the
same programs.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import lzma
import math
import os
import pickle
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import duotone
from benchmarks._common import Bar, Result, median, parts, table, write
from benchmarks._ways import SHORT
from benchmarks.zoo import MODELS
from benchmarks.zoo.case import TrainCase
from duotone.cost.cost_of_program import cost_of
from duotone.cost.hlo import parse
from duotone.devices import TARGETS, Target
from duotone.precision.optimize.optimizations import OPTIMIZATIONS

QUESTION = "How fast are training steps on this GPU, and how fast were they said to be?"
COMMAND = "python -m benchmarks.gpu_steps"
PLAIN = "without optimizations"
WAYS = ("by hand", "duotone", SHORT, PLAIN)
HALF_TYPES = ("bfloat16", "float16")
ROUNDS = 9
FOLDER = Path("/tmp/duotone-gpu-steps")
START = "start"
"""The program that makes the first state and a batch."""
_SLICE = 0.1
"""Seconds of steps that run without a pause; a round has one slice of each way."""
_LIMIT = 540
"""Seconds for compiling one program."""
_SHARED_MEMORY = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
_ALL_MEMORY = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"}


def programs(
    model: str, halves: Sequence[str] = HALF_TYPES, ways: Sequence[str] = WAYS
) -> Iterator[tuple[str, str]]:
    """The way and half type of each program of a model."""
    yield START, ""
    yield "float32", ""
    has_loss = MODELS[model](None, "full").step_with is not None
    yield from ((way, half) for half in halves for way in ways if way != SHORT or has_loss)


def step_of(model: str, way: str, half: str, size: str = "full") -> Callable[..., Any]:
    """The training step of one way."""
    case: TrainCase = MODELS[model](None, size)
    if way == "by hand":
        return MODELS[model](jnp.dtype(half), size).step
    if way == "duotone":
        return duotone.autocast(case.step, dtype=half)
    if way == PLAIN:
        policy = duotone.Policy(optimizations_remove=[*OPTIMIZATIONS])
        return duotone.autocast(case.step, dtype=half, policy=policy)
    if way == SHORT and case.step_with is not None:
        return case.step_with(
            lambda loss: jax.value_and_grad(duotone.autocast(loss, dtype=half), has_aux=True)
        )
    return case.step


def compiled(model: str, way: str, half: str, size: str = "full") -> Any:
    """A step as a compiled program of lists of arrays, or what makes its first arguments."""
    case: TrainCase = MODELS[model](None, size)
    if way == START:

        def start(seed: jax.Array) -> tuple[list[Any], list[Any]]:
            key = jax.random.key(seed)
            return jax.tree.leaves(case.start(key)), jax.tree.leaves(case.batch(key, "ordinary"))

        return jax.jit(start).lower(jax.ShapeDtypeStruct((), jnp.uint32)).compile()
    shapes = case.step_shapes()
    (state, state_tree), (batch, batch_tree) = (jax.tree.flatten(tree) for tree in shapes)
    step = step_of(model, way, half, size)

    def flat(state: list[Any], batch: list[Any]) -> tuple[list[Any], jax.Array]:
        moved, loss = step(state_tree.unflatten(state), batch_tree.unflatten(batch))
        return jax.tree.leaves(moved), loss

    return jax.jit(flat, donate_argnums=0).lower(state, batch).compile()


def this_target() -> Target:
    """The target that is here."""
    kind = jax.devices()[0].device_kind
    for target in TARGETS.values():
        if target.description == kind:
            return target
    raise SystemExit(f"{kind} is not a target of duotone's; there are {', '.join(TARGETS)}")


def prepare(folder: Path, model: str, way: str, half: str, size: str = "full") -> None:
    """Compiles one program into a file, and writes down what is predicted of it."""
    from jax.experimental import serialize_executable

    begun = time.perf_counter()
    program = compiled(model, way, half, size)
    record: dict[str, Any] = {"compile seconds": time.perf_counter() - begun}
    into = file_of(folder, model, way, half)
    if way != START:
        text = program.as_text()
        with lzma.open(into.with_suffix(".hlo.xz"), "wt") as file:
            file.write(re.sub(r'"/[^"]*/', '"', text))  # files without their folders
        totals = cost_of(parse(text), this_target())
        memory = program.memory_analysis()
        record |= {
            "predicted": totals.seconds,
            "bytes": totals.bytes,
            "kernels": totals.kernel_count,
            "casts": totals.casts,
            "temporary": memory.temp_size_in_bytes,
            "notes": list(totals.notes),
        }
    into.with_suffix(".pickle").write_bytes(pickle.dumps(serialize_executable.serialize(program)))
    into.write_text(json.dumps(record))


def file_of(folder: Path, model: str, way: str, half: str) -> Path:
    """Where the record of a program is; next to it, with another suffix, the program."""
    name = "-".join(filter(None, (model, way.partition("(")[0].replace(" ", "_"), half)))
    return folder / f"{name}.json"


def load(folder: Path, model: str, way: str, half: str) -> Any:
    """The compiled program that ``prepare`` left, on the first device that is here."""
    from jax.experimental import serialize_executable

    content = pickle.loads(file_of(folder, model, way, half).with_suffix(".pickle").read_bytes())
    return serialize_executable.deserialize_and_load(*content, execution_devices=jax.devices()[:1])


def measure(
    folder: Path, model: str, halves: Sequence[str] = HALF_TYPES, ways: Sequence[str] = WAYS
) -> dict[str, Any]:
    """Seconds of a step of each way of a model.

    Returns:
        By program, ``"duotone bfloat16"``: its record with ``seconds`` (the median), ``spread``
        (largest over smallest round) and the last loss; ``failed`` where it did not run.
    """
    found: dict[str, dict[str, Any]] = {}
    loaded: dict[str, Any] = {}
    for way, half in programs(model, halves, ways):
        file, name = file_of(folder, model, way, half), f"{way} {half}".strip()
        found[name] = json.loads(file.read_text()) if file.exists() else {"failed": "not compiled"}
        if "failed" not in found[name]:
            loaded[name] = load(folder, model, way, half)
    if START not in loaded:
        return found
    begin = loaded.pop(START)
    found.pop(START)
    state, batch = begin(jnp.uint32(0))
    count = {}
    for name, program in dict(loaded).items():
        try:
            state, seconds, loss = _run(program, state, batch, 2)
            state, seconds, loss = _run(program, state, batch, 3)
        except jax.errors.JaxRuntimeError as error:
            found[name]["failed"] = str(error).splitlines()[0][:200]
            del loaded[name]
            state, batch = begin(jnp.uint32(0))
            continue
        count[name] = min(max(1, round(_SLICE / seconds)), 50)
        if not math.isfinite(loss):
            state, batch = begin(jnp.uint32(0))
    taken: dict[str, list[float]] = {name: [] for name in loaded}
    for turn in range(ROUNDS if loaded else 0):
        names = [*loaded]
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            state, seconds, loss = _run(loaded[name], state, batch, count[name])
            taken[name].append(seconds)
            found[name]["loss"] = loss
            if not math.isfinite(loss):
                state, batch = begin(jnp.uint32(0))
    for name, rounds in taken.items():
        found[name] |= {"seconds": median(rounds), "spread": max(rounds) / min(rounds)}
    return found


def _run(program: Any, state: Any, batch: Any, steps: int) -> tuple[Any, float, float]:
    """The state after some steps, seconds a step, and the loss."""
    jax.block_until_ready(state)
    begun = time.perf_counter()
    loss = None
    for _ in range(steps):
        state, loss = program(state, batch)
    jax.block_until_ready((state, loss))
    return state, (time.perf_counter() - begun) / steps, float(loss)  # pyright: ignore[reportArgumentType]


def bars(figures: dict[str, Any]) -> list[Bar]:
    """The limits: faster than float32 and than by hand in the geometric mean, never slower."""
    made = []
    for device, models in figures.items():
        for half in HALF_TYPES:
            for other, limit in (("float32", 0.7), (f"by hand {half}", 1.0)):
                ratios = _ratios(models, f"duotone {half}", other)
                if not ratios:
                    continue
                name = f"{device}, {half}: duotone's time over {other.removesuffix(half)}".strip()
                mean = statistics.geometric_mean(ratios.values())
                made.append(Bar(f"{name}, geometric mean", mean, limit, "times"))
                if other == "float32":
                    worst = max(ratios, key=ratios.__getitem__)
                    made.append(Bar(f"{name}, worst: {worst}", ratios[worst], 1.0, "times"))
    return made


def _ratios(models: dict[str, Any], one: str, other: str) -> dict[str, float]:
    """By model, the seconds of a program over those of another."""
    pairs = {
        name: (found.get(one, {}).get("seconds"), found.get(other, {}).get("seconds"))
        for name, found in models.items()
    }
    return {name: a / b for name, (a, b) in pairs.items() if a and b}


def text_of(figures: dict[str, Any]) -> str:
    """Returns the tables of every device."""
    return "\n\n".join(_text_of_device(device, models) for device, models in figures.items())


def _text_of_device(device: str, models: dict[str, Any]) -> str:
    """One table for each half type: milliseconds measured and predicted."""
    parts = []
    names = {name for records in models.values() for name in records}
    for half in sorted({name.rpartition(" ")[2] for name in names} & set(HALF_TYPES)):
        ways = [way for way in ("float32", *(f"{way} {half}" for way in WAYS)) if way in names]
        titles = [way.removesuffix(f" {half}").replace(SHORT, "short") for way in ways]
        header = [half, *(f"{title}{what} ms" for title in titles for what in ("", " said"))]
        rows = []
        for model, records in models.items():
            if not any(name.endswith(f" {half}") for name in records):
                continue
            row = [model]
            for name in ways:
                record = records.get(name, {})
                row += [_milliseconds(record, "seconds"), _milliseconds(record, "predicted")]
            rows.append([*row, *_speedups(records, half)])
        parts.append(table([*header, "over float32", "over by hand"], rows))
        lines = []
        for what in ("float32", f"by hand {half}"):
            for way in ("duotone", SHORT):
                if ratios := _ratios(models, what, f"{way} {half}"):
                    mean = statistics.geometric_mean(ratios.values())
                    middle = statistics.median(ratios.values())
                    lines.append(
                        f"{way} is {mean:.3f} times as fast as {what} (geometric mean), "
                        f"{middle:.3f} times in the median"
                    )
        parts.append("\n".join(lines))
    failures = [
        f"{model}, {name}: {record['failed']}"
        for model, records in models.items()
        for name, record in records.items()
        if "failed" in record
    ]
    return "\n\n".join([f"{device}, driver as found.", *parts, _said(models), *failures])


def _said(models: dict[str, Any]) -> str:
    """How near the predictions are."""
    records = [r for m in models.values() for r in m.values() if r.get("seconds")]
    ratios = [r["seconds"] / r["predicted"] for r in records if r.get("predicted")]
    if not ratios:
        return ""
    return (
        f"Measured over said time: {statistics.geometric_mean(ratios):.2f} in the geometric mean "
        f"of {len(ratios)} programs, from {min(ratios):.2f} to {max(ratios):.2f}."
    )


def _milliseconds(record: dict[str, Any], what: str) -> str:
    return f"{1e3 * record[what]:.2f}" if record.get(what) else "-"


def _speedups(records: dict[str, Any], half: str) -> list[str]:
    ours = records.get(f"duotone {half}", {}).get("seconds")
    others = (records.get(name, {}).get("seconds") for name in ("float32", f"by hand {half}"))
    return [f"{other / ours:.2f}" if ours and other else "-" for other in others]


def prepared(
    folder: Path,
    names: Sequence[str],
    halves: Sequence[str],
    ways: Sequence[str],
    workers: int,
    seconds: float,
) -> None:
    """Compiles what ``folder`` lacks, each program in a process of its own, for some seconds."""
    todo = [(model, way, half) for model in names for way, half in programs(model, halves, ways)]
    # Whole models, one after the other; then their programs in the last half type.
    todo.sort(key=lambda job: job[2] == halves[-1] and len(halves) > 1)
    todo = [job for job in todo if not file_of(folder, *job).exists()]
    end = time.monotonic() + seconds

    def one(job: tuple[str, str, str]) -> str:
        command = [sys.executable, "-m", "benchmarks.gpu_steps", "--folder", str(folder)]
        left = min(_LIMIT, end - time.monotonic())
        if left <= 0:
            return f"{job}: not begun in {seconds:.0f} s"
        try:
            done = subprocess.run(
                [*command, "--program", *job], capture_output=True, text=True, timeout=left
            )
        except subprocess.TimeoutExpired:
            return f"{job}: not compiled in {left:.0f} s"
        if done.returncode:
            said = [line for line in done.stderr.strip().splitlines() if line.strip()]
            record = {"failed": said[-1][:300] if said else f"ended with {done.returncode}"}
            file_of(folder, *job).write_text(json.dumps(record))
            return f"{job}: {record['failed']}"
        return f"{job}: {json.loads(file_of(folder, *job).read_text())['compile seconds']:.0f} s"

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for said in pool.map(one, todo):
            print(said, file=sys.stderr, flush=True)


def timed(
    folder: Path, names: Sequence[str], halves: Sequence[str], ways: Sequence[str]
) -> dict[str, Any]:
    """Runs what is compiled, model after model, and writes after each.

    One process times all models with all of the GPU's memory. Where it ends early, a new one goes
    on after the model that ended it.
    """
    into = folder / "times.json"
    figures: dict[str, Any] = {"device": "", "models": {}}
    if into.exists():
        figures = json.loads(into.read_text())
    left = [model for model in names if model not in figures["models"]]
    options = ["--folder", str(folder), "--half", *halves, "--ways", *ways]
    while left:
        command = [sys.executable, "-m", "benchmarks.gpu_steps", *options, "--models", *left]
        environment = {**os.environ, **_ALL_MEMORY}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
            for line in child.stdout or ():
                said = json.loads(line)
                figures |= {"device": said["device"]}
                figures["models"][said["model"]] = said["records"]
                into.write_text(json.dumps(figures))
                left.remove(said["model"])
                print(f"{said['model']}: timed", file=sys.stderr, flush=True)
        if left:
            print(f"{left.pop(0)}: not timed, {child.returncode}", file=sys.stderr, flush=True)
    return figures


def main() -> None:
    """Compiles, times and writes the result."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--half", nargs="+", choices=HALF_TYPES, default=list(HALF_TYPES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--workers", type=int, default=8, help="programs compiled at a time")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="compile for so long, then time"
    )
    parser.add_argument("--prepare", action="store_true", help="compile only")
    parser.add_argument("--time", action="store_true", help="time only")
    parser.add_argument("--program", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--models", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    for name, value in _SHARED_MEMORY.items():
        os.environ.setdefault(name, value)  # read when JAX first looks for devices
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.program:
        prepare(asked.folder, *asked.program)
        return
    if asked.models:
        for model in asked.models:
            records = measure(asked.folder, model, asked.half, asked.ways)
            said = {"device": jax.devices()[0].device_kind, "model": model, "records": records}
            print(json.dumps(said), flush=True)
        return
    if not asked.time:
        prepared(asked.folder, asked.only, asked.half, asked.ways, asked.workers, asked.seconds)
    if not asked.prepare:
        found = timed(asked.folder, asked.only, asked.half, asked.ways)
        figures = parts("gpu_steps")
        ran = {
            model: records
            for model, records in found["models"].items()
            if any("seconds" in record for record in records.values())
        }
        figures[found["device"]] = {**figures.get(found["device"], {}), **ran}
        write(Result("gpu_steps", QUESTION, COMMAND, bars(figures), text_of(figures), figures))


if __name__ == "__main__":
    main()
