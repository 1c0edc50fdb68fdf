"""``duotone demo`` trains one network in float32 and in mixed precision and compares them.

:mod:`duotone.samples.digits` trains, and :mod:`duotone.samples.training_report` writes the report.
This file reads the options, shows progress and prints the table.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID
    from rich.table import Table

    from duotone.samples.digits import Trainer
    from duotone.samples.training_report import Result

_CPU_NOTE = (
    "Step times on a CPU say nothing about a GPU. Most CPUs emulate half precision, so autocast "
    "leaves functions unchanged there. This demo rewrites them: Policy(ignore_performance=True)."
)


def demo(
    precision: Annotated[
        Literal["all", "float32", "float16", "bfloat16"],
        typer.Option(help="The precision to train in; all compares the three."),
    ] = "all",
    epochs: Annotated[
        int, typer.Option(min=1, help="The number of passes over the training images.")
    ] = 15,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the first run.")] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs for each precision, with consecutive seeds.")
    ] = 1,
    out: Annotated[
        Path, typer.Option(help="The folder for the report, created if missing.", metavar="DIR")
    ] = Path("reports/demo"),
) -> None:
    """Train a small network on real handwritten digits, in float32 and in mixed precision."""
    import jax
    from rich.console import Console
    from rich.markup import escape

    from duotone._files import prepare_folder
    from duotone.errors import plural
    from duotone.samples.digits import Precision, Trainer, load_digits
    from duotone.samples.training_report import write_report

    console = Console()
    prepare_folder(out)
    if importlib.util.find_spec("matplotlib") is None:
        console.print(
            "Without the picture of the training: pip install 'duotone[demo]' draws it.",
            markup=False,
        )
    data = load_digits()
    names = [p for p in Precision if precision in ("all", p.value)]
    trainers = [Trainer(name, epochs, data) for name in names]
    console.print(
        f"[bold]Handwritten digits[/bold]: {len(data.train_images)} training images, "
        f"{len(data.test_images)} test images; {plural(epochs, 'epoch')}, "
        f"JAX {jax.__version__} on {jax.devices()[0].device_kind}"
    )
    results = _train(console, trainers, range(seed, seed + seeds))
    console.print(comparison(results))
    if jax.default_backend() == "cpu" and len(names) > 1:
        console.print(f"[dim]{_CPU_NOTE}[/dim]")
    files = write_report(out, results)
    written = ", ".join(file.name for file in files)
    console.print(f"Report: [bold]{escape(str(out))}/[/bold] ({written})")


def _train(console: Console, trainers: Sequence[Trainer], seeds: Sequence[int]) -> list[Result]:
    """Runs every trainer with every seed, with a progress bar for each precision."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from duotone.samples.training_report import Result

    progress = Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeElapsedColumn(),
        console=console,
    )
    with progress:
        bars = [
            progress.add_task(t.precision.value, total=t.steps * len(seeds), start=False, loss="-")
            for t in trainers
        ]

        def show_step(bar: TaskID, done_before: int, done: int, loss: float) -> None:
            progress.update(bar, completed=done_before + done, loss=f"{loss:.4f}")

        results = []
        for bar, trainer in zip(bars, trainers, strict=True):
            progress.start_task(bar)
            runs = tuple(
                trainer.run(seed, functools.partial(show_step, bar, number * trainer.steps))
                for number, seed in enumerate(seeds)
            )
            results.append(Result(trainer.precision, runs, trainer.explain()))
    return results


def comparison(results: Sequence[Result]) -> Table:
    """Makes a table of the results with one column for each precision."""
    from rich.table import Table

    table = Table(title="Side by side", title_justify="left")
    table.add_column("")
    for result in results:
        mixed = "" if result.explanation is None else " (mixed)"
        table.add_column(result.precision.value + mixed, justify="right")
    rows: dict[str, Callable[[Result], str]] = {
        "test accuracy": _accuracy,
        "final loss": lambda r: f"{r.final_loss:.4f}",
        "skipped steps": lambda r: f"{sum(x.skipped for x in r.runs)} of {_steps(r)}",
        "final loss scale": lambda r: _scales(r),
        "FLOPs in half": lambda r: (
            "-" if r.explanation is None else f"{r.explanation.summary.flops_half_share:.1%}"
        ),
        "casts inserted": lambda r: (
            "-" if r.explanation is None else str(r.explanation.summary.casts_inserted)
        ),
        "step time, median": lambda r: f"{r.step_ms:.1f} ms",
        "first step": lambda r: f"{r.runs[0].first_step_s:.1f} s",
    }
    for name, cell in rows.items():
        table.add_row(name, *(cell(result) for result in results))
    return table


def _accuracy(result: Result) -> str:
    spread = f" ± {100 * result.accuracy_spread:.1f}" if len(result.runs) > 1 else ""
    return f"{100 * result.accuracy:.1f}{spread} %"


def _scales(result: Result) -> str:
    """Formats the final loss scales as powers of two; ``-`` without scaling."""
    scales = [run.final_scale for run in result.runs]
    if all(scale == 1 for scale in scales):
        return "-"
    return ", ".join(f"2^{math.log2(scale):g}" for scale in scales)


def _steps(result: Result) -> int:
    return sum(len(run.losses) for run in result.runs)
