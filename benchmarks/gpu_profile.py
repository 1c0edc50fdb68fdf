# python -m benchmarks.gpu_profile
"""Does ``duotone.profile`` know which kernels of a GPU use Tensor Cores?

``duotone.profile`` decides by the names of kernels and the compiler's metadata. Here the hardware
decides: NVIDIA's ``ncu`` counts the Tensor Core instructions of every kernel of the same training
steps. The models are those of ``benchmarks/models``, in float32 and painted in both half types.
Both processes compile the programs on their own, so kernels are compared by name, and a kernel that
only one of them chose is counted apart.

It needs a GPU of NVIDIA's and ``ncu`` (Nsight Compute) with access to hardware counters.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

import duotone
from benchmarks._common import Bar, Result, table, write
from benchmarks.models import CASES, Case

QUESTION = "Does duotone.profile know which kernels use Tensor Cores, beside hardware counters?"
COMMAND = "python -m benchmarks.gpu_profile"
MODELS = ("resnet", "transformer")
DTYPES = ("float32", "bfloat16", "float16")
STEPS = 4
_PROFILER = ("ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv")
_NAMES = ("--page", "raw", "--print-kernel-base", "demangled")
_METRIC = re.compile(r"^(sm__inst_executed_pipe_tensor\w*)", re.MULTILINE)


def step_of(case: Case, dtype: str) -> tuple[Callable[[Any], Any], Any]:
    """One step of gradient descent in a dtype, and the parameters."""
    params, batch = case.init(jax.random.key(0)), case.batch(jax.random.key(1), "ordinary")
    gradient = jax.grad(case.loss)
    if dtype != "float32":
        gradient = duotone.autocast(gradient, dtype=dtype)

    @jax.jit
    def step(params: Any) -> Any:
        return jax.tree.map(lambda w, g: w - 1e-3 * g, params, gradient(params, batch))

    return step, params


def profiled(model: str, dtype: str) -> dict[str, str | None]:
    """Runs the steps under ``duotone.profile``.

    Returns:
        By kernel, whether it uses Tensor Cores: ``"yes"``, ``"no"``, ``"unknown"`` or ``None``.
    """
    step, params = step_of(CASES[model](), dtype)
    params = jax.block_until_ready(step(params))
    with tempfile.TemporaryDirectory() as folder:
        with duotone.profile(folder) as seen:
            for _ in range(STEPS):
                params = step(params)
            jax.block_until_ready(params)
        return {row.kernel: row.tensor_cores for row in seen.record.kernels}


def run(model: str, dtype: str) -> None:
    """Runs the steps for ``ncu``, which looks only while the driver's profiler is on."""
    step, params = step_of(CASES[model](), dtype)
    params = jax.block_until_ready(step(params))
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuProfilerStart()
    jax.block_until_ready(step(params))
    driver.cuProfilerStop()


def metrics() -> list[str]:
    """Returns the counter of Tensor Core instructions that this GPU has.

    One alone: ``ncu`` reads it while the kernel runs once, and saves and restores no memory.
    """
    asked = subprocess.run(["ncu", "--query-metrics"], capture_output=True, text=True, check=True)
    found = sorted(set(_METRIC.findall(asked.stdout)), key=len)
    if not found:
        raise SystemExit("ncu names no counter of Tensor Core instructions for this GPU")
    print(f"ncu counts {found[0]}, of {', '.join(found)}", file=sys.stderr, flush=True)
    return [f"{found[0]}.sum"]


def counted(model: str, dtype: str, asked: Sequence[str]) -> dict[str, bool]:
    """Returns, by kernel, whether ``ncu`` counted a Tensor Core instruction."""
    command = [*_PROFILER, *_NAMES, "--metrics", ",".join(asked)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        this = [sys.executable, "-m", "benchmarks.gpu_profile", "--run", model, dtype]
        subprocess.run([*command, "--log-file", str(log), *this], check=True, capture_output=True)
        return read(log.read_text(), asked)


def read(text: str, asked: Sequence[str]) -> dict[str, bool]:
    """Reads the CSV of ``ncu``; a kernel that ran several times is there once."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found: dict[str, bool] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        values = [row[name] for name in asked if name in row]
        if row["Kernel Name"] and values and row["ID"]:
            used = any(float(value.replace(",", "") or 0) > 0 for value in values)
            found[row["Kernel Name"]] = found.get(row["Kernel Name"], False) or used
    return found


def plain(kernel: str) -> str:
    """Returns the name of a kernel without its arguments, as both tools write it."""
    return re.sub(r"\s+", "", kernel.removeprefix("void ").partition("(")[0])


def compared(said: dict[str, str | None], seen: dict[str, bool]) -> dict[str, Any]:
    """Compares what the names say with what was counted, kernel by kernel."""
    by_name = {plain(kernel): kernel for kernel in said}
    figures: dict[str, Any] = {"right": 0, "unknown": [], "wrong": [], "only counted": []}
    for kernel, used in seen.items():
        known = by_name.get(plain(kernel))
        if known is None:
            figures["only counted"].append(kernel)
        elif said[known] not in ("yes", "no"):
            figures["unknown"].append(kernel)
        elif (said[known] == "yes") == used:
            figures["right"] += 1
        else:
            figures["wrong"].append(kernel)
    return figures


def text_of(figures: dict[str, Any]) -> str:
    """One row for each program, and the names of kernels for which the answer was wrong."""
    header = ["steps", "kernels", "right", "not known", "wrong", "in one process only"]
    rows, names = [], []
    for program, found in figures["programs"].items():
        others = [found[name] for name in ("unknown", "wrong", "only counted")]
        count = found["right"] + sum(map(len, others))
        rows.append([program, count, found["right"], *map(len, others)])
        names += [f"{program}, wrong: {kernel[:160]}" for kernel in found["wrong"]]
    return "\n".join([f"{figures['device']}", "", table(header, rows), "", *names])


def main() -> None:
    """Runs every program twice, compares, and writes the result."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(MODELS))
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--profile", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.run:
        run(*asked.run)
        return
    if asked.profile:
        print(json.dumps([jax.devices()[0].device_kind, profiled(*asked.profile)]))
        return
    if shutil.which("ncu") is None:
        raise SystemExit("ncu is not on the PATH: install NVIDIA's Nsight Compute")
    names, figures = metrics(), {"device": "", "programs": {}}
    for model in asked.only:
        for dtype in DTYPES:
            command = [sys.executable, "-m", "benchmarks.gpu_profile", "--profile", model, dtype]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            figures["device"], said = json.loads(done.stdout.splitlines()[-1])
            found = compared(said, counted(model, dtype, names))
            figures["programs"][f"{model}, {dtype}"] = found
            print(f"{model}, {dtype}: {found['right']} right", file=sys.stderr, flush=True)
    wrong = sum(len(found["wrong"]) for found in figures["programs"].values())
    bars = [Bar("kernels of which duotone.profile says the wrong thing", wrong, 0, "kernels")]
    write(Result("gpu_profile", QUESTION, COMMAND, bars, text_of(figures), figures))


if __name__ == "__main__":
    main()
