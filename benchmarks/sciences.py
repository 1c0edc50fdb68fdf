# python -m benchmarks.sciences
"""Is the answer of a scientific program as good as float32's where half cannot hold it?

Small programs over public libraries, from their documentation, and networks with solves inside
(``benchmarks/science/``): what a user looks at, in float64, float32, and painted: float16 and
bfloat16 forced on any device, and default mode. The libraries are installed with
``duotone[sciences]``; a program whose library is missing keeps the row it had. Textbook programs
without a library are in ``tests/numerics``, which run with every change.

To add a program, add a :class:`~benchmarks.science.case.Program` to one of the files in
``benchmarks/science``.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import math
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks._common import RESULTS, Bar, Result, table, write
from benchmarks.science import PROGRAMS
from benchmarks.science.case import Program
from benchmarks.science.measure import ENOUGH, WAYS, Row, available, rows

QUESTION = "Is the answer of a scientific program as good as float32's?"
COMMAND = "python -m benchmarks.sciences"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "coverage" / "sciences.md"
RECORDS = RESULTS / "sciences.json"

_HEAD = """\
<!-- written by python -m benchmarks.sciences; do not edit -->

# Scientific programs

Small programs from the documentation of public libraries, and networks with solves inside: the
results of each in mixed precision, compared with float32. Textbook programs without a library are
tests (`tests/numerics`).

**{kept} of {total} programs are as good as float32 in all three ways.**

- *float32*: the error of float32 against float64, relative to the root mean square of the figure,
  geometric mean over {seeds} seeds. If the truth is known (samplers, evolution strategies), it is
  the figure itself: an error, a best value, draws over effective sample size.
- *float16*, *bfloat16* (forced with `ignore_performance=True`) and *default* (`autocast(f)`, on a
  CPU with bfloat16 instructions): the error divided by that of float32. At most {enough:g} is as
  good. If rounding errors grow as large as the result (*chaotic*), the divisor is at least the
  error of a float32 run with arguments perturbed by a millionth. If most of a program is a network
  (*network*), the divisor is the larger of half an epsilon of the half type and the error of the
  same program with half dots by hand in its network and float32 after it.
- *half*: operations in half, in the three ways, of all.
- *verdict*: `float32` if nothing is half, because half would not do;
  [`explain`](../getting-started.md) names the rule.

{versions}.

Written by `python -m benchmarks.sciences` from `benchmarks/results/sciences.json`; the programs are
in `benchmarks/science/`, their libraries in the extra `duotone[sciences]`.

"""
_COLUMNS = ("program", "library", "figure", "float32", *WAYS, "half", "verdict")


def page(data: dict[str, Any]) -> str:
    """The page for the records."""
    figures = data["figures"]["programs"]
    found = rows_of(figures)
    head = _HEAD.format(
        kept=len(figures) - failing(figures),
        total=len(figures),
        seeds=PROGRAMS[0].seeds,
        enough=ENOUGH,
        versions=_versions(data["environment"], data["figures"]["libraries"]),
    )
    lines = [_COLUMNS, ["---", "---", "---", *["--:"] * 5, "---"], *map(_cells, found)]
    return head + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _versions(around: dict[str, str], libraries: dict[str, str]) -> str:
    names = [f"{name} {version}" for name, version in sorted(libraries.items())]
    return f"Python {around['python']}, JAX {around['jax']}; " + ", ".join(names)


def rows_of(figures: dict[str, list[dict[str, Any]]]) -> list[Row]:
    """The rows of all programs that have some, in order."""
    return [Row(**_numbers(one)) for program in figures.values() for one in program]


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    """A row as it was before JSON: numbers that are not finite stand there by name."""
    ratios = {way: float(ratio) for way, ratio in row["ratios"].items()}
    return {**row, "float32": float(row["float32"]), "ratios": ratios}


def _cells(row: Row) -> list[str]:
    kind = "".join(f", {k}" for k in ("network", "chaotic") if getattr(row, k))
    bad = row.verdict.startswith("worse")
    return [
        row.program + kind,
        row.library or "typed",
        row.figure,
        f"{row.float32:.1e}",
        *(_ratio(row.ratios[way]) for way in WAYS),
        "/".join(str(row.half[way]) for way in WAYS) + f" of {row.total}",
        f"**{row.verdict}**" if bad else row.verdict,
    ]


def _ratio(ratio: float) -> str:
    text = f"{ratio:.2g}" if ratio < 100 or not math.isfinite(ratio) else f"{ratio:.0f}"
    return text if ratio <= ENOUGH else f"**{text}**"


def failing(figures: dict[str, list[dict[str, Any]]]) -> int:
    """Number of programs with a figure that is worse."""
    return len({row.program for row in rows_of(figures) if row.verdict.startswith("worse")})


def bars_of(figures: dict[str, list[dict[str, Any]]]) -> list[Bar]:
    """The limits: the worst ratio of each way, and the number of programs that are worse."""
    found = rows_of(figures)
    worst = [
        Bar(f"{way}: largest error over float32's", max(row.ratios[way] for row in found), ENOUGH,
            "times")
        for way in WAYS
    ]  # fmt: skip
    return [*worst, Bar("programs that are worse", failing(figures), 0, "")]


def text_of(figures: dict[str, list[dict[str, Any]]]) -> str:
    """The table as text."""
    return table(_COLUMNS, [_cells(row) for row in rows_of(figures)])


def read() -> dict[str, Any]:
    """The records of the last run: rows by program, and versions of libraries."""
    if not RECORDS.exists():
        return {"programs": {}, "libraries": {}}
    return json.loads(RECORDS.read_text())["figures"]


def measure(programs: Sequence[Program], before: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Measures programs: the rows of all after each of them.

    Programs whose library is missing keep their old rows.
    """
    found = dict(before)
    for library in dict.fromkeys(program.library for program in programs):
        group = [program for program in programs if program.library == library]
        if not available(group[0]):
            names = ", ".join(program.name for program in group)
            print(f"{names}: {library} is not installed (duotone[sciences])")
            continue
        # A process for each library: brax, for one, sets JAX's default precision for all programs.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            for program in group:
                found[program.name] = process.submit(measured, program.name).result()
                yield {p.name: found[p.name] for p in PROGRAMS if p.name in found}


def measured(name: str) -> list[dict[str, Any]]:
    """The rows of one program of :data:`PROGRAMS`, measured in this process."""
    (program,) = [program for program in PROGRAMS if program.name == name]
    return [dataclasses.asdict(row) for row in rows(program)]


def libraries() -> dict[str, str]:
    """Versions of the libraries that are there."""
    packages = importlib.metadata.packages_distributions()
    names = {p.library.split(".")[0] for p in PROGRAMS if p.library and available(p)}
    return {packages[n][0]: importlib.metadata.version(packages[n][0]) for n in sorted(names)}


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--only", action="append", help="part of a name; the others' rows stay")
    parser.add_argument(
        "--page", action="store_true", help="the page from the records, nothing run"
    )
    options = parser.parse_args()
    if not options.page:
        chosen = [p for p in PROGRAMS if any(o in p.name for o in options.only or [""])]
        before = read()
        versions = before["libraries"] | libraries()  # rows of missing libraries are kept
        for figures in measure(chosen, before["programs"]):
            result = {"programs": figures, "libraries": versions}
            write(Result("sciences", QUESTION, COMMAND, bars_of(figures), text_of(figures), result))
            PAGE.write_text(page(json.loads(RECORDS.read_text())))
    PAGE.write_text(page(json.loads(RECORDS.read_text())))


if __name__ == "__main__":
    main()
