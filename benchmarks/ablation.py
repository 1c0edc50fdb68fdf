# python -m benchmarks.ablation
"""What is each rule and each optimization worth?

Each is switched off by its name (``Policy(rules_remove=…)``, ``Policy(optimizations_remove=…)``),
one at a time, on the whole training steps of the zoo's first half. ``--models`` names others, for
example the small ones, where a rule may be worth a tenth that is worth nothing in the first half.
Rules change precisions, so their first figure is the bytes of operands and results as painted,
without the rule over with it (above 1: the rule saves bytes; below: it spends them on exactness),
and of how many models it changes the painting. Optimizations change no precision: ``--compiled``
compiles the steps (extras ``cuda``, ``tpu``) without each rule and optimization that is in effect
in them, for the bytes and the temporary memory of the compiled programs.

Each model is written as soon as it is there, next to what was measured before; ``--resume`` leaves
out what was.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.progress import track

import duotone
from benchmarks._common import RESULTS, Result, table, write
from benchmarks.zoo import ZOO, names_of
from duotone.devices import assuming, find_target
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.pipeline import paint_for_device
from duotone.jaxpr.reading.signature import flatten_call
from duotone.jaxpr.reading.trace import trace
from duotone.jaxpr.records import record_of
from duotone.precision.removable import REMOVABLE

QUESTION = "What is each rule and each optimization worth?"
COMMAND = "python -m benchmarks.ablation"
COLUMNS = (("h200", "float16"), ("h200", "bfloat16"), ("v5e", "bfloat16"))
"""Targets and half types."""
Figures = dict[str, dict[str, dict[str, Any]]]
"""``painted`` and ``compiled``: by model, by target and half type, by name."""


def policies() -> dict[str, duotone.Policy]:
    """For each rule and optimization, a policy without it."""
    return {
        name: duotone.Policy().replace(**{field: [name]})
        for field, names in REMOVABLE.items()
        for name in names
    }


def painted(model: str) -> dict[str, Any]:
    """Bytes of a model's step as painted, without each rule over with it, and what is in effect.

    Returns:
        By target and half type: ``bytes``, a ratio for each rule that changes a precision, and
        ``optimizations``, the names of the optimizations that the step is carried out in.
    """
    case = ZOO[model].make(None, "full")
    arrays, signature = flatten_call("benchmark", case.step_shapes(), {})
    jaxpr = trace(case.step, signature, arrays).jaxpr
    found = {}
    for target, half in COLUMNS:
        with assuming(find_target(target).device()):
            plain = paint_for_device(jaxpr, duotone.Policy(), HALF_TYPES[half])
            record = record_of(plain)
            ratios = {}
            for name in REMOVABLE["rules_remove"]:
                seen = paint_for_device(jaxpr, policies()[name], HALF_TYPES[half])
                if precisions(seen) != precisions(plain):
                    ratios[name] = _bytes(record_of(seen)) / _bytes(record)
            optimizations = sorted({name for o in record.operations for name, _ in o.optimizations})
            found[f"{target} {half}"] = {"bytes": ratios, "optimizations": optimizations}
    return found


def precisions(seen: Any) -> tuple[Any, Any]:
    """The painting's two precisions of each node."""
    return seen.painting.compute, seen.painting.store


def _bytes(record: Any) -> int:
    return record.summary.bytes_half + record.summary.bytes_full


def compiled(model: str, target: str, half: str, names: Sequence[str]) -> dict[str, list[float]]:
    """Bytes and temporary memory of a compiled step without each name, over those with it."""
    case = ZOO[model].make(None, "full")
    step = _compiled(case, target, half, duotone.Policy())
    found = {}
    for name in track(names, f"{model} for {target}, {half}"):
        without = _compiled(case, target, half, policies()[name])
        kept = without.temporary_bytes / max(step.temporary_bytes, 1)
        found[name] = [without.bytes / step.bytes, kept]
    return found


def _compiled(case: Any, target: str, half: str, policy: duotone.Policy) -> Any:
    step = duotone.autocast(case.step, dtype=jnp.dtype(half), policy=policy)
    step = jax.jit(step, donate_argnums=0)
    return duotone.compile_for(step, *case.step_shapes(), target=target)


def geometric_mean(ratios: Sequence[float]) -> float:
    """Returns the geometric mean of positive numbers; 1 for none.

    Example:
        >>> geometric_mean([0.5, 2.0])
        1.0
    """
    return math.exp(sum(map(math.log, ratios)) / max(len(ratios), 1))


def painted_rows(records: dict[str, dict[str, Any]]) -> Iterator[list[Any]]:
    """For each rule: geometric means of bytes without over with, and models it changes."""
    for name in REMOVABLE["rules_remove"]:
        row: list[Any] = [name]
        for target, half in COLUMNS:
            ratios = [model[f"{target} {half}"]["bytes"].get(name) for model in records.values()]
            row.append(geometric_mean([ratio or 1.0 for ratio in ratios]))
            row.append(sum(ratio is not None for ratio in ratios))
        yield row


def compiled_rows(records: dict[str, dict[str, Any]], column: str) -> Iterator[list[Any]]:
    """For each rule and optimization in effect: means over all models, and its best model."""
    measured = {model: row[column] for model, row in records.items() if column in row}
    for name in policies():
        ratios = {model: row[name] for model, row in measured.items() if name in row}
        if not ratios:
            continue
        others = [1.0] * (len(measured) - len(ratios))
        moved, kept = zip(*ratios.values(), strict=True)
        most = max(ratios, key=lambda model: ratios[model][0])
        yield [
            name,
            f"{len(ratios)} of {len(measured)}",
            f"{geometric_mean([*moved, *others]):.3f}",
            f"{geometric_mean([*kept, *others]):.3f}",
            f"{min(moved):.3f}",
            f"{max(moved):.3f}, {most}",
        ]


def text_of(figures: Figures) -> str:
    """The tables."""
    head = [f"painted, {len(figures['painted'])} models, without"]
    for target, half in COLUMNS:
        head += [f"bytes, {target} {half}", "models"]
    tables = [table(head, list(painted_rows(figures["painted"])))]
    for target, half in COLUMNS:
        rows = list(compiled_rows(figures["compiled"], f"{target} {half}"))
        if rows:
            head = [f"compiled, {target} {half}, without", "in effect in"]
            head += ["bytes, mean", "memory, mean", "least bytes", "most bytes"]
            tables.append(table(head, rows))
    return "\n\n".join(tables)


def load(folder: Path = RESULTS) -> Figures:
    """Returns the figures so far."""
    file = folder / "ablation.json"
    found = json.loads(file.read_text())["figures"] if file.exists() else {}
    return {"painted": found.get("painted", {}), "compiled": found.get("compiled", {})}


def save(figures: Figures) -> None:
    """Writes the result."""
    write(Result("ablation", QUESTION, COMMAND, [], text_of(figures), figures))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--models", default=",".join(names_of("first")), help="of the zoo")
    parser.add_argument("--compiled", action="store_true", help="compile, not only paint")
    parser.add_argument("--target", default="h200", help="to compile for")
    parser.add_argument("--dtype", default="bfloat16", help="the half type to compile with")
    parser.add_argument(
        "--without", help="names of rules and optimizations; by default all in effect"
    )
    parser.add_argument("--resume", action="store_true", help="leave out what was measured")
    given = parser.parse_args(arguments)
    column = f"{given.target} {given.dtype}"
    for model in given.models.split(","):
        figures = load()
        if not (given.resume and model in figures["painted"]):
            figures["painted"][model] = painted(model)
            save(figures)
        if given.compiled and not (given.resume and column in figures["compiled"].get(model, {})):
            seen = figures["painted"][model][column]
            names = [*seen["bytes"], *seen["optimizations"]]
            if given.without:
                names = [name for name in names if name in given.without.split(",")]
            found = compiled(model, given.target, given.dtype, names)
            figures["compiled"].setdefault(model, {}).setdefault(column, {}).update(found)
            save(figures)


if __name__ == "__main__":
    main()
