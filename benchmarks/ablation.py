# python -m benchmarks.ablation
"""What is each rule and each reform worth?

Each is switched off by its name (``Policy(rules_remove=…)``, ``Policy(reforms_remove=…)``), one at
a time, on the whole training steps of the zoo. Rules change colours, so the figure is the bytes of
operands and results as painted, without the rule over with it (above 1: the rule saves bytes;
below: it spends them on exactness), and of how many models it changes the painting. Reforms change
no colour: ``--compiled`` compiles the steps (extras ``cuda``, ``tpu``) and gives the bytes and the
temporary memory of the compiled programs for rules and reforms alike.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from rich.progress import track

import duotone
from benchmarks._common import Result, table, write
from benchmarks.zoo import MODELS, names_of
from duotone._records import record_of
from duotone._road import paint_for_device
from duotone.graph.graph import HALF_TYPES
from duotone.graph.removable import REMOVABLE
from duotone.jaxpr.reading.signature import flatten_call
from duotone.jaxpr.reading.trace import trace
from duotone.targets import assuming, find_target

QUESTION = "What is each rule and each reform worth?"
COLUMNS = (("h200", "float16"), ("h200", "bfloat16"), ("v5e", "bfloat16"))
"""Targets and half types."""


def policies(fields: Sequence[str]) -> dict[str, duotone.Policy]:
    """The default policy, and for each name of some fields one without it."""
    names = [(field, name) for field in fields for name in REMOVABLE[field]]
    without = {name: duotone.Policy().replace(**{field: [name]}) for field, name in names}
    return {"": duotone.Policy(), **without}


def painted(model: str) -> dict[tuple[str, str, str], tuple[int, Any]]:
    """Bytes and colours of a model's step, by target, half type and what is switched off."""
    case = MODELS[model](None, "full")
    arrays, signature = flatten_call("benchmark", case.step_shapes(), {})
    jaxpr = trace(case.step, signature, arrays).jaxpr
    found = {}
    for target, half in COLUMNS:
        with assuming(find_target(target).device()):
            for name, policy in policies(["rules_remove"]).items():
                seen = paint_for_device(jaxpr, policy, HALF_TYPES[half])
                s = record_of(seen).summary
                colours = seen.painting.compute, seen.painting.store
                found[target, half, name] = s.bytes_half + s.bytes_full, colours
    return found


def rule_rows(models: Sequence[str]) -> list[list[Any]]:
    """For each rule: geometric means of bytes without over with, and models it changes."""
    by_model = [painted(model) for model in track(models, description="painting")]
    rows = []
    for name in REMOVABLE["rules_remove"]:
        row: list[Any] = [name]
        for target, half in COLUMNS:
            ratios = [m[target, half, name][0] / m[target, half, ""][0] for m in by_model]
            changed = sum(m[target, half, name][1] != m[target, half, ""][1] for m in by_model)
            row += [geometric_mean(ratios), changed]
        rows.append(row)
    return rows


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of positive numbers; 1 for none.

    Example:
        >>> geometric_mean([0.5, 2.0])
        1.0
    """
    return math.exp(sum(map(math.log, ratios)) / max(len(ratios), 1))


def in_effect(model: str, target: str, half: str) -> frozenset[str]:
    """The rules and reforms that decide something in a model's step."""
    case = MODELS[model](None, "full")
    arrays, signature = flatten_call("benchmark", case.step_shapes(), {})
    jaxpr = trace(case.step, signature, arrays).jaxpr
    with assuming(find_target(target).device()):
        record = record_of(paint_for_device(jaxpr, duotone.Policy(), HALF_TYPES[half]))
    rules = {operation.rule for operation in record.operations}
    return frozenset(rules | {name for o in record.operations for name, _ in o.reforms})


def compiled_rows(models: Sequence[str], names: Sequence[str]) -> list[list[Any]]:
    """Bytes and temporary memory of compiled steps without each name, over those with it.

    A step is compiled only without what is in effect in it: without the rest it is the same. The
    last rows are the geometric means over all models.
    """
    every = policies(list(REMOVABLE))
    rows, means = [], []
    for target, half in COLUMNS:
        ratios = {name: [(1.0, 1.0)] * len(models) for name in names}
        for position, model in enumerate(models):
            case = MODELS[model](None, "full")
            without = [name for name in names if name in in_effect(model, target, half)]
            seen = {}
            for name in track(["", *without] if without else [], f"{model} for {target}, {half}"):
                step = duotone.autocast(case.step, dtype=jnp.dtype(half), policy=every[name])
                step = jax.jit(step, donate_argnums=0)
                seen[name] = duotone.compile_for(step, *case.step_shapes(), target=target)
            for name in without:
                moved = seen[name].bytes / seen[""].bytes
                kept = seen[name].temporary_bytes / max(seen[""].temporary_bytes, 1)
                ratios[name][position] = moved, kept
                rows.append([f"{model}, {target}, {half}", name, moved, kept])
        means += [
            [f"all, {target}, {half}", name, *map(geometric_mean, zip(*pairs, strict=True))]
            for name, pairs in ratios.items()
        ]
    return rows + means


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes the result; with ``--compiled`` it only prints."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--models", default=",".join(names_of("first")), help="of the zoo")
    parser.add_argument("--compiled", metavar="NAMES", help="rules and reforms to compile without")
    given = parser.parse_args(arguments)
    models = given.models.split(",")
    if given.compiled:
        rows = compiled_rows(models, given.compiled.split(","))
        print(table(["step", "without", "bytes", "temporary memory"], rows))
        return
    rows = rule_rows(models)
    head = ["without the rule"]
    for target, half in COLUMNS:
        head += [f"bytes, {target} {half}", "models"]
    figures = {"rules": rows, "models": models}
    command = "python -m benchmarks.ablation"
    write(Result("ablation", QUESTION, command, [], table(head, rows), figures))


if __name__ == "__main__":
    main()
