# python -m benchmarks.estimate
"""How near is what ``duotone.compare`` estimates to the program that a compiler makes?

For each model of the zoo, for a perceptron whose optimizer is wrapped in one line, and for the
zoo's small models, the whole training step in float32 and painted: the roofline time that is
estimated without a compiler next to that of the program compiled for an H200. Where the estimate
may be far off, ``compare`` gives none, and so does this table.

The compiled figures of the zoo are those of ``benchmarks.painter``. The others are compiled if the
extra ``cuda`` is there; without it their last figures are taken. The model of fusion was made
looking at the zoo; the small models say how far it holds elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

import duotone
from benchmarks._common import RESULTS, Bar, Result, take_no_options, write
from benchmarks.zoo import MODELS, ZOO, names_of
from duotone.errors import MissingExtraError

QUESTION = "How near is the estimate of duotone.compare to the compiled program?"
MOST = 1.15
"""By which factor a time, and a speed-up, may be wrong."""
ONE_LINE = "one line"
_LAYERS, _WIDTH = 8, 4096
_HEAD = (
    f"{'h200, float16, ms':<18}{'float32':>9}{'compiled':>10}{'duotone':>9}{'compiled':>10}"
    f"{'speed-up':>10}{'compiled':>10}"
)
Times = tuple[float, float]
"""Seconds in float32 and painted; 0 where ``compare`` gives no figure."""


def step_of(name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A model's training step, and the shapes of its arguments."""
    if name == ONE_LINE:
        return _one_line()
    case = ZOO[name].make(None, "full")
    return case.step, case.step_shapes()


def _one_line() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A perceptron in float32 whose optimizer is wrapped."""
    optimizer = duotone.enable_mixed_precision_graph_rewrite(optax.adam(1e-3), dtype="float16")

    def loss(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        for weight, bias in weights:
            x = jax.nn.relu(x @ weight + bias)
        return jnp.mean((x - y) ** 2)

    def step(weights: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        return optimizer.minimize(loss, weights, state, x, y)

    square = jax.ShapeDtypeStruct((_WIDTH, _WIDTH), jnp.float32)
    weights = [(square, jax.ShapeDtypeStruct((_WIDTH,), jnp.float32))] * _LAYERS
    return step, (weights, jax.eval_shape(optimizer.init, weights), square, square)


def times(name: str, *, exact: bool) -> Times:
    """The times of a step, estimated or compiled."""
    step, args = step_of(name)
    # The one line names its half type itself.
    form, dtype = ("as written", None) if name == ONE_LINE else ("duotone", "float16")
    seen = duotone.compare(step, *args, targets="h200", dtype=dtype, exact=exact)
    return seen.row("h200", "float32").seconds, seen.row("h200", form).seconds


def compiled(name: str, records: dict[str, Any], before: dict[str, Any]) -> Times:
    """The same of the compiled programs, as ``benchmarks.painter`` or the last run has them."""
    if name not in MODELS:
        try:
            return times(name, exact=True)
        except MissingExtraError:
            full, half = before[name]["compiled"]
            return full, half
    ways = f"{name}/h200/float32", f"{name}/h200/float16/duotone"
    full, half = (records[way]["seconds"] for way in ways)
    return full, half


def ratios(found: Times, true: Times) -> dict[str, float]:
    """The estimate over the compiled figure, of each figure that there is."""
    given = {"float32": (found[0], true[0]), "duotone": (found[1], true[1])}
    if all(found):
        given["speed-up"] = (found[0] / found[1], true[0] / true[1])
    return {what: mine / theirs for what, (mine, theirs) in given.items() if mine}


def line(name: str, found: Times, true: Times) -> str:
    """A line of the table."""
    cells = [f"{1e3 * seconds:.2f}" if seconds else "none" for seconds in found]
    speedup = f"{found[0] / found[1]:.2f}" if all(found) else "none"
    return (
        f"{name:<18}{cells[0]:>9}{1e3 * true[0]:>10.2f}{cells[1]:>9}{1e3 * true[1]:>10.2f}"
        f"{speedup:>10}{true[0] / true[1]:>10.2f}"
    )


def _worst(figures: dict[str, Any], names: Iterable[str], of: str) -> Iterator[Bar]:
    """Yields the bar of the most wrong time and speed-up of some models."""
    for kind in ("float32", "duotone", "speed-up"):
        rows = {name: figures[name][kind] for name in names if kind in figures[name]}
        name = max(rows, key=lambda name: max(rows[name], 1 / rows[name]))
        wrong = max(rows[name], 1 / rows[name])
        yield Bar(f"{of}{kind}, {name}: wrong by", wrong, MOST, "times")


def main() -> None:
    """Estimates each step, prints and writes the table."""
    take_no_options(QUESTION)
    records = json.loads((RESULTS / "painter.json").read_text())["figures"]["records"]
    before = json.loads((RESULTS / "estimate.json").read_text())["figures"]
    lines, figures = [_HEAD], {}
    for name in (*MODELS, ONE_LINE, *names_of("small")):
        found, true = times(name, exact=False), compiled(name, records, before)
        lines.append(line(name, found, true))
        print(lines[-1], flush=True)
        figures[name] = {"estimated": found, "compiled": true, **ratios(found, true)}
        jax.clear_caches()
    worst = [
        *_worst(figures, (*MODELS, ONE_LINE), ""),
        *_worst(figures, names_of("small"), "small, "),
    ]
    command = "python -m benchmarks.estimate"
    write(Result("estimate", QUESTION, command, worst, "\n".join(lines), figures))


if __name__ == "__main__":
    main()
