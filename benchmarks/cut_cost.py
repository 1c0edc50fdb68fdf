# python -m benchmarks.cut_cost
"""What does painting by minimum cut cost, and does its model of fusion hold?

Two tables. The first paints unrolled nets of up to 100,000 equations by rules and by minimum cut,
and solves choices as large that are harder than those of any program: every variable is coupled to
four others or so at random. The second (``--compiled resnet50,gpt2``; needs ``duotone[cuda]``) sets
the bytes of the model beside those of the program compiled for an H200, with both painters; it is
printed only.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import jax
import jax.numpy as jnp

import duotone
from benchmarks._common import Bar, Result, seconds, table, write
from benchmarks.models import unrolled_net
from benchmarks.rewrite_cost import layers_for
from duotone.graph.cut import Labelling
from duotone.graph.graph import HALF_TYPES
from duotone.graph.painters import PAINTERS
from duotone.graph.traffic import bytes_of_traffic, find_traffic, lifted_nodes
from duotone.jaxpr.signature import flatten_call
from duotone.jaxpr.trace import trace
from duotone.road import Painted, paint_jaxpr

QUESTION = "What does painting by minimum cut cost?"
SIZES = (10_000, 100_000)
NEIGHBOURS = 2
BY = ("duotone", "mincut")
_HALF = HALF_TYPES["bfloat16"]


def painted(step: Any, shapes: Any, painter: str = "duotone") -> Painted:
    """A step down the road to its cast plan."""
    arrays, signature = flatten_call("benchmark", tuple(shapes), {})
    jaxpr = trace(step, signature, arrays).jaxpr
    policy = duotone.Policy(painter=painter, ignore_performance=True)  # type: ignore[arg-type]
    return paint_jaxpr(jaxpr, policy, _HALF)


def painting_row(count: int) -> list[Any]:
    """One size: nodes, and processor seconds of each painter."""
    loss, shapes = unrolled_net(layers_for(count))
    found = painted(jax.value_and_grad(loss), shapes)
    graph = found.built.graph
    spent = [seconds(lambda by=by: PAINTERS[by](graph, found.classes))[1] for by in BY]
    return [len(graph.nodes), *spent]


def hard_choice(count: int, seed: int = 0) -> Labelling:
    """A choice in which every variable depends on others near it."""
    draw = random.Random(seed)
    labels = Labelling(count)
    for variable in range(count):
        labels.prefer(variable, full=draw.randrange(10**6), half=draw.randrange(10**6))
        for _ in range(NEIGHBOURS if variable else 0):
            other = draw.randrange(max(0, variable - 50), variable)
            labels.join(full=variable, half=other, cost=draw.randrange(10**6))
            labels.join(full=other, half=variable, cost=draw.randrange(10**6))
    return labels


def compiled_rows(models: list[str]) -> list[list[Any]]:
    """Bytes by the model and of the compiled program, for each model and painter."""
    from benchmarks.zoo import MODELS

    rows = []
    for model in models:
        case = MODELS[model](None, "full")
        for by in BY:
            found = painted(case.step, case.step_shapes(), by)
            graph, classes = found.built.graph, found.classes
            traffic = find_traffic(graph, classes)
            by_model = bytes_of_traffic(
                traffic, graph, found.painting, lifted_nodes(graph, classes)
            )
            policy = duotone.Policy(painter=by)  # type: ignore[arg-type]
            step = duotone.autocast(case.step, dtype=jnp.bfloat16, policy=policy)
            step = jax.jit(step, donate_argnums=0)
            record = duotone.compile_for(step, *case.step_shapes(), target="h200")
            rows.append([model, by, by_model / 1e9, record.bytes / 1e9, by_model / record.bytes])
    return rows


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--compiled", default="", help="models of the zoo; writes nothing")
    options = parser.parse_args()
    if options.compiled:
        head = ["h200, bfloat16", "painter", "GB by the model", "GB compiled", "ratio"]
        print(table(head, compiled_rows(options.compiled.split(","))))
        return
    rows = [painting_row(count) for count in SIZES]
    hard = []
    for count in SIZES:
        labels = hard_choice(count)
        hard.append([count, seconds(labels.solve)[1]])
    bars = [
        Bar(f"minimum cut, unrolled net of {rows[-1][0]:,} nodes", rows[-1][2], 10.0, "s"),
        Bar(f"minimum cut, {hard[-1][0]:,} variables coupled at random", hard[-1][1], 10.0, "s"),
    ]
    text = "\n\n".join(
        [
            table(["unrolled net, nodes", *(f"{by}, processor s" for by in BY)], rows),
            table(["variables coupled at random", "processor s"], hard),
        ]
    )
    figures = {"painting": rows, "hard": hard}
    write(Result("cut_cost", QUESTION, "python -m benchmarks.cut_cost", bars, text, figures))


if __name__ == "__main__":
    main()
