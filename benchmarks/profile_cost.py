# python -m benchmarks.profile_cost
"""What does ``duotone.profile`` cost: a step under it, and reading a trace of 200 MB?

Steps are plain gradient descent on models of the zoo in float32, in turn without
and under a profile; a profile's beginning and end, which JAX takes, are next to them. The large
trace is one that JAX wrote here, of a program of many small operations, which is the hardest case:
it has most events. It is read in a new process, whose memory is its own peak, JAX included.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import duotone
from benchmarks._common import Bar, Result, in_a_process, median, table, write
from benchmarks.zoo import MODELS
from benchmarks.zoo.case import Case

QUESTION = "What does duotone.profile cost: a step under it, and reading a trace of 200 MB?"
NAMES = ("resnet50", "gpt2", "unet")
"""The models of the zoo, at their smallest size."""
ROUNDS, STEPS = 20, 8
RUNS = 7200
"""Runs of :func:`many_operations` whose trace has 200 MB and a little more."""
LIMITS = {"step": 1.1, "seconds": 20.0, "megabytes": 1000.0}


def training_step(case: Case) -> tuple[Callable[[Any], Any], Any]:
    """One step of gradient descent, and the parameters."""
    params, batch = case.init(jax.random.key(0)), case.batch(jax.random.key(1), "ordinary")

    @jax.jit
    def step(params: Any) -> Any:
        grads = jax.grad(case.loss)(params, batch)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, params, grads)

    return step, params


def step_seconds(step: Callable[[Any], Any], params: Any, steps: int) -> list[float]:
    """Seconds of each of some steps."""
    spent = []
    for _ in range(steps):
        start = time.perf_counter()
        params = jax.block_until_ready(step(params))
        spent.append(time.perf_counter() - start)
    return spent


def step_row(case: Case, rounds: int, steps: int) -> dict[str, float]:
    """A step without and under a profile, in turn."""
    step, params = training_step(case)
    step_seconds(step, params, 3)
    plain, under, begins, ends, events = [], [], [], [], 0
    for _ in range(rounds):
        gc.collect()
        plain += step_seconds(step, params, steps)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            profile = duotone.profile(folder)
            with profile:
                begins.append(time.perf_counter() - start)
                under += step_seconds(step, params, steps)
                start = time.perf_counter()
            ends.append(time.perf_counter() - start)
        events = sum(row.kernels for row in profile.record.iterations)
    return {
        "plain ms": 1e3 * median(plain),
        "profiled ms": 1e3 * median(under),
        "ratio": median(under) / median(plain),
        "operations a step": events / steps,
        "begin s": median(begins),
        "end s": median(ends),
    }


@jax.jit
def many_operations(x: jax.Array) -> jax.Array:
    """A program of 240 operations that take a microsecond each."""
    for _ in range(60):
        x = jnp.tanh(x @ x)
        x = x / jnp.linalg.norm(x)
    return x


def write_trace(folder: Path, runs: int) -> tuple[Path, float]:
    """Takes a large trace; returns its file and how long JAX took to write it."""
    x = jax.block_until_ready(many_operations(jnp.ones((8, 8))))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(folder, profiler_options=options)
    for _ in range(runs):
        x = many_operations(x)
    jax.block_until_ready(x)
    start = time.perf_counter()
    jax.profiler.stop_trace()
    (file,) = folder.rglob("*.xplane.pb")
    return file, time.perf_counter() - start


def reading(file: Path) -> dict[str, float]:
    """How long this process takes to read a trace, and its memory at most."""
    before = peak_megabytes()
    start = time.perf_counter()
    record = duotone.read_profile(file).record
    return {
        "megabytes of trace": file.stat().st_size / 1e6,
        "operations": sum(row.kernels for row in record.iterations),
        "iterations": record.summary.iterations,
        "seconds": time.perf_counter() - start,
        "peak MB": peak_megabytes(),
        "peak MB before": before,
    }


def peak_megabytes() -> float:
    """The most memory that this process has used, of its own program where the system tells."""
    status = Path("/proc/self/status")
    if status.exists():  # what getrusage tells is begun by the parent's size
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def measure(
    cases: dict[str, Case] | None = None, rounds: int = ROUNDS, steps: int = STEPS, runs: int = RUNS
) -> tuple[list[Bar], str, dict[str, Any]]:
    """Both questions; returns bars, tables and data."""
    cases = cases or {name: MODELS[name](None, "tiny") for name in NAMES}
    rows = {name: step_row(case, rounds, steps) for name, case in cases.items()}
    with tempfile.TemporaryDirectory() as folder:
        file, seconds = write_trace(Path(folder), runs)
        command = (sys.executable, "-m", "benchmarks.profile_cost", "--read", str(file))
        large = {**in_a_process(*command), "JAX wrote it in s": seconds}
    bars = [
        Bar(f"a step under profile over a plain one, {name}", row["ratio"], LIMITS["step"], "times")
        for name, row in rows.items()
    ]
    bars += [
        Bar("reading the large trace", large["seconds"], LIMITS["seconds"], "s"),
        Bar("memory at most, JAX included", large["peak MB"], LIMITS["megabytes"], "MB"),
    ]
    columns = list(next(iter(rows.values())))
    text = "\n\n".join(
        [
            table(["a step", *columns], [[name, *row.values()] for name, row in rows.items()]),
            table(["reading a trace", ""], [[name, float(f)] for name, f in large.items()]),
        ]
    )
    return bars, text, {"steps": rows, "reading": large}


def main() -> None:
    """Measures and writes the result; with ``--read`` only prints how one trace was read."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--read", type=Path)
    file = parser.parse_args().read
    if file is not None:
        print(json.dumps(reading(file)))
        return
    bars, text, data = measure()
    write(Result("profile_cost", QUESTION, "python -m benchmarks.profile_cost", bars, text, data))


if __name__ == "__main__":
    main()
