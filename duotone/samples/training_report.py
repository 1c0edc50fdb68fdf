"""Collects the results of a sample's runs by precision, and writes a report folder.

::

    results.json             all results, including the loss of every step
    loss.png                 loss, test accuracy and loss scale of all precisions
    explain-float16.txt      the record of autocast on the loss function, as text
    explain-float16.json     the record as data (also for bfloat16)
"""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
import math
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

import duotone
from duotone._files import prepare_folder, write_atomically
from duotone.errors import MissingExtraError
from duotone.samples.digits import Precision, TrainingRun


@dataclasses.dataclass(frozen=True)
class Result:
    """All runs in one precision, and the record of autocast (``None`` for float32)."""

    precision: Precision
    runs: tuple[TrainingRun, ...]
    explanation: duotone.Explanation | None

    @property
    def accuracy(self) -> float:
        """The mean final accuracy over the seeds, from 0 to 1."""
        return statistics.fmean(run.accuracy for run in self.runs)

    @property
    def accuracy_spread(self) -> float:
        """The standard deviation of the final accuracy over the seeds; 0 for one seed."""
        return statistics.stdev(run.accuracy for run in self.runs) if len(self.runs) > 1 else 0.0

    @property
    def final_loss(self) -> float:
        """The mean loss of the last ten steps over the seeds."""
        return statistics.fmean(statistics.fmean(run.losses[-10:]) for run in self.runs)

    @property
    def step_ms(self) -> float:
        """The median time of a step in milliseconds, median over the seeds."""
        return statistics.median(run.step_ms for run in self.runs)

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as plain data."""
        summary = None if self.explanation is None else _summary(self.explanation)
        return {
            "precision": self.precision.value,
            "accuracy": round(self.accuracy, 5),
            "accuracy_spread": round(self.accuracy_spread, 5),
            "final_loss": _finite(self.final_loss),
            "step_ms": round(self.step_ms, 3),
            "skipped": [run.skipped for run in self.runs],
            "final_loss_scale": [run.final_scale for run in self.runs],
            "explain": summary,
            "runs": [
                {**dataclasses.asdict(run), "losses": [_finite(loss) for loss in run.losses]}
                for run in self.runs
            ],
        }


def machine() -> dict[str, str]:
    """Describes the machine and software of a measurement."""
    return {
        "jax": jax.__version__,
        "python": platform.python_version(),
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
    }


def write_report(folder: Path, results: Sequence[Result]) -> list[Path]:
    """Writes the report of a sample.

    Args:
        folder: the folder, created if missing. Files of an earlier report are replaced.
        results: one per precision.

    Returns:
        The files written; no picture if Matplotlib is not installed.
    """
    prepare_folder(folder)
    data = {"sample": "digits", **machine(), "results": [result.to_dict() for result in results]}
    contents: dict[str, str | bytes] = {"results.json": json.dumps(data, indent=1) + "\n"}
    if importlib.util.find_spec("matplotlib") is not None:
        contents["loss.png"] = picture(results)
    for result in results:
        if result.explanation is not None:
            name = f"explain-{result.precision.value}"
            contents[f"{name}.txt"] = _wide_text(result.explanation)
            contents[f"{name}.json"] = result.explanation.to_json()
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]


def picture(results: Sequence[Result]) -> bytes:
    """Draws loss, test accuracy and loss scale over the training as a PNG.

    Raises:
        MissingExtraError: Matplotlib is not installed.
    """
    try:
        # Unlike pyplot, Figure has no global state and needs no display.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("the picture of the training", "matplotlib", "demo") from error
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    loss_axes, accuracy_axes, scale_axes = figure.subplots(1, 3)
    for color, result in enumerate(results):
        for number, run in enumerate(result.runs):
            style: dict[str, Any] = {"color": f"C{color}", "alpha": 0.8, "linewidth": 1.2}
            style["label"] = result.precision.value if number == 0 else None
            epochs = range(1, len(run.accuracies) + 1)
            loss_axes.plot(run.losses, **style)
            accuracy_axes.plot(epochs, [100 * a for a in run.accuracies], **style)
            scale_axes.plot(run.scales, **style)
    loss_axes.set(title="training loss", xlabel="step", yscale="log")
    accuracy_axes.set(title="test accuracy (%)", xlabel="epoch")
    scale_axes.set(title="loss scale", xlabel="step")
    scale_axes.set_yscale("log", base=2)
    for axes in (loss_axes, accuracy_axes, scale_axes):
        axes.grid(alpha=0.3)
    loss_axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def _finite(number: float) -> float | None:
    """Replaces infinity and NaN, which JSON does not have, by ``None``."""
    return number if math.isfinite(number) else None


def _wide_text(explanation: duotone.Explanation) -> str:
    """Formats the overview and operations of an explanation for a file, in 180 columns."""
    console = Console(file=io.StringIO(), width=180, color_system=None)
    with console.capture() as capture:
        console.print(explanation)
        console.print(explanation.rows())
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _summary(explanation: duotone.Explanation) -> dict[str, Any]:
    """Returns the summary of an explanation as plain data, with its share of FLOPs in half."""
    summary = explanation.summary
    return {"flops_half_share": summary.flops_half_share, **dataclasses.asdict(summary)}
