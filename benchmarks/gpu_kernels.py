# python -m benchmarks.gpu_kernels
"""Which kernels of a training step take longer on this GPU than their bound says?

The bound of a kernel is the larger of its bytes over the bandwidth and its FLOPs over the peak, as
``duotone.compile_for`` says it without the device (``docs/targets.md``). Here each step that
``python -m benchmarks.gpu_steps`` compiled is profiled, and XLA's own kernels are compared with
their instruction in the compiled program by name. Kernels of libraries are compared with all other
instructions together.

It needs the GPU for which the steps were compiled. ``--folder`` keeps the times next to the
programs, and ``--read`` compares those of an earlier run; ``benchmarks/results/gpu_kernels`` has
the last one.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import duotone
from benchmarks._common import RESULTS, Result, environment, table, write
from benchmarks.gpu_steps import FOLDER, START, load
from duotone.cost.cost_of_program import cost_of
from duotone.cost.hlo import parse
from duotone.devices import TARGETS

QUESTION = "Which kernels take longer on this GPU than their bound?"
COMMAND = "python -m benchmarks.gpu_kernels"
STEPS = 4
LIBRARY = "of libraries"
_TIMES = ".kernels.json"
_KINDS = {
    "gemm_fusion": "dots by Triton",
    "fusion": "rows by Triton",
    "input_transpose": "transposes",
    "wrapped_transpose": "transposes",
    "input": "reductions",
    "loop": "elementwise",
}
"""By the beginning of a kernel's name; the first that fits."""


def timed(folder: Path, program: str) -> None:
    """Profiles a compiled step that runs alone on the GPU, and writes the times of its kernels."""
    model, way, half = (*program.split("-"), "")[:3]
    step = load(folder, model, way, half)
    begin = load(folder, model, START, "")
    with (folder / "one at a time").open("w") as lock, tempfile.TemporaryDirectory() as trace:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state, batch = begin(jnp.uint32(0))

        def run() -> float:
            nonlocal state
            begun = time.perf_counter()
            for _ in range(STEPS):
                state, _ = step(state, batch)
            jax.block_until_ready(state)
            return (time.perf_counter() - begun) / STEPS

        run()
        seconds = run()
        with jax.profiler.trace(trace):
            run()
        fcntl.flock(lock, fcntl.LOCK_UN)
        seen = duotone.read_profile(trace).record
    kernels = [[k.kernel, k.calls, k.seconds, k.tensor_cores] for k in seen.kernels]
    made = {"device": jax.devices()[0].device_kind, "seconds": seconds}
    made |= {"steps": seen.summary.counted, "environment": environment(), "kernels": kernels}
    (folder / f"{program}{_TIMES}").write_text(json.dumps(made))


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
    """For each device, a table of steps and one of kinds of kernels, in milliseconds of a step."""
    return "\n\n".join(_text_of_device(device, found) for device, found in figures.items())


def _text_of_device(device: str, programs: dict[str, Any]) -> str:
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
            f"{device}, driver as found.",
            table(["step", "ms", "bound ms", "over bound"], steps),
            table(["step", "kernels", "calls", "ms", "bound ms", "over bound"], rows),
        ]
    )


def _by_time(row: tuple[str, Sequence[float]]) -> float:
    return -row[1][1]


def _ratio(seconds: float, program: dict[str, Any]) -> str:
    return f"{seconds / program['bound']:.2f}"


def read(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Compares all programs of a folder.

    Returns:
        The programs by device and name, and the environment of the last.
    """
    figures: dict[str, Any] = {}
    around: dict[str, str] = {}
    for file in sorted(folder.glob(f"*{_TIMES}")):
        program = file.name.removesuffix(_TIMES)
        record = json.loads(file.read_text())
        around = record["environment"]
        with lzma.open(folder / f"{program}.hlo.xz", "rt") as text:
            name = program.replace("-", ", ").replace("_", " ")
            figures.setdefault(record["device"], {})[name] = compared(text.read(), record)
    return figures, around


def main() -> None:
    """Runs what the folder lacks, compares, and writes the result."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--workers", type=int, default=12, help="programs loaded at a time")
    parser.add_argument(
        "--read",
        action="store_true",
        help=f"compare what the folder has, such as {RESULTS.name}/gpu_kernels",
    )
    parser.add_argument("--program", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.program:
        timed(asked.folder, asked.program)
        return
    if not asked.read:
        _run_all(asked.folder, asked.workers)
    figures, around = read(asked.folder)
    write(Result("gpu_kernels", QUESTION, COMMAND, [], text_of(figures), figures, around))


def _run_all(folder: Path, workers: int) -> None:
    """Runs each program in a process of its own; they load together and run alone."""
    programs = [file.name.removesuffix(".hlo.xz") for file in sorted(folder.glob("*.hlo.xz"))]
    left = [program for program in programs if not (folder / f"{program}{_TIMES}").exists()]
    if not programs:
        raise SystemExit(f"{folder} has no programs; run python -m benchmarks.gpu_steps first")
    shared = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-m", "benchmarks.gpu_kernels", "--folder", str(folder)]

    def one(program: str) -> str:
        done = subprocess.run(
            [*command, "--program", program], capture_output=True, text=True, env=shared
        )
        said = done.stderr.strip().splitlines()[-1:] if done.returncode else ["done"]
        return f"{program}: {''.join(said)}"

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for said in pool.map(one, left):
            print(said, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
