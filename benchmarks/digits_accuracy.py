"""``python benchmarks/digits_accuracy.py``: do float16 and bfloat16 learn as well as float32?

Trains the digits sample (``duotone demo``) with three seeds in each precision and writes
``digits_accuracy.json`` beside this file. The bar: the mean accuracy in a half precision is at most
0.5 points below that of float32. Takes about two minutes on two cores; exit status 1 if missed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from duotone._files import write_atomically
from duotone.samples.digits import Precision, Trainer, load_digits
from duotone.samples.report import Result, machine

SEEDS = (0, 1, 2)
EPOCHS = 15
BAR_POINTS = 0.5


def measure() -> list[Result]:
    """Three runs of each precision."""
    data = load_digits()
    results = []
    for precision in Precision:
        trainer = Trainer(precision, EPOCHS, data)
        runs = tuple(trainer.run(seed) for seed in SEEDS)
        results.append(Result(precision, runs, trainer.explain()))
        print(f"{precision.value}: done", file=sys.stderr)
    return results


def main() -> int:
    """Prints the table, writes the result, and says whether the bar is met."""
    results = measure()
    reference = results[0].accuracy
    print(f"{'precision':<10} {'accuracy of the seeds (%)':<27} mean    against float32  skipped")
    rows = []
    for result in results:
        points = 100 * (result.accuracy - reference)
        seeds = "  ".join(f"{100 * run.accuracy:5.1f}" for run in result.runs)
        skipped = sum(run.skipped for run in result.runs)
        mean = 100 * result.accuracy
        print(
            f"{result.precision.value:<10} {seeds:<27} {mean:5.2f}   {points:+5.2f} {skipped:>17}"
        )
        data = result.to_dict()
        data["points_against_float32"] = round(points, 3)
        data["steps"] = sum(len(run.losses) for run in result.runs)
        for run in data["runs"]:  # the report of `duotone demo` keeps the whole curves
            del run["losses"], run["scales"]
        rows.append(data)
    met = all(row["points_against_float32"] >= -BAR_POINTS for row in rows)
    print(f"bar (at most {BAR_POINTS} points below float32): {'met' if met else 'MISSED'}")
    content = {
        "command": "python benchmarks/digits_accuracy.py",
        **machine(),
        "epochs": EPOCHS,
        "seeds": SEEDS,
        "bar_points": BAR_POINTS,
        "met": met,
        "results": rows,
    }
    write_atomically(Path(__file__).with_suffix(".json"), json.dumps(content, indent=1) + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
