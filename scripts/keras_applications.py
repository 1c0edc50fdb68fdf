"""Writes ``docs/coverage/keras_applications.md``: one training step of every keras.applications.

The head of the page (``_HEAD``) says what is compared, with the limits. Each architecture is
measured in a process of its own, one after the other, and its record is written at once to
``benchmarks/results/keras_applications.json``; the page is made from those records. Run it after a
change of the painter, of the Keras adapter, or for a new Keras.

If the process of an architecture crashes or runs out of time, its row says so and the exit status
is 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import _readme  # noqa: E402
from benchmarks._common import Bar, environment  # noqa: E402
from benchmarks._keras_applications import (  # noqa: E402
    BATCH,
    CLASSES,
    HALF_TYPES,
    KERAS_VERSION,
    LOST,
    MORE_BATCHES,
    MOST_SKIPPED,
    SEEDS,
    SHIFTED_SHIFT,
    SMALLEST,
    architectures,
    measure,
)
from duotone._files import write_atomically  # noqa: E402

PAGE = ROOT / "docs" / "coverage" / "keras_applications.md"
RECORDS = ROOT / "benchmarks" / "results" / "keras_applications.json"
EXAMPLES = """\
examples:
  python scripts/keras_applications.py                     every architecture
  python scripts/keras_applications.py --resume            only those not measured yet
  python scripts/keras_applications.py --only VGG16        one again; the others' rows stay
  python scripts/keras_applications.py --page              the page from the records, nothing run

The whole table takes some hours on two cores: compiling is nearly all of it. An interrupted run
goes on with --resume.
"""

LOSS_EPSILONS = 8
GRADIENT_EPSILONS = 16
BY_HAND_FACTOR = 1.25
"""Two ways to round the same gradient differ by that much from batch to batch
(``benchmarks/NOTES.md``)."""
MORE_LOST = 0.02
"""The share of an architecture's variables that may be lost or not, since they lie at the
border."""

_HEAD = """\
<!-- written by scripts/keras_applications.py; do not edit -->

# keras.applications

One training step of every architecture in `keras.applications`, rewritten by duotone inside Keras'
own `train_on_batch`:

<!--- skip: next "the model and the images are those of an architecture" -->
```python
optimizer = duotone.enable_mixed_precision_graph_rewrite(
    keras.optimizers.SGD(1.0, momentum=0.5), dtype="float16"
)
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=optimizer, loss=cross_entropy)
model.train_on_batch(images, labels)
```

**{passed} of {total} pass{missing}.**

Keras {keras}, JAX {jax}, {batch} images, {classes} classes, dropout on. Images have the smallest
size that the architecture takes, from {smallest} pixels on and so that each batch normalisation
sees more than one pixel of each. After one step from rest the momentum is the gradient, to the bit.
Weights, images, labels and dropout masks are the same in float32, in the rewritten step, by hand.

**Errors** are relative to float32: |loss - loss32| / |loss32|, and ‖g - g32‖ / ‖g32‖ over all
gradients together; shifted: the root mean square of two batches. If an architecture exceeds a limit
with two batches, {more_batches} batches decide{with_more_batches}.

- *by hand*: the same model under Keras' own dtype policy, `mixed_float16` or `mixed_bfloat16`.
- *rounded*: everything in float32, but weights and images rounded once to the half type. This is
  how well the gradient can be known at all.

**Two starts.** With Keras' *initial* weights and batch statistics of few images, a rounding grows
from layer to layer and flips rectifiers: rounding the weights once, then computing in float32,
may change the gradient by its own size. A comparison there has little power, so the verdict also
needs a *shifted* start: the same random weights, but batch normalizations with a shift of
{shift} (not 0), so that few values lie at the kink of a rectifier. The operations are the same.

**An architecture passes** when every dot and convolution of its step has half operands, the step is
taken within {most_skipped} tries of dynamic loss scaling, and

- shifted: loss error at most {loss_epsilons} epsilon; gradient error at most {gradient_epsilons}
  epsilon or {factor} times by hand, whichever is larger, and never above {lost}; of the variables,
  each taken alone, those with a gradient error above {lost} (*lost*) are at most {more:.0%} of all
  more than by hand;
- initial: gradient error at most {gradient_epsilons} epsilon or {factor} times by hand.

Epsilon is 2⁻¹⁰ for float16 and 2⁻⁷ for bfloat16. *verdict* says which limit of the shifted gradient
was needed: `fixed` or `by hand`; what is out of its limit is bold. *dots*: dots and convolutions of
the step, backward pass and all; *skipped*: steps that overflowed before those that count. A
bias or shift that a normalisation follows has a gradient of nearly zero: such variables are lost in
every way. Compiled for the CPU, without the float32 that XLA may otherwise keep inside a fusion.
Written by `python scripts/keras_applications.py` from `benchmarks/results/keras_applications.json`.
"""


# The judged figures.


@dataclasses.dataclass(frozen=True)
class Cell:
    """A figure, and whether it is in its limit.

    Attributes:
        value: the figure.
        limit: the largest that passes.
        needed: ``"fixed"`` or ``"by hand"``: the limit that it needed.
    """

    value: float
    limit: float
    needed: str = "fixed"

    @property
    def kept(self) -> bool:
        """Returns True if the figure keeps its limit; NaN does not."""
        return self.value <= self.limit

    def __str__(self) -> str:
        text = f"{self.value:.2g}"
        return text if self.kept else f"**{text}**"


def judged(half: str, record: dict[str, Any]) -> dict[str, Cell]:
    """The cells of one architecture and half type that have a limit.

    Args:
        half: ``"float16"`` or ``"bfloat16"``.
        record: what :func:`measure` found.
    """
    found = record["halves"][half]
    epsilon = HALF_TYPES[half]
    fixed = GRADIENT_EPSILONS * epsilon
    cells = {
        "dots": Cell(found["dots"] - found["half"], 0),
        "loss": Cell(found["duotone"]["shifted"]["loss"], LOSS_EPSILONS * epsilon),
        "lost": Cell(found["duotone"]["shifted"]["lost"], _most_lost(record, found)),
    }
    for start in SEEDS:
        error = found["duotone"][start]["gradient"]
        by_hand = BY_HAND_FACTOR * found["by hand"][start]["gradient"]
        # NaN by hand is not a yardstick: then the fixed limit stands alone.
        limit = by_hand if by_hand > fixed else fixed
        limit = min(limit, LOST) if start == "shifted" else limit
        cells[start] = Cell(error, limit, "fixed" if error <= fixed else "by hand")
    return cells


def _most_lost(record: dict[str, Any], found: dict[str, Any]) -> float:
    by_hand = found["by hand"]["shifted"]["lost"]
    return MORE_LOST * record["variables"] + (0 if math.isnan(by_hand) else by_hand)


def passes(record: dict[str, Any]) -> bool:
    """Returns True if every figure of an architecture keeps its limit."""
    return "error" not in record and all(
        cell.kept for half in HALF_TYPES for cell in judged(half, record).values()
    )


def page(data: dict[str, Any]) -> str:
    """The page for the records."""
    records = data["figures"]
    ordered = sorted(records.items(), key=lambda item: item[1].get("parameters", math.inf))
    missing = [name for name in data["architectures"] if name not in records]
    head = _HEAD.format(
        passed=sum(map(passes, records.values())),
        total=len(data["architectures"]),
        more_batches=MORE_BATCHES,
        with_more_batches=_with_more_batches(records),
        missing=f"; not measured yet: {', '.join(missing)}" if missing else "",
        keras=data["environment"]["keras"],
        jax=data["environment"]["jax"],
        batch=BATCH,
        smallest=SMALLEST,
        shift=SHIFTED_SHIFT,
        lost=LOST,
        more=MORE_LOST,
        classes=CLASSES,
        most_skipped=MOST_SKIPPED,
        loss_epsilons=LOSS_EPSILONS,
        gradient_epsilons=GRADIENT_EPSILONS,
        factor=BY_HAND_FACTOR,
    )
    lines = [head]
    for half in HALF_TYPES:
        lines += [f"## {half}", "", *_table(_COLUMNS, [_row(half, *one) for one in ordered]), ""]
    lines += [
        "## Cost",
        "",
        "Seconds to trace the step, plain and rewritten, on two busy cores; of the whole "
        "measurement (five programs), with the largest memory of its process.",
        "",
        *_table(_COST_COLUMNS, [_cost_row(*one) for one in ordered if "error" not in one[1]]),
    ]
    return "\n".join(lines) + "\n"


def _with_more_batches(records: dict[str, Any]) -> str:
    names = [name for name, record in records.items() if record.get("batches") == MORE_BATCHES]
    return f" ({', '.join(names)})" if names else ""


_COLUMNS = (
    *("architecture", "parameters", "input", "dots", "in half", "skipped"),
    *("loss error", "gradient error", "by hand", "rounded", "lost", "by hand"),
    *("initial: gradient error", "by hand", "rounded", "verdict"),
)
_COST_COLUMNS = (
    *("architecture", "trace", "trace, float16", "trace, bfloat16", "all seconds", "GiB"),
)


def _row(half: str, name: str, record: dict[str, Any]) -> list[str]:
    if "error" in record:
        return [name, *["-"] * (len(_COLUMNS) - 2), f"**failed**: {record['error']}"]
    found = record["halves"][half]
    cells = judged(half, record)
    by_start = {
        start: [
            str(cells[start]),
            *(f"{found[way][start]['gradient']:.2g}" for way in ("by hand", "rounded")),
        ]
        for start in SEEDS
    }
    good = all(cell.kept for cell in cells.values())
    lost = [found[way]["shifted"]["lost"] for way in ("duotone", "by hand")]
    share = f"{found['half'] / found['dots']:.0%}"
    return [
        name,
        f"{record['parameters'] / 1e6:.1f} M",
        f"{record['input']}",
        f"{found['dots']}",
        share if cells["dots"].kept else f"**{share}**",
        f"{sum(found['duotone'][start]['skipped'] for start in SEEDS)}",
        str(cells["loss"]),
        *by_start["shifted"],
        f"**{lost[0]}**" if not cells["lost"].kept else f"{lost[0]}",
        f"{lost[1]}",
        *by_start["initial"],
        cells["shifted"].needed if good else "**fails**",
    ]


def _cost_row(name: str, record: dict[str, Any]) -> list[str]:
    seconds = [record["halves"][half]["seconds"] for half in HALF_TYPES]
    figures = [record["trace seconds"], *seconds, record["seconds"], record["memory GiB"]]
    return [name, *(f"{figure:.3g}" for figure in figures)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *["--:"] * (len(head) - 1)]
    return ["| " + " | ".join(line) + " |" for line in (head, rule, *rows)]


# The run: one process after the other.

# Every half value is rounded, also inside a fusion, where XLA would keep float32; and simple
# kernels, since compiling takes far longer here than running. The same for all programs.
_XLA_FLAGS = "--xla_allow_excess_precision=false --xla_cpu_use_fusion_emitters=false"


def decided(name: str, limit: float, *, more: bool = False) -> dict[str, Any]:
    """The record that counts: one of more batches where two leave it out of a limit.

    Args:
        name: of the architecture.
        limit: seconds for one measurement.
        more: whether to take more batches at once.
    """
    if not more:
        record = measured_apart(name, limit)
        if "error" in record or passes(record):
            return record
    return measured_apart(name, limit, "--more")


def measured_apart(name: str, limit: float, *options: str) -> dict[str, Any]:
    """:func:`measure` in a process of its own; a record with ``error`` where that fails.

    Args:
        name: of the architecture.
        limit: seconds, after which the process is ended.
        options: of the measurement.
    """
    settings = {
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {_XLA_FLAGS}",
    }
    command = [sys.executable, __file__, *options, "--measure", name]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "record.json"
        try:
            done = subprocess.run(
                [*command, str(answer)],
                env=os.environ | settings,
                timeout=limit,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {limit:g} s"}
        if done.returncode == 0:
            return json.loads(answer.read_text())
        said = [line for line in done.stderr.splitlines() if line.strip()]
        last = said[-1].strip() if said else "nothing on stderr"
        return {"error": f"exit status {done.returncode}: {last[:200]}"}


def read() -> dict[str, dict[str, Any]]:
    """The records that are there, by name; none if they are of other settings."""
    if not RECORDS.exists():
        return {}
    data = json.loads(RECORDS.read_text())
    return data["figures"] if data["settings"] == _settings() else {}


def write(records: dict[str, dict[str, Any]]) -> None:
    """Writes the records as a benchmark's result, the page, and the page of all benchmarks."""
    known = list(architectures())
    wanting = sum(name not in records or not passes(records[name]) for name in known)
    bar = Bar("architectures that fail or were not measured", wanting, 0, "")
    data = {
        "question": "Does every architecture of keras.applications train in half?",
        "command": "python scripts/keras_applications.py",
        "environment": {**environment(), "keras": KERAS_VERSION},
        "bars": [{**dataclasses.asdict(bar), "kept": bar.kept}],
        "settings": _settings(),
        "architectures": known,
        "figures": dict(sorted(records.items())),
    }
    text = page(data)
    write_atomically(RECORDS, json.dumps(data, indent=1) + "\n")
    write_atomically(RECORDS.with_suffix(".txt"), text)
    write_atomically(PAGE, text)
    write_atomically(RECORDS.parent.parent / "README.md", _readme.render(RECORDS.parent))


def _settings() -> dict[str, Any]:
    """Returns the settings of a figure; figures of other settings are not mixed."""
    seeds = {start: list(seeds) for start, seeds in SEEDS.items()}
    return {
        "batch": BATCH,
        "classes": CLASSES,
        "smallest": SMALLEST,
        "shift": SHIFTED_SHIFT,
        "seeds": seeds,
    }


def run(names: Sequence[str], limit: float, *, more: bool = False) -> None:
    """Measures architectures, and writes everything after each.

    Args:
        names: of the architectures.
        limit: seconds for one measurement.
        more: whether with more batches at once.
    """
    records = read()
    name_column = TextColumn("{task.description}")
    with Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), name_column) as progress:
        task = progress.add_task("", total=len(names))
        for name in names:
            progress.update(task, description=name)
            records[name] = decided(name, limit, more=more)
            verdict = records[name].get("error") or ("passes" if passes(records[name]) else "FAILS")
            progress.console.print(f"{name}: {verdict}")
            write(records)
            progress.advance(task)


def main(arguments: list[str] | None = None) -> int:
    """Runs the script; returns the exit status: 1 if an architecture fails or was not measured."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="this one; may be repeated")
    parser.add_argument("--resume", action="store_true", help="leave out what has a record")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    parser.add_argument(
        "--limit", type=float, default=3600, metavar="SECONDS", help="for one (%(default)s)"
    )
    parser.add_argument("--more", action="store_true", help="with more batches at once")
    parser.add_argument("--measure", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.measure:
        name, file = chosen.measure
        Path(file).write_text(json.dumps(measure(name, more=chosen.more)))
        return 0
    known = architectures()
    unknown = sorted(set(chosen.only or ()) - set(known))
    if unknown:
        parser.error(f"keras.applications has no {', '.join(unknown)}; it has {', '.join(known)}")
    records = read()
    names = [] if chosen.page else chosen.only or list(known)
    if chosen.resume:
        names = [name for name in names if "error" in records.get(name, {"error": ""})]
    if chosen.page:
        write(records)
    else:
        run(names, chosen.limit, more=chosen.more)
    records = read()
    missing = [name for name in known if name not in records]
    failing = [name for name, record in records.items() if not passes(record)]
    if missing:
        print(f"not measured: {', '.join(missing)}")
    if failing:
        print(f"fail: {', '.join(failing)}")
    return bool(failing or (missing and not chosen.only))


if __name__ == "__main__":
    sys.exit(main())
