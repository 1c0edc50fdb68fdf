# python -m benchmarks.cpu_steps
"""Does duotone make training steps faster on this CPU, and never slower?

Each model of the zoo at CPU size, its whole training step (loss, gradient, update), in a process of
its own: float32, ``duotone.autocast(step)`` with its defaults, ``value_and_grad(autocast(loss))``,
and dtypes set by hand in bfloat16. The ways run in turn, round after round, each round beginning
with another one; a figure is the median over rounds of float32's time over the way's: above 1 is
faster than float32. "fails" is a step that compiles and then raises when it runs, "same" one whose
compiled program is float32's: duotone declined everything.

``--only gpt2 vit`` measures some models, ``--resume`` leaves out what this version of JAX has
already. ``benchmarks.peers_cpu`` measures PyTorch's own gain. Run it once for each version of JAX:
each has its own table in the result.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

import duotone
from benchmarks._common import (
    THIS_VERSION,
    Bar,
    Result,
    in_a_process,
    median,
    parts,
    table,
    with_part,
    write,
)
from benchmarks.zoo import MODELS
from benchmarks.zoo.case import TrainCase
from benchmarks.zoo.gpt2 import GPT2, Shape, language_model_case
from duotone.devices.half_choice import FAST_CPU_FLAGS, cpu_flags

QUESTION = "Does duotone make training steps faster on this CPU, and never slower?"
WITH_OPTIONS = "with options"
WAYS = ("duotone", WITH_OPTIONS, "value_and_grad(autocast)", "by hand")
GAINS = ("gpt2", "gpt2_wide", "vit")
"""The models that must gain."""
CONVOLUTIONS = frozenset("resnet50 convnext unet gan efficientnet conformer wavenet unet3d".split())
"""The models that convolutions are most of."""
ROUNDS = 31
_SECONDS = 90.0


def gpt2_wide(dtype: Any = None, size: str = "cpu") -> TrainCase:
    """A GPT-2 between the zoo's CPU size and the published one."""
    layers, width, vocabulary = (4, 512, 8192) if size == "cpu" else (1, 32, 64)
    length = 256 if size == "cpu" else 8
    shape = Shape(4, length, layers, width, 8, vocabulary, length)
    model = GPT2(shape, dtype=dtype)
    return language_model_case("GPT-2, 4 x 512", model, shape, "position")


CASES = {**MODELS, "gpt2_wide": gpt2_wide}


def steps(make: Any, size: str) -> dict[str, Any]:
    """The training step of each way."""
    case: TrainCase = make(None, size)
    found = {
        "float32": case.step,
        "duotone": duotone.autocast(case.step),
        WITH_OPTIONS: duotone.autocast(case.step, policy=duotone.Policy(compiler_options=True)),
        "by hand": make(jnp.bfloat16, size).step,
    }
    if case.step_with is not None:
        found["value_and_grad(autocast)"] = case.step_with(
            lambda loss: jax.value_and_grad(duotone.autocast(loss), has_aux=True)
        )
    return found


def measure(name: str, size: str = "cpu", rounds: int = ROUNDS) -> dict[str, Any]:
    """Median speed-ups of one model's step over float32.

    There are fewer rounds, but five at least, where they take longer than a minute and a half.
    """
    case = CASES[name](None, size)
    state, batch = case.start(jax.random.key(0)), case.batch(jax.random.key(1), "ordinary")
    row: dict[str, Any] = {"model": name, "name": case.name, "failures": {}, "compile": {}}
    programs: dict[str, Any] = {}
    for way, step in steps(CASES[name], size).items():
        begun = time.perf_counter()
        try:
            options = duotone.compiler_options() if way == WITH_OPTIONS else None
            program = jax.jit(step, compiler_options=options).lower(state, batch).compile()
            row["compile"][way] = time.perf_counter() - begun
            jax.block_until_ready(program(state, batch))
        except jax.errors.JaxRuntimeError as error:
            row["failures"][way] = str(error).splitlines()[0]
            continue
        programs[way] = program
    times: dict[str, list[float]] = {way: [] for way in programs}
    begun = time.perf_counter()
    while (done := len(times["float32"])) < rounds:
        turn = done % len(programs)
        for way, program in [*programs.items()][turn:] + [*programs.items()][:turn]:
            start = time.perf_counter()
            jax.block_until_ready(program(state, batch))
            times[way].append(time.perf_counter() - start)
        if time.perf_counter() - begun > _SECONDS and done >= 4:
            break
    plain = times["float32"]
    row["seconds"] = {way: median(taken) for way, taken in times.items()}
    row["speedups"] = {
        way: median([a / b for a, b in zip(plain, taken, strict=True)])
        for way, taken in times.items()
    }
    row["rounds"] = len(plain)
    row["same"] = "duotone" in programs and (
        _instructions(programs["duotone"]) == _instructions(programs["float32"])
    )
    return row


def _instructions(program: Any) -> list[str]:
    """A compiled program's instructions without names and metadata, in no order."""
    text = re.sub(r", metadata=\{[^{}]*\}", "", program.as_text())
    text = re.sub(r"\b[\w.\-]+: ", "", re.sub(r"%[\w.\-]+", "%", text))
    lines = text.splitlines()
    return sorted(line for line in lines if line.lstrip().startswith(("%", "ROOT")))


def bars(found: dict[str, Any]) -> list[Bar]:
    """The limits, as duotone's time over float32's."""
    made = []
    for version, part in found.items():
        number = tuple(int(digits) for digits in version.removeprefix("JAX ").split("."))
        wanted = 1.3 if number >= (0, 12) else 1.2
        for row in part["rows"]:
            speed = 1.0 if row["same"] else row["speedups"].get("duotone", float("nan"))
            limit = 1 / (wanted if row["model"] in GAINS else 0.97)
            name = f"{version}, {row['name']}: duotone's time over float32's"
            made.append(Bar(name, 1 / speed, limit, "times"))
        dots = [row for row in part["rows"] if row["model"] not in CONVOLUTIONS]
        whole = {row["model"] for row in dots} == {*CASES} - CONVOLUTIONS
        if whole:
            mean = statistics.geometric_mean(1 / row["speedups"]["duotone"] for row in dots)
            name = f"{version}, models without convolutions: duotone's time, geometric mean"
            made.append(Bar(name, mean, 1 / 1.4, "times"))
    return made


def _line(row: dict[str, Any]) -> list[str]:
    speeds = [
        f"{row['speedups'][way]:.2f}"
        if way in row["speedups"]
        else ("fails" if way in row["failures"] else "-")
        for way in WAYS
    ]
    if row["same"]:
        speeds[0] = "same"
    return [row["name"], f"{row['seconds']['float32'] * 1e3:.0f}", *speeds]


def _text(part: dict[str, Any]) -> str:
    """The table of one version of JAX."""
    header = [f"JAX {part['jax']}", "float32 ms", *WAYS]
    lines = [table(header, [_line(row) for row in part["rows"]])]
    lines.append(f"CPU flags: {', '.join(part['flags']) or 'none of those with bfloat16'}.")
    return "\n".join(lines)


def result(rows: Sequence[dict[str, Any]]) -> Result:
    """The tables of all versions of JAX, this one's new."""
    flags = sorted(FAST_CPU_FLAGS & cpu_flags())
    part = {"jax": jax.__version__, "flags": flags, "rows": list(rows)}
    found = with_part("cpu_steps", part)
    text = "\n\n".join(_text(part) for part in found.values())
    text += "\n\nThe zoo at its CPU size. Speed-ups over float32."
    return Result("cpu_steps", QUESTION, "python -m benchmarks.cpu_steps", bars(found), text, found)


def main() -> None:
    """Measures model after model, and writes the table after each."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at most, of each model")
    parser.add_argument("--resume", action="store_true", help="leave out what is measured")
    parser.add_argument("--child", choices=list(CASES), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(measure(asked.child, rounds=asked.rounds)))
        return
    known = parts("cpu_steps").get(THIS_VERSION, {"rows": []})
    rows = {row["model"]: row for row in known["rows"]}
    for name in asked.only:
        if asked.resume and name in rows:
            continue
        command = (sys.executable, "-m", "benchmarks.cpu_steps", "--child", name)
        rows[name] = in_a_process(*command, "--rounds", str(asked.rounds))
        write(result([rows[model] for model in CASES if model in rows]))
    write(result([rows[model] for model in CASES if model in rows]))


if __name__ == "__main__":
    main()
