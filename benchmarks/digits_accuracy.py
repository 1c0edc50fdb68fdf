# python -m benchmarks.digits_accuracy
"""Do float16 and bfloat16 learn handwritten digits as well as float32?

Trains the digits sample (``duotone demo``) with three seeds in each precision; the bar is on the
mean accuracy. One image of the 500 is 0.2 points, so a mean of three moves by about 0.2 from luck
alone.
About a minute and a half on two cores.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks._common import Bar, Result, table, take_no_options, write
from duotone.samples import training_report as report
from duotone.samples.digits import Precision, Trainer, load_digits

QUESTION = "Do float16 and bfloat16 learn handwritten digits as well as float32?"
SEEDS = (0, 1, 2)
EPOCHS = 15
LIMIT_POINTS = 0.5


def measure() -> list[report.Result]:
    """Three runs of each precision."""
    data = load_digits()
    results = []
    for precision in Precision:
        trainer = Trainer(precision, EPOCHS, data)
        runs = tuple(trainer.run(seed) for seed in SEEDS)
        results.append(report.Result(precision, runs, trainer.explain()))
        print(f"{precision.value}: {100 * results[-1].accuracy:.2f} %", file=sys.stderr)
    return results


def figures(result: report.Result) -> dict[str, Any]:
    """A result without its curves, which the report of ``duotone demo`` keeps."""
    data = result.to_dict()
    data["steps"] = sum(len(run.losses) for run in result.runs)
    for run in data["runs"]:
        del run["losses"], run["scales"], run["accuracies"]
    data["accuracies"] = [run.accuracy for run in result.runs]
    return data


def main() -> int:
    """Measures, writes the result, and fails where a bar is missed."""
    take_no_options(QUESTION)
    results = measure()
    full = results[0]
    bars = [
        Bar(
            f"{half.precision.value}: accuracy lost against float32",
            100 * (full.accuracy - half.accuracy),
            LIMIT_POINTS,
            "points",
        )
        for half in results[1:]
    ]
    rows = [
        [
            result.precision.value,
            *(f"{100 * run.accuracy:.1f}" for run in result.runs),
            f"{100 * result.accuracy:.2f}",
            sum(run.skipped for run in result.runs),
        ]
        for result in results
    ]
    header = ["test accuracy, %", *(f"seed {seed}" for seed in SEEDS), "mean", "skipped steps"]
    write(
        Result(
            name="digits_accuracy",
            question=QUESTION,
            command="python -m benchmarks.digits_accuracy",
            bars=bars,
            text=table(header, rows),
            figures={
                "epochs": EPOCHS,
                "seeds": list(SEEDS),
                "results": [figures(result) for result in results],
            },
        )
    )
    return 0 if all(bar.kept for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
