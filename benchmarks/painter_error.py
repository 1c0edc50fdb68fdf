# python -m benchmarks.painter_error
"""Are the gradients of the zoo, painted, as good as those with dtypes set by hand?

The relative gradient error is the norm of ``g - g64`` over the norm of ``g64``, where ``g64`` is
the gradient in float64 from the same float32 weights and batch. It is measured painted on either
side of ``grad`` and with ``dtype=`` set by hand in Flax, all with the same fixed loss scale, which
is taken out in float64. Each model of the zoo has the size that float64 can follow here, and runs
with several seeds on ordinary and on hostile inputs. Where a model reads whole numbers, an
embedding is hostile. A gradient that is not finite is counted, and is worse than any other.

Each model is measured in a process of its own and written as soon as it is there; ``--resume``
leaves out those that were.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import duotone
from benchmarks._common import (
    RESULTS,
    Bar,
    Result,
    chosen_names,
    in_a_process,
    median,
    table,
    write,
)
from benchmarks.zoo import MODELS
from benchmarks.zoo.case import INPUTS, Case, Tree

QUESTION = "Are the gradients of the zoo, painted, as good as with dtypes set by hand?"
COMMAND = "python -m benchmarks.painter_error"
HALF_TYPES = ("float16", "bfloat16")
SEEDS = 16
SCALES = {"float32": 1.0, "float16": 2.0**12, "bfloat16": 1.0}
PAINTED = ("autocast(grad(f))", "grad(autocast(f))")
_POLICY = duotone.Policy(ignore_performance=True)

Gradient = Callable[[Tree, Tree], Tree]
Rows = Mapping[str, Any]
"""By half type, the rows of :func:`summary`."""


def gradients(make: Callable[..., Case], half: str) -> dict[str, Gradient]:
    """The ways to a gradient for one half type: by hand, and painted on either side."""
    scale, plain, by_hand = SCALES[half], make(), make(jnp.dtype(half))

    def scaled(loss: Callable[[Tree, Tree], jax.Array]) -> Callable[[Tree, Tree], jax.Array]:
        return lambda params, batch: scale * loss(params, batch)

    loss = scaled(plain.loss)
    return {
        "by hand": jax.jit(jax.grad(scaled(by_hand.loss))),
        "autocast(grad(f))": jax.jit(painted(jax.grad(loss), half)),
        "grad(autocast(f))": jax.jit(jax.grad(painted(loss, half))),
    }


def painted(function: Callable[..., Any], half: str) -> Callable[..., Any]:
    """A loss, or its gradient, painted with a half type on any device."""
    return duotone.autocast(function, dtype=jnp.dtype(half), policy=_POLICY)


class Reference:
    """The gradient in float64."""

    def __init__(self, make: Callable[..., Case]) -> None:
        with jax.enable_x64(True):
            self._gradient = jax.jit(jax.grad(make(jnp.float64).loss))

    def __call__(self, params: Tree, batch: Tree) -> list[np.ndarray]:
        """Leaves, from float32 parameters and batch."""
        with jax.enable_x64(True):
            wide = jax.tree.map(_widened, (params, batch))
            return [np.asarray(leaf) for leaf in jax.tree.leaves(self._gradient(*wide))]


def _widened(leaf: jax.Array) -> jax.Array:
    is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
    return jnp.asarray(leaf, jnp.float64 if is_float else leaf.dtype)


def relative_error(gradient: Tree, reference: list[np.ndarray], scale: float) -> float:
    """The norm of the difference over the norm of the reference; infinite if not finite."""
    ours = [np.asarray(leaf, np.float64) / scale for leaf in jax.tree.leaves(gradient)]
    if not all(np.isfinite(leaf).all() for leaf in ours):
        return math.inf
    difference = sum(float(np.sum((a - b) ** 2)) for a, b in zip(ours, reference, strict=True))
    norm = sum(float(np.sum(b**2)) for b in reference)
    return math.sqrt(difference / norm)


def errors(make: Callable[..., Case], seeds: int) -> dict[str, dict[str, list[float]]]:
    """For each input distribution and each way, the error with every seed."""
    case, reference = make(), Reference(make)
    ways: dict[str, tuple[Gradient, float]] = {"float32": (jax.jit(jax.grad(case.loss)), 1.0)}
    for half in HALF_TYPES:
        for way, gradient in gradients(make, half).items():
            ways[f"{half} {way}"] = (gradient, SCALES[half])
    found: dict[str, dict[str, list[float]]] = {
        inputs: {way: [] for way in ways} for inputs in INPUTS
    }
    for seed in range(seeds):
        for inputs in INPUTS:
            key, data_key = jax.random.split(jax.random.key(seed))
            params = case.weights(case.init(key), inputs)
            batch = case.batch(data_key, inputs)
            truth = reference(params, batch)
            for way, (gradient, scale) in ways.items():
                error = relative_error(gradient(params, batch), truth, scale)
                found[inputs][way].append(error)
    return found


def summary(found: dict[str, dict[str, list[float]]], half: str) -> list[dict[str, Any]]:
    """One row for each input distribution: median errors, ratios to by hand, not finite."""
    rows = []
    for inputs, ways in found.items():
        row: dict[str, Any] = {"inputs": inputs, "float32": median(ways["float32"])}
        by_hand = ways[f"{half} by hand"]
        row["by hand"] = median(by_hand)
        row["by hand not finite"] = _not_finite(by_hand)
        for way in PAINTED:
            ours = ways[f"{half} {way}"]
            row[way] = median(ours)
            row[f"{way} ratio"], row[f"{way} spread"] = mean_ratio(ours, by_hand)
            row[f"{way} not finite"] = _not_finite(ours)
        rows.append(row)
    return rows


def mean_ratio(ours: list[float], by_hand: list[float]) -> tuple[float, float]:
    """Ours over by hand: the geometric mean over the seeds, and its standard error as a factor.

    Where a gradient is not finite its error counts as infinite: the ratio is infinite if that
    happens to ours more often, 0 if to the one by hand, and not a number if no seed has both
    finite.
    """
    more = _not_finite(ours) - _not_finite(by_hand)
    if more:
        return (math.inf if more > 0 else 0.0), 1.0
    pairs = zip(ours, by_hand, strict=True)
    logs = [math.log(a / b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    if not logs:
        return math.nan, 1.0
    spread = float(np.std(logs)) / math.sqrt(len(logs))
    return math.exp(sum(logs) / len(logs)), math.exp(spread)


def _not_finite(numbers: list[float]) -> int:
    return sum(math.isinf(x) for x in numbers)


def text_of(name: str, half: str, rows: list[dict[str, Any]]) -> str:
    """One table."""
    head = [f"{name}, {half}", "float32", "by hand", *PAINTED, "ratio", "ratio", "not finite"]
    cells = [
        [
            row["inputs"],
            row["float32"],
            row["by hand"],
            *[row[way] for way in PAINTED],
            *[f"{row[f'{way} ratio']:.3f} */ {row[f'{way} spread']:.2f}" for way in PAINTED],
            "/".join(str(row[f"{way} not finite"]) for way in ("by hand", *PAINTED)),
        ]
        for row in rows
    ]
    return table(head, cells)


def measure(model: str, seeds: int) -> dict[str, Any]:
    """Errors of one model."""
    found = errors(functools.partial(MODELS[model], size="tiny"), seeds)
    return {half: summary(found, half) for half in HALF_TYPES}


def bars_of(data: Mapping[str, Rows]) -> list[Bar]:
    """The limit of every model, half type, input distribution and side of ``grad``."""
    return [
        Bar(
            f"{model}, {row['inputs']}: {half} {way} over by hand",
            round(float(row[f"{way} ratio"]), 2),
            1.0,
            "times",
        )
        for model in data
        for half in HALF_TYPES
        for row in data[model][half]
        for way in PAINTED
        if not math.isnan(float(row[f"{way} ratio"]))
    ]


def result_of(data: Mapping[str, Rows], seeds: int) -> Result:
    """What :func:`~benchmarks._common.write` writes."""
    texts = [text_of(model, half, data[model][half]) for model in data for half in HALF_TYPES]
    texts.append(
        "Errors are medians over the seeds. Ratios are painted over by hand, seed by seed: the\n"
        "geometric mean, and after */ its standard error as a factor.\n"
        f"not finite: by hand/{'/'.join(PAINTED)}, of {seeds} seeds."
    )
    figures = {"seeds": seeds, "models": dict(data)}
    return Result("painter_error", QUESTION, COMMAND, bars_of(data), "\n\n".join(texts), figures)


def load(folder: Path = RESULTS) -> dict[str, Rows]:
    """The models that have been measured; numbers that JSON cannot hold are their names there."""
    file = folder / "painter_error.json"
    if not file.exists():
        return {}
    models = json.loads(file.read_text())["figures"]["models"]
    return {
        model: {half: [_numbers(row) for row in rows] for half, rows in halves.items()}
        for model, halves in models.items()
    }


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: float(value) if isinstance(value, str) and key != "inputs" else value
        for key, value in row.items()
    }


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--only", default=",".join(MODELS), help="models, divided by commas")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--resume", action="store_true", help="leave out what was measured")
    parser.add_argument("--measure", choices=[*MODELS], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.seeds)))
        return
    for model in chosen_names(options.only, list(MODELS), "model"):
        if options.resume and model in load():
            continue
        print(model, file=sys.stderr)
        command = (sys.executable, "-m", "benchmarks.painter_error", "--measure", model)
        rows = in_a_process(*command, "--seeds", str(options.seeds))
        found = {**load(), model: {half: [_numbers(row) for row in rows[half]] for half in rows}}
        ordered = {name: found[name] for name in MODELS if name in found}
        with contextlib.redirect_stdout(io.StringIO()):
            write(result_of(ordered, options.seeds))
    write(result_of(load(), options.seeds))


if __name__ == "__main__":
    main()
