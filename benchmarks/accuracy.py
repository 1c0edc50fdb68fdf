# python -m benchmarks.accuracy
"""Do the examples learn as well in float16 and bfloat16 as in float32?

Each program of ``examples/`` that has a metric is a row of ``ROWS``: its file has a function
``train(precision=..., loss_scale=..., seed=..., ...) -> float``, the one that its command line
calls; the float is the metric at the end, on data that were not trained on. To join, add a line.

Three seeds in float32, in float16 with a dynamic loss scale and in bfloat16; on a CPU, a dtype that
is named paints as anywhere. The bar is on what the mean of a half type is worse than float32's, in
units of the noise: three standard errors of a difference of two means of three (the spread of the
seeds is pooled over the precisions), and at least the resolution of the metric (one test image).

And the LSTM of ``language_model.py`` with a loss that is a mean over 16,384 words: float16 without
a loss scale ends at least 10 % worse in perplexity, with a dynamic one and with 128 within 1 %. Its
picture is drawn from the curves in this result. About 25 minutes on two cores that nobody shares.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import jax

from benchmarks._common import RESULTS, Bar, Result, table, take_no_options, write

QUESTION = "Do the examples learn as well in float16 and bfloat16 as in float32?"
ROOT = Path(__file__).resolve().parents[1]
SEEDS = (0, 1, 2)
PRECISIONS = ("float32", "float16", "bfloat16")
STANDARD_ERRORS = 3
PICTURE = ROOT / "docs" / "language_model.png"


@dataclasses.dataclass(frozen=True)
class Row:
    """An example and how it is run here.

    Attributes:
        file: of ``examples/``, without its suffix.
        metric: its name.
        higher: whether more is better.
        resolution: a difference that means nothing, in the metric's unit.
        options: further arguments of its ``train``, to make it small.
    """

    file: str
    metric: str
    higher: bool
    resolution: float
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The file, and the model where it has several."""
        model = self.options.get("model")
        return f"{self.file}, {model}" if model else self.file


ROWS = (
    Row("mnist", "accuracy", True, 0.002, {"epochs": 10}),
    Row("cifar10", "accuracy", True, 0.002, {"epochs": 3, "width": 8}),
    Row("gan", "distance", False, 0.01, {"steps": 300}),
    Row("language_model", "perplexity", False, 0.1, {"model": "lstm", "batch": 16}),
    Row("language_model", "perplexity", False, 0.1, {"model": "transformer", "batch": 16}),
    Row("keras_fit", "accuracy", True, 0.002),
    Row("flax_nnx", "accuracy", True, 0.002),
    Row("equinox_train", "accuracy", True, 0.002),
    Row("haiku_train", "accuracy", True, 0.002),
    Row("diffusion", "loss", False, 0.001, {"epochs": 20}),
    Row("fine_tune", "perplexity", False, 0.02, {"base_steps": 100, "steps": 100}),
)
COMPARED = {"steps": 120, "batch": 256, "seed": 0}


def example(file: str) -> Any:
    """A program of ``examples/`` as a module."""
    spec = importlib.util.spec_from_file_location(file, ROOT / "examples" / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(row: Row) -> dict[str, list[float]]:
    """The metric by precision, one for each seed."""
    found: dict[str, list[float]] = {}
    for precision in PRECISIONS:
        train = example(row.file).train
        scale = "dynamic" if precision == "float16" else "none"
        found[precision] = [
            train(precision=precision, loss_scale=scale, seed=seed, **row.options) for seed in SEEDS
        ]
        jax.clear_caches()
    return found


def noise(row: Row, found: dict[str, list[float]]) -> float:
    """The difference of two means that says nothing, in the metric's unit."""
    spread = statistics.fmean(statistics.variance(metrics) for metrics in found.values())
    return max(STANDARD_ERRORS * (2 * spread / len(SEEDS)) ** 0.5, row.resolution)


def bars(row: Row, found: dict[str, list[float]]) -> list[Bar]:
    """Returns by how much each half type is worse than float32, in units of the noise."""
    means = {precision: statistics.fmean(metrics) for precision, metrics in found.items()}
    sign = 1 if row.higher else -1
    unit = noise(row, found)
    return [
        Bar(
            f"{row.name}: {row.metric} lost in {precision}",
            sign * (means["float32"] - means[precision]) / unit,
            1.0,
            "of the noise",
        )
        for precision in PRECISIONS[1:]
    ]


def compare() -> dict[str, Any]:
    """The LSTM's curves of held-out perplexity by precision and loss scale, and the last ones."""
    module = example("language_model")
    blocks = module.load_blocks(None)
    rest = COMPARED["steps"], COMPARED["batch"], COMPARED["seed"]
    curves = {}
    for precision, scale in module.COMPARED:
        curve, last = module.fit(["", "lstm", precision, scale, *rest], blocks)
        curves[f"{precision}, loss scale {scale}"] = {"curve": curve, "last": last}
    module.draw({name: run["curve"] for name, run in curves.items()}, PICTURE)
    return curves


def compared_bars(curves: dict[str, Any]) -> list[Bar]:
    """That float16 fails without a loss scale, and with one does not."""
    full = curves["float32, loss scale none"]["last"]
    worse = {name: 100 * (run["last"] / full - 1) for name, run in curves.items()}
    found = [
        Bar(f"LSTM, large batch: perplexity lost in float16, loss scale {scale}", value, 1.0, "%")
        for scale in ("128", "dynamic")
        for value in [worse[f"float16, loss scale {scale}"]]
    ]
    failing = worse["float16, loss scale none"]
    # A bar is a largest value; this figure is to be large, so what it falls short of 10 % counts.
    return [
        *found,
        Bar("LSTM, large batch: float16 without a scale, short of 10 % by", 10 - failing, 0.0, "%"),
    ]


def main() -> int:
    """Measures, writes the result, and fails where a bar is missed; takes up what was cut off."""
    take_no_options(QUESTION)
    kept = RESULTS.parent / ".accuracy.json"
    done: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    for row in ROWS:
        if row.name not in done:
            done[row.name] = measure(row)
            kept.write_text(json.dumps(done))
    if "compared" not in done:
        done["compared"] = compare()
        kept.write_text(json.dumps(done))
    every = [bar for row in ROWS for bar in bars(row, done[row.name])]
    every += compared_bars(done["compared"])
    header = ["mean of three seeds", "metric", *PRECISIONS, "noise"]
    rows = [
        [
            row.name,
            row.metric,
            *(f"{statistics.fmean(done[row.name][precision]):.4g}" for precision in PRECISIONS),
            f"{noise(row, done[row.name]):.2g}",
        ]
        for row in ROWS
    ]
    lasts = [[name, f"{run['last']:.2f}"] for name, run in done["compared"].items()]
    text = f"{table(header, rows)}\n\n{table(['LSTM, large batch', 'perplexity'], lasts)}"
    figures = {
        "seeds": list(SEEDS),
        "rows": [
            {**dataclasses.asdict(row), "name": row.name, "found": done[row.name]} for row in ROWS
        ],
        "compared": {"settings": COMPARED, "runs": done["compared"]},
    }
    write(Result("accuracy", QUESTION, "python -m benchmarks.accuracy", every, text, figures))
    kept.unlink()
    return 0 if all(bar.kept for bar in every) else 1


if __name__ == "__main__":
    sys.exit(main())
