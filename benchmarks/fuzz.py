# python -m benchmarks.fuzz
"""Is a random program, painted, as good as the same program in half by hand?

Programs are compositions of ``jax.numpy``, ``jax.nn``, ``jax.lax``, ``jax.scipy`` and of blocks of
models and solvers (``benchmarks/fuzzing``), each painted in one form and one half type and judged
against float64 by many draws of its inputs. Most are evaluated equation by equation, which costs
milliseconds; one in forty is compiled as well. A finding is an error more than three times that of
half by hand, a result that is not finite where by hand it is, another type, an exception; and a
process that ended or hung. ``--minimise SEED`` cuts a finding down and prints a program that shows
it by itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Before JAX is loaded: what a program has no NumPy operation for is compiled, once, and small.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

from rich.progress import Progress, TextColumn, TimeElapsedColumn

from benchmarks._common import Bar, Result, table, write
from benchmarks.fuzzing.minimise import minimised, reproducer
from benchmarks.fuzzing.work import case_of

QUESTION = "Is a random program, painted, as good as the same in half by hand?"
COMMAND = "python -m benchmarks.fuzz"
_ROOT = Path(__file__).parent.parent
_PATIENCE = 120.0
"""Seconds that one program may take."""
_BATCH = 400
"""Programs of one process: what it compiled is never freed otherwise."""


def _worker_command(first: int, stride: int, stop: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks.fuzzing.work", *map(str, (first, stride, stop))]


@dataclasses.dataclass
class _Worker:
    """A process that judges ``start``, ``start + stride``, ..."""

    start: int
    stride: int
    stop: int
    lines: queue.Queue[tuple[_Worker, str | None]]
    since: float = 0.0

    def launch(self) -> None:
        """Starts the process at ``start``."""
        stop = min(self.stop, self.start + self.stride * _BATCH)
        command = _worker_command(self.start, self.stride, stop)
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
        row = {"seed": self.start, "kind": kind, "text": text[:200], "steps": [], "ratio": 0.0}
        self.start += self.stride
        return row


def run(first: int, programs: int, minutes: float, workers: int) -> list[dict[str, Any]]:
    """Judges programs in several processes; rows as of :func:`benchmarks.fuzzing.work.judged`."""
    lines: queue.Queue[tuple[_Worker, str | None]] = queue.Queue()
    running = [_Worker(first + i, workers, first + programs, lines) for i in range(workers)]
    rows: list[dict[str, Any]] = []
    until = time.monotonic() + 60 * minutes
    shown = TextColumn("{task.completed}/{task.total} programs, {task.fields[found]} findings")
    with Progress(*Progress.get_default_columns(), shown, TimeElapsedColumn()) as progress:
        task = progress.add_task("fuzz", total=programs, found=0)
        for worker in running:
            worker.launch()
        while running and time.monotonic() < until:
            row = _next(lines, running)
            if row is not None:
                rows.append(row)
                found = sum(is_finding(row) for row in rows)
                progress.update(task, completed=len(rows), found=found)
                if is_finding(row):
                    progress.console.print(f"{row['seed']}: {row['kind']}: {row['text']}")
    for worker in running:
        worker.process.kill()
        worker.ended()
    return rows


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
        row = json.loads(line)
        worker.start, worker.since = row["seed"] + worker.stride, time.monotonic()
        return row
    row = worker.ended()
    if worker.start < worker.stop:
        worker.launch()
    else:
        running.remove(worker)
    return row


def is_finding(row: dict[str, Any]) -> bool:
    """Whether a person must look at it."""
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
        [
            step,
            used[step],
            sorted(ratios.get(step, [0.0]))[len(ratios.get(step, [0])) // 2],
            found[step],
            wrong[step],
        ]
        for step in sorted(used)
    ]
    header = ["operation", "programs", "median ratio", "in findings", "wrong"]
    texts = [
        table(["programs", "number"], sorted(kinds.items())),
        table(
            ["finding", "seed", "form", "way"],
            [
                [
                    f"{row['kind']}: {row['text']}",
                    row["seed"],
                    row.get("form", ""),
                    row.get("way", ""),
                ]
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
    parser.add_argument("--minimise", type=int, metavar="SEED", help="cut one program down instead")
    given = parser.parse_args(arguments)
    if given.minimise is not None:
        case, verdict = minimised(case_of(given.minimise))
        print(f"{verdict.kind}: {verdict.text}\n\n{reproducer(case)}")
        return
    start = time.monotonic()
    rows = run(given.seed, given.programs, given.minutes, given.workers)
    write(result_of(rows, time.monotonic() - start))


if __name__ == "__main__":
    main()
