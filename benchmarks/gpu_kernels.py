# python -m benchmarks.gpu_kernels
"""Which kernels of a training step take longer on this GPU than their bound says?

The bound of a kernel is the larger of its bytes over the bandwidth and its FLOPs over the peak, as
``duotone.compile_for`` says it without the device (``docs/targets.md``). Here each step of the zoo
runs under ``duotone.profile``, and XLA's own kernels are compared with their instruction in the
compiled program by name. Kernels of libraries are compared with all other instructions together.
``without optimizations`` is duotone with every optimization switched off.

It needs a GPU that is a target of duotone's. ``--folder`` keeps each program and its times, and
``--read`` compares those of an earlier run; ``benchmarks/results/gpu_kernels`` has the last one.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fcntl
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import duotone
from benchmarks._common import RESULTS, Result, environment, median, table, write
from benchmarks.gpu_steps import compiled_step, step_of, this_target
from benchmarks.zoo import MODELS
from duotone.cost.cost_of_program import cost_of
from duotone.cost.hlo import parse
from duotone.devices import TARGETS
from duotone.precision.optimize.optimizations import OPTIMIZATIONS

QUESTION = "Which kernels take longer on this GPU than their bound?"
COMMAND = "python -m benchmarks.gpu_kernels"
PLAIN = "without optimizations"
WAYS = ("float32", "by hand", "duotone", PLAIN)
STEPS, ROUNDS = 4, 5
LIBRARY = "of libraries"
_KINDS = {
    "gemm_fusion": "dots by Triton",
    "fusion": "rows by Triton",
    "input_transpose": "transposes",
    "wrapped_transpose": "transposes",
    "input": "reductions",
    "loop": "elementwise",
}
"""By the beginning of a kernel's name; the first that fits."""


def step_for(model: str, way: str, half: str) -> Callable[..., Any]:
    """The training step of one way."""
    if way == PLAIN:
        policy = duotone.Policy(optimizations_remove=[*OPTIMIZATIONS])
        return duotone.autocast(MODELS[model](None, "full").step, dtype=half, policy=policy)
    return step_of(model, way, half)


def timed(model: str, way: str, half: str, folder: Path) -> None:
    """Compiles a step, runs it alone on the GPU, and writes its program and times."""
    shapes = MODELS[model](None, "full").step_shapes()
    program = compiled_step(step_for(model, way, half), shapes)
    state, batch = map(jax.tree.leaves, shapes)
    draw = np.random.default_rng(0)
    with (folder / "one at a time").open("w") as lock, tempfile.TemporaryDirectory() as trace:
        fcntl.flock(lock, fcntl.LOCK_EX)
        arrays, inputs = ([_array(draw, leaf) for leaf in leaves] for leaves in (state, batch))
        rounds = []
        for _ in range(ROUNDS + 1):
            begun = time.perf_counter()
            for _ in range(STEPS):
                arrays, _ = program(arrays, inputs)
            jax.block_until_ready(arrays)
            rounds.append((time.perf_counter() - begun) / STEPS)
        with duotone.profile(trace) as seen:
            for _ in range(STEPS):
                arrays, _ = program(arrays, inputs)
            jax.block_until_ready(arrays)
    kernels = [[k.kernel, k.calls, k.seconds, k.tensor_cores] for k in seen.record.kernels]
    made = {"device": jax.devices()[0].device_kind, "seconds": median(rounds[1:])}
    made |= {"steps": seen.record.summary.counted, "environment": environment()}
    file = _file(folder, model, way)
    with lzma.open(file.with_suffix(".hlo.xz"), "wt") as text:
        text.write(re.sub(r'"/[^"]*/', '"', program.as_text() or ""))  # files without their folders
    file.write_text(json.dumps({**made, "kernels": kernels}))


def _file(folder: Path, model: str, way: str) -> Path:
    return folder / f"{model}-{way.replace(' ', '_')}.json"


def _array(draw: np.random.Generator, leaf: Any) -> jax.Array:
    """Small random numbers: times do not depend on whether a loss falls."""
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.asarray(0.02 * draw.standard_normal(leaf.shape, np.float32), leaf.dtype)
    return jnp.asarray(draw.integers(0, 10, leaf.shape), leaf.dtype)


def compared(text: str, record: dict[str, Any]) -> dict[str, Any]:
    """Compares the kernels of a step with the instructions of its program.

    Returns:
        Seconds of a step, its bound, and by kind of kernel the calls, seconds and bound of a step.
    """
    target = next(t for t in TARGETS.values() if t.description == record["device"])
    cost = cost_of(parse(text), target)
    known = {re.sub(r"\W", "_", kernel.name): kernel for kernel in cost.kernels}
    kinds: dict[str, list[float]] = {}
    left = cost.seconds
    for name, calls, seconds, _ in record["kernels"]:
        kernel = known.get(name)
        row = kinds.setdefault(LIBRARY if kernel is None else _kind(name), [0.0, 0.0, 0.0])
        times = calls / record["steps"]
        bound = 0.0 if kernel is None else kernel.seconds * times
        left -= bound
        for place, value in enumerate((times, seconds / record["steps"], bound)):
            row[place] += value
    if LIBRARY in kinds:
        kinds[LIBRARY][2] = max(left, 0.0)
    return {"seconds": record["seconds"], "bound": cost.seconds, "kinds": kinds}


def _kind(kernel: str) -> str:
    return next((kind for start, kind in _KINDS.items() if kernel.startswith(start)), "others")


def text_of(figures: dict[str, Any]) -> str:
    """A table of steps and one of kinds of kernels, in milliseconds of a step."""
    programs = figures["programs"]
    steps = [
        [name, f"{1e3 * p['seconds']:.2f}", f"{1e3 * p['bound']:.2f}", _ratio(p["seconds"], p)]
        for name, p in programs.items()
    ]
    rows = []
    for name, found in programs.items():
        for kind, (calls, seconds, bound) in sorted(found["kinds"].items(), key=_by_time):
            over = f"{seconds / bound:.2f}" if bound else "-"
            rows.append(
                [name, kind, f"{calls:.0f}", f"{1e3 * seconds:.2f}", f"{1e3 * bound:.2f}", over]
            )
    return "\n\n".join(
        [
            f"{figures['device']}, bfloat16, driver as found.",
            table(["step", "ms", "bound ms", "over bound"], steps),
            table(["step", "kernels", "calls", "ms", "bound ms", "over bound"], rows),
        ]
    )


def _by_time(row: tuple[str, Sequence[float]]) -> float:
    return -row[1][1]


def _ratio(seconds: float, program: dict[str, Any]) -> str:
    return f"{seconds / program['bound']:.2f}"


def read(folder: Path) -> dict[str, Any]:
    """Compares all programs of a folder."""
    figures: dict[str, Any] = {"device": "", "environment": None, "programs": {}}
    for file in sorted(folder.glob("*.json")):
        record = json.loads(file.read_text())
        figures |= {"device": record["device"], "environment": record["environment"]}
        with lzma.open(file.with_suffix(".hlo.xz"), "rt") as text:
            name = file.stem.replace("-", ", ").replace("_", " ")
            figures["programs"][name] = compared(text.read(), record)
    return figures


def main() -> None:
    """Runs what the folder lacks, compares, and writes the result."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument(
        "--only", nargs="+", choices=list(MODELS), default=["gpt2", "resnet50", "vit"]
    )
    parser.add_argument("--folder", type=Path, default=Path("/tmp/duotone-gpu-kernels"))
    parser.add_argument("--half", default="bfloat16")
    parser.add_argument("--workers", type=int, default=12, help="programs compiled at a time")
    parser.add_argument(
        "--read",
        action="store_true",
        help=f"compare what the folder has, such as {RESULTS.name}/gpu_kernels",
    )
    parser.add_argument("--program", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.program:
        model, way = asked.program
        timed(model, way, asked.half, asked.folder)
        return
    if not asked.read:
        this_target()
        _run_all(asked.only, asked.half, asked.folder, asked.workers)
    figures = read(asked.folder)
    around = figures.pop("environment")
    write(Result("gpu_kernels", QUESTION, COMMAND, [], text_of(figures), figures, around))


def _run_all(models: Sequence[str], half: str, folder: Path, workers: int) -> None:
    """Runs each program in a process of its own; they compile together and run alone."""
    jobs = [(m, w) for m in models for w in WAYS if not _file(folder, m, w).exists()]
    shared = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-m", "benchmarks.gpu_kernels", "--folder", str(folder)]

    def one(job: tuple[str, str]) -> str:
        done = subprocess.run(
            [*command, "--half", half, "--program", *job],
            capture_output=True,
            text=True,
            env=shared,
        )
        said = done.stderr.strip().splitlines()[-1:] if done.returncode else ["done"]
        return f"{', '.join(job)}: {''.join(said)}"

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for said in pool.map(one, jobs):
            print(said, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
