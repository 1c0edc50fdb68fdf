"""The shared parts of benchmarks: clocks, medians, counting equations, writing results.

A result is a JSON file and a text in ``results/``, both written by :func:`write`; nothing
in them is typed by hand. ``benchmarks/README.md`` is generated from all of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib.metadata
import json
import math
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks import _readme

RESULTS = Path(__file__).parent / "results"
THIS_VERSION = "JAX " + ".".join(jax.__version__.split(".")[:2])
"""The part of a file that this process measures."""


@dataclasses.dataclass(frozen=True)
class Bar:
    """A limit that a figure must keep.

    Attributes:
        name: what is measured.
        value: the figure.
        limit: the largest that is allowed.
        unit: of both.
    """

    name: str
    value: float
    limit: float
    unit: str

    @property
    def kept(self) -> bool:
        """Returns True if the figure keeps the limit; NaN does not."""
        return self.value <= self.limit


@dataclasses.dataclass(frozen=True)
class Result:
    """The findings of one benchmark.

    Attributes:
        name: of its file.
        question: what it answers.
        command: that was run.
        bars: the limits it checks.
        text: tables, as printed.
        figures: the same as data.
        environment: of the run, if another machine made the figures.
    """

    name: str
    question: str
    command: str
    bars: Sequence[Bar]
    text: str
    figures: dict[str, Any]
    environment: dict[str, str] | None = None


def environment() -> dict[str, str]:
    """Versions and the processor's model; nothing that names a machine or a place."""
    libraries = ("flax", "tensorflow_cpu", "tensorflow")
    versions = {
        name.removesuffix("_cpu"): importlib.metadata.version(name)
        for name in libraries
        if _is_installed(name)
    }
    return {
        "python": platform.python_version(),
        "jax": jax.__version__,
        **versions,
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "backend": jax.default_backend(),
    }


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _processor() -> str:
    """The processor's model name; its architecture where the system does not say."""
    described = Path("/proc/cpuinfo")
    if described.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", described.read_text(), re.MULTILINE)
        if found:
            return found.group(1).strip()
    return platform.machine()


def write(result: Result, folder: Path = RESULTS) -> None:
    """Prints a result and writes it to ``folder``; the README next to it is made anew."""
    folder.mkdir(exist_ok=True)
    bars = [{**dataclasses.asdict(bar), "kept": bar.kept} for bar in result.bars]
    around = result.environment or environment()
    data = {
        "question": result.question,
        "command": result.command,
        "environment": around,
        "bars": bars,
        "figures": _plain(result.figures),
    }
    head = ", ".join(f"{name} {value}" for name, value in around.items())
    text = f"{result.question}\n$ {result.command}\n{head}\n\n{result.text}\n\n{bar_table(bars)}"
    (folder / f"{result.name}.json").write_text(json.dumps(data, indent=1) + "\n")
    (folder / f"{result.name}.txt").write_text(text.rstrip() + "\n")
    (folder.parent / "README.md").write_text(_readme.render(folder))
    print(text)


def _plain(data: Any) -> Any:
    """Data as JSON can hold it: numbers that are not finite become their names."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def bar_table(bars: Sequence[dict[str, Any]]) -> str:
    """The limits, one in a line."""
    return "\n".join(
        f"{'kept  ' if bar['kept'] else 'MISSED'} {bar['name']}: "
        f"{bar['value']:.4g} {bar['unit']} (at most {bar['limit']:g})"
        for bar in bars
    )


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns: the first to the left, the others to the right."""
    cells = [list(header), *[[_cell(x) for x in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def _cell(x: Any) -> str:
    return f"{x:.3g}" if isinstance(x, float) else str(x)


def take_no_options(question: str) -> None:
    """Prints the question of a benchmark for ``--help``, and refuses every other word.

    Raises:
        SystemExit: the command has words after the name of the benchmark.
    """
    argparse.ArgumentParser(description=question).parse_args()


def chosen_names(text: str, allowed: Sequence[str], what: str) -> list[str]:
    """The names in a list divided by commas; ``what`` one of them is, for the message.

    Raises:
        SystemExit: a name is none of them.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise SystemExit(f"no {what} {', '.join(unknown)}; there are {', '.join(allowed)}")
    return names


def in_a_process(*command: str) -> Any:
    """The JSON that another process prints on its last line.

    Raises:
        RuntimeError: the process failed; the message has the end of what it printed.
    """
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def seconds(function: Callable[[], Any]) -> tuple[float, float, Any]:
    """How long ``function`` took by the clock and of processor time, and its result.

    Garbage is collected before, not during. Processor time is that of all threads; on a busy
    machine it is the steadier of the two.
    """
    gc.collect()
    start, busy = time.perf_counter(), time.process_time()
    result = function()
    return time.perf_counter() - start, time.process_time() - busy, result


def median(numbers: Sequence[float]) -> float:
    """The median."""
    return statistics.median(numbers)


def geometric_mean(numbers: Sequence[float]) -> float:
    """The geometric mean; infinite if a number is not positive and finite."""
    if not all(0 < number < math.inf for number in numbers):
        return math.inf
    return statistics.geometric_mean(numbers)


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each figure over rounds that all have the same figures."""
    return {name: median([figures[name] for figures in rounds]) for name in rounds[0]}


def equations(jaxpr: Any) -> int:
    """Number of first-order equations, nested programs included."""
    count = 0
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        inside = [equations(nested) for nested in nested_programs(eqn.params.values())]
        count += sum(inside) if inside else 1
    return count


def nested_programs(values: Any) -> Iterator[Any]:
    """The programs among an equation's parameters."""
    for value in values:
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from nested_programs(value)


def parts(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """Returns the figures so far, by version; empty if there are none."""
    file = folder / f"{name}.json"
    return json.loads(file.read_text())["figures"] if file.exists() else {}


def with_part(name: str, part: Any, folder: Path = RESULTS) -> dict[str, Any]:
    """Returns the figures so far, sorted by version, with ``part`` for this version."""
    found = {**parts(name, folder), THIS_VERSION: part}
    return dict(sorted(found.items(), key=lambda item: _number(item[0])))


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.removeprefix("JAX ").split("."))
