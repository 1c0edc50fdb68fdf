# python -m benchmarks.gradient_error
"""Is the gradient of a painted model as good as that of the same model with dtypes set by hand?

The relative gradient error, the norm of ``g - g64`` over the norm of ``g64``, where ``g64`` is the
gradient in float64 from the same float32 weights and batch. Painted on either side of ``grad``
against ``dtype=`` set by hand in Flax, all with the same fixed loss scale, unscaled in float64.
Over several seeds, on ordinary and on hostile inputs: in the ResNet and the U-Net the images are
hostile, in the transformer the position embeddings, which its blocks read.

A gradient that is not finite has no error; it is counted, and worse than any other.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import duotone
from benchmarks._common import Bar, Result, median, table, write
from benchmarks.models import CASES, Case
from benchmarks.models.case import INPUTS, Tree

QUESTION = "Is a painted model's gradient as good as with dtypes set by hand?"
MODELS = ("resnet", "transformer", "unet")
HALF_TYPES = ("float16", "bfloat16")
IN_BAR = ("resnet", "transformer")
"""The models whose float16 gradients must be as good as by hand; rounded to a hundredth."""
SEEDS = 16
SCALES = {"float32": 1.0, "float16": 2.0**12, "bfloat16": 1.0}
_POLICY = duotone.Policy(ignore_performance=True)

Gradient = Callable[[Tree, Tree], Tree]


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


PAINTED = ("autocast(grad(f))", "grad(autocast(f))")


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


def measure(models: tuple[str, ...], seeds: int) -> tuple[list[Bar], list[str], dict[str, Any]]:
    """Measures models; returns bars, tables and data."""
    texts, data = [], {}
    for name in models:
        found = errors(CASES[name], seeds)
        jax.clear_caches()
        data[name] = {half: summary(found, half) for half in HALF_TYPES}
        for half in HALF_TYPES:
            texts.append(text_of(CASES[name]().name, half, data[name][half]))
    return bars_of(data), texts, data


def bars_of(data: dict[str, Any]) -> list[Bar]:
    """The limits, of the models in :data:`IN_BAR`; where nothing was finite nothing is compared."""
    return [
        Bar(
            f"{CASES[name]().name}, {row['inputs']}: float16 {way} over by hand",
            round(row[f"{way} ratio"], 2),
            1.0,
            "times",
        )
        for name in data
        if name in IN_BAR
        for row in data[name]["float16"]
        for way in PAINTED
        if not math.isnan(row[f"{way} ratio"])
    ]


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--model", choices=MODELS, help="only this one; writes nothing")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args()
    bars, texts, data = measure((options.model,) if options.model else MODELS, options.seeds)
    if options.model:
        print("\n\n".join(texts))
        return
    texts.append(
        "Errors are medians over the seeds. Ratios are painted over by hand, seed by seed: the\n"
        "geometric mean, and after */ its standard error as a factor.\n"
        f"not finite: by hand/{'/'.join(PAINTED)}, of {options.seeds} seeds."
    )
    command = "python -m benchmarks.gradient_error"
    write(Result("gradient_error", QUESTION, command, bars, "\n\n".join(texts), data))


if __name__ == "__main__":
    main()
