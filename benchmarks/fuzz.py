# python -m benchmarks.fuzz
"""Is a random program, painted, as good as the same program in half by hand?

Programs are compositions of ``jax.numpy``, ``jax.nn``, ``jax.lax``, ``jax.scipy`` and of blocks of
models and solvers (``benchmarks/fuzzing``), each painted in one form and one half type and judged
against float64 by many draws of its inputs. Most are evaluated equation by equation, which costs
milliseconds; one in forty is compiled as well. A finding is an error more than three times that of
half by hand, a result that is not finite where by hand it is, another type, an exception; and a
process that ended or hung. ``--minimise SEED`` cuts a finding down and prints a program that shows
it by itself. ``--rows FILE`` keeps every row as it comes; a later run with that file judges only
the seeds that it lacks, and its result is of all rows in the file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median_high
from typing import Any

# Before JAX is loaded: what a program has no NumPy operation for is compiled, once, and small.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import numpy as np
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from benchmarks._common import Bar, Result, table, write
from benchmarks.fuzzing.judge import FORMS, WAYS, Case, judge
from benchmarks.fuzzing.minimise import minimised, reproducer
from benchmarks.fuzzing.programs import random_program

QUESTION = "Is a random program, painted, as good as the same in half by hand?"
COMMAND = "python -m benchmarks.fuzz"
_ROOT = Path(__file__).parent.parent
_PATIENCE = 600.0
"""Seconds that one program may take."""
_BATCH = 400
"""Programs of one process: what it compiled is never freed otherwise."""


_LIKELY = (0.45, 0.45, 0.1)
"""The probability of each of :data:`WAYS`."""
_COMPILED = 40
"""One program in as many is compiled."""
_WRONG, _TIMES_FLOAT32 = 0.1, 100.0


def case_of(seed: int) -> Case:
    """The program of a seed, and how it is painted."""
    random = np.random.default_rng([seed, 2])
    form, way = random.choice(FORMS), random.choice(WAYS, p=_LIKELY)
    return Case(random_program(seed), str(form), str(way), seed, seed % _COMPILED == 0)


def judged(seed: int) -> dict[str, Any]:
    """A row: seed, form, way, operations and verdict."""
    case = case_of(seed)
    verdict = judge(case)
    return {
        "seed": seed,
        "form": case.form,
        "way": case.way,
        "steps": sorted(case.program.steps()),
        "kind": verdict.kind,
        "text": verdict.text if verdict.is_finding else "",
        "ratio": verdict.ratio if math.isfinite(verdict.ratio) else 1e9,
        "wrong": verdict.error > _WRONG and verdict.beside_float32 > _TIMES_FLOAT32,
    }


def _worker_command(seeds: Sequence[int]) -> list[str]:
    return [sys.executable, "-m", "benchmarks.fuzz", "--judge", *map(str, seeds)]


@dataclasses.dataclass
class _Worker:
    """A process that judges ``seeds``, those judged taken away."""

    seeds: deque[int]
    lines: queue.Queue[tuple[_Worker, str | None]]
    since: float = 0.0

    def launch(self) -> None:
        """Starts the process at the first of ``seeds``."""
        command = _worker_command(list(self.seeds)[:_BATCH])
        self.process = subprocess.Popen(
            command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.since = time.monotonic()
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                self.lines.put((self, line))
        self.lines.put((self, None))

    def ended(self) -> dict[str, Any] | None:
        """After the process ended: the finding that it was, if it was one."""
        assert self.process.stderr is not None
        with self.process.stderr as errors:
            said = errors.read().strip().splitlines()
        code = self.process.wait()
        if code == 0:
            return None
        kind = "hung" if time.monotonic() - self.since > _PATIENCE else "aborted"
        text = next((line for line in said if "Cannot" in line or "rror" in line), f"exit {code}")
        seed = self.seeds.popleft()
        return {"seed": seed, "kind": kind, "text": text[:200], "steps": [], "ratio": 0.0}


def run(
    seeds: Sequence[int], minutes: float, workers: int, keep: Callable[[dict[str, Any]], None]
) -> None:
    """Judges programs in several processes.

    ``keep`` is given each row of :func:`judged` as it comes.
    """
    lines: queue.Queue[tuple[_Worker, str | None]] = queue.Queue()
    shares = [deque(seeds[i::workers]) for i in range(workers)]
    running = [_Worker(share, lines) for share in shares if share]
    judged = found = 0
    until = time.monotonic() + 60 * minutes
    shown = TextColumn("{task.completed}/{task.total} programs, {task.fields[found]} findings")
    with Progress(*Progress.get_default_columns(), shown, TimeElapsedColumn()) as progress:
        task = progress.add_task("fuzz", total=len(seeds), found=0)
        for worker in running:
            worker.launch()
        while running and time.monotonic() < until:
            row = _next(lines, running)
            if row is not None:
                keep(row)
                judged, found = judged + 1, found + is_finding(row)
                progress.update(task, completed=judged, found=found)
                if is_finding(row):
                    progress.console.print(f"{row['seed']}: {row['kind']}: {row['text']}")
    for worker in running:
        worker.process.kill()
        worker.ended()


def _next(lines: Any, running: list[_Worker]) -> dict[str, Any] | None:
    """The next row, if one comes soon; processes that hang are ended, ended ones started again."""
    try:
        worker, line = lines.get(timeout=1.0)
    except queue.Empty:
        for worker in running:
            if time.monotonic() - worker.since > _PATIENCE:
                worker.process.kill()
        return None
    if line is not None:
        if not line.startswith('{"seed"'):  # what a program or the compiler prints
            print(line, end="", file=sys.stderr)
            return None
        row = json.loads(line)
        worker.seeds.popleft()
        worker.since = time.monotonic()
        return row
    row = worker.ended()
    if worker.seeds:
        worker.launch()
    else:
        running.remove(worker)
    return row


def is_finding(row: dict[str, Any]) -> bool:
    """Returns True if a person must look at it."""
    return row["kind"] not in ("good", "skipped")


def result_of(rows: Sequence[dict[str, Any]], seconds: float) -> Result:
    """What :func:`~benchmarks._common.write` writes."""
    kinds = Counter(row["kind"] for row in rows)
    findings = [row for row in rows if is_finding(row)]
    used, found, wrong = Counter[str](), Counter[str](), Counter[str]()
    ratios: dict[str, list[float]] = {}
    for row in rows:
        used.update(row["steps"])
        if is_finding(row):
            found.update(row["steps"])
        if row.get("wrong"):
            wrong.update(row["steps"])
        if row["kind"] == "good":
            for step in row["steps"]:
                ratios.setdefault(step, []).append(row["ratio"])
    by_step = [
        [step, used[step], median_high(ratios.get(step, [0.0])), found[step], wrong[step]]
        for step in sorted(used)
    ]
    keys = ("seed", "form", "way")
    header = ["operation", "programs", "median ratio", "in findings", "wrong"]
    texts = [
        table(["programs", "number"], sorted(kinds.items())),
        table(
            ["finding", *keys],
            [
                [f"{row['kind']}: {row['text']}", *(row.get(key, "") for key in keys)]
                for row in findings
            ],
        ),
        table(header, by_step),
        "ratio: error of the worst output over that of half by hand.\n"
        "wrong: an error above 0.1 and 100 times float32's; by hand it may be as large.",
    ]
    figures = {
        "programs": len(rows),
        "seconds": round(seconds, 1),
        "kinds": dict(kinds),
        "findings": findings,
        "operations": {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in by_step},
    }
    bars = [Bar("findings", float(len(findings)), 0.0, f"of {len(rows)} programs")]
    return Result("fuzz", QUESTION, COMMAND, bars, "\n\n".join(texts), figures)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=20_000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first program's")
    parser.add_argument("--minutes", type=float, default=40.0, help="no longer than this")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="keeps rows; goes on from them")
    parser.add_argument("--minimise", type=int, metavar="SEED", help="cut one program down instead")
    parser.add_argument("--judge", nargs="+", type=int, metavar="SEED", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.judge:
        logging.getLogger("duotone").setLevel(logging.ERROR)
        for seed in given.judge:
            print(json.dumps(judged(seed)), flush=True)
        return
    if given.minimise is not None:
        case, verdict = minimised(case_of(given.minimise))
        print(f"{verdict.kind}: {verdict.text}\n\n{reproducer(case)}")
        return
    start = time.monotonic()
    rows = _rows_in(given.rows)
    known = {row["seed"] for row in rows}
    seeds = [s for s in range(given.seed, given.seed + given.programs) if s not in known]
    run(seeds, given.minutes, given.workers, lambda row: _keep(row, rows, given.rows))
    write(result_of(rows, time.monotonic() - start))


def _rows_in(path: Path | None) -> list[dict[str, Any]]:
    """Rows that earlier runs kept in a file."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _keep(row: dict[str, Any], rows: list[dict[str, Any]], path: Path | None) -> None:
    rows.append(row)
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
