"""``python scripts/readme_results.py``: writes the tables of results into README.md.

Each table stands between ``<!-- results: NAME -->`` and ``<!-- end of results -->`` and is made
from ``benchmarks/results/NAME.json``, which the benchmark of that name wrote. ``--check`` writes
nothing and fails where a table is not what its file says. ``make bench`` calls this, and the tests
call it with ``--check``. ``TABLES`` has every row, for ``docs/results.md``; where ``SHORT`` has a
function for a benchmark, the README shows that summary instead.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SECTION = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def digits_accuracy(figures: dict[str, Any]) -> list[list[str]]:
    """Accuracy of the digits sample, mean of the seeds."""
    full = figures["results"][0]["accuracy"]
    rows = [["precision", "test accuracy", "against float32", "FLOPs in half", "skipped steps"]]
    for result in figures["results"]:
        explain = result["explain"]
        rows.append(
            [
                result["precision"],
                f"{100 * result['accuracy']:.2f} %",
                f"{100 * (result['accuracy'] - full):+.2f} points",
                "0 %" if explain is None else f"{100 * explain['flops_half_share']:.1f} %",
                f"{sum(result['skipped'])} of {result['steps']}",
            ]
        )
    return rows


def painter(figures: dict[str, Any]) -> list[list[str]]:
    """Bytes moved by one bfloat16 training step, as compiled for an H200."""
    records, halves = figures["records"], figures["halves"]

    def of(model: str, *way: str) -> dict[str, Any]:
        return records.get("/".join((model, "h200", *way)), {})

    def gigabytes(record: dict[str, Any]) -> str:
        return f"{record['bytes'] / 1e9:.1f}" if "bytes" in record else "-"

    def ratios(record: dict[str, Any], hand: dict[str, Any]) -> list[str]:
        known = "bytes" in record
        return [f"{record[x] / hand[x]:.2f}" if known else "-" for x in ("bytes", "temporary")]

    rows = [
        ["training step", "models", "float32 GB", "by hand GB", "duotone GB", "bytes", "memory"]
    ]
    rows[0] += ["short form: bytes", "memory"]
    for model, half in halves.items():
        full, hand = of(model, "float32"), of(model, "bfloat16", "by hand")
        ours = of(model, "bfloat16", "duotone")
        if "bytes" not in hand or "bytes" not in ours:
            continue
        short = of(model, "bfloat16", "value_and_grad(autocast(f))")
        shown = [gigabytes(record) for record in (full, hand, ours)]
        rows.append([model, half, *shown, *ratios(ours, hand), *ratios(short, hand)])
    return rows


def cpu_steps(figures: dict[str, Any]) -> list[list[str]]:
    """Speed-ups of training steps on a CPU."""
    rows = [["training step", *[f"{name}: duotone, by hand" for name in figures]]]
    by_model: dict[str, list[str]] = {}
    for found in figures.values():
        for row in found["rows"]:
            speed = row["speedups"]
            text = f"{speed['duotone']:.2f}, {speed['by hand']:.2f}"
            by_model.setdefault(row["name"], []).append(text)
    return rows + [[name, *texts] for name, texts in by_model.items() if len(texts) == len(figures)]


def gpu_steps(figures: dict[str, Any]) -> list[list[str]]:
    """Milliseconds of training steps on GPUs, and duotone's speed-ups."""
    rows = [["device", "training step, bfloat16", "float32 ms", "by hand ms", "duotone ms"]]
    rows[0] += ["over float32", "over by hand"]
    for device, models in figures.items():
        for model, found in models.items():
            ways = ("float32", "by hand bfloat16", "duotone bfloat16")
            full, hand, ours = (1e3 * found[way]["seconds"] for way in ways)
            times = [f"{value:.1f}" for value in (full, hand, ours)]
            rows.append([device, model, *times, f"{full / ours:.2f} ×", f"{hand / ours:.2f} ×"])
    return rows


TABLES: dict[str, Callable[[dict[str, Any]], list[list[str]]]] = {
    "digits_accuracy": digits_accuracy,
    "painter": painter,
    "cpu_steps": cpu_steps,
    "gpu_steps": gpu_steps,
}


def painter_summary(figures: dict[str, Any]) -> list[list[str]]:
    """Bytes and memory over dtypes set by hand: mean, best and worst model of each half."""
    records, halves = figures["records"], figures["halves"]
    rows = [["models", "what", "geometric mean", "best model", "worst model"]]
    for half in dict.fromkeys(halves.values()):
        names = [name for name in halves if halves[name] == half]
        for words, key in (("bytes", "bytes"), ("temporary memory", "temporary")):
            ratios = {}
            for name in names:
                ours, hand = (
                    records.get(f"{name}/h200/bfloat16/{way}", {}) for way in ("duotone", "by hand")
                )
                if key in ours and key in hand:
                    ratios[name] = ours[key] / hand[key]
            rows.append([f"{half} ({len(ratios)})", words, *_spread(ratios)])
    return rows


def cpu_steps_summary(figures: dict[str, Any]) -> list[list[str]]:
    """Speed-ups on a CPU: mean, best and worst model of each version of JAX."""
    rows = [["JAX", "what", "geometric mean", "worst model", "best model"]]
    for name, found in figures.items():
        for way in ("duotone", "by hand"):
            speeds = {row["name"]: row["speedups"][way] for row in found["rows"]}
            rows.append([name.removeprefix("JAX "), way, *_spread(speeds)])
    return rows


def gpu_steps_summary(figures: dict[str, Any]) -> list[list[str]]:
    """Speed-ups on GPUs: median, mean, worst and best model of each device."""
    titles = ("median", "geometric mean", "worst model", "best model")
    rows = [["device", "duotone, bfloat16", *titles]]
    for device, models in figures.items():
        for other in ("float32", "by hand bfloat16"):
            speeds = {
                model: found[other]["seconds"] / found["duotone bfloat16"]["seconds"]
                for model, found in models.items()
            }
            what = f"over {other.removesuffix(' bfloat16')}, {len(speeds)} models"
            middle = statistics.median(speeds.values())
            rows.append([device, what, f"{middle:.2f}", *_spread(speeds)])
    return rows


def _spread(numbers: dict[str, float]) -> list[str]:
    """The geometric mean, the least and the greatest number, with their names."""
    ordered = sorted(numbers, key=numbers.__getitem__)
    ends = [f"{numbers[name]:.2f} ({name})" for name in (ordered[0], ordered[-1])]
    return [f"{statistics.geometric_mean(numbers.values()):.2f}", *ends]


SHORT: dict[str, Callable[[dict[str, Any]], list[list[str]]]] = {
    "painter": painter_summary,
    "cpu_steps": cpu_steps_summary,
    "gpu_steps": gpu_steps_summary,
}


def filled(text: str) -> str:
    """The text of the README with every table made anew."""

    def section(match: re.Match[str]) -> str:
        name = match[2]
        data = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        head, *rows = SHORT.get(name, TABLES[name])(data["figures"])
        lines = [head, ["---"] * len(head), *rows]
        return match[1] + "".join(f"| {' | '.join(line)} |\n" for line in lines) + match[3]

    return SECTION.sub(section, text)


def main() -> int:
    """Writes README.md, or says whether it is up to date."""
    readme = ROOT / "README.md"
    old = readme.read_text()
    new = filled(old)
    if "--check" in sys.argv[1:]:
        if new != old:
            print("README.md does not show what benchmarks/results say: run", __file__)
        return int(new != old)
    if new != old:
        readme.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
