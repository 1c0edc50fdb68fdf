# python -m benchmarks.graphdef
"""How fast are TensorFlow graphs rewritten?

Two tables: processor seconds and casts for a ResNet-50 training graph and for nets of 1,000 and
120,000 nodes, by each painter; and processor seconds of minimum cuts larger and harder than those
of any saved graph, in which every variable is coupled to four others or so at random. Bytes of
casts are counted where the graph tells the shape; an unknown dimension counts as 1.
"""

from __future__ import annotations

import random
from typing import Any

from benchmarks._common import Bar, Result, seconds, table, write
from benchmarks._graphdefs import deep_net, long_sums, resnet50
from duotone.graph.cut import Labelling
from duotone.tensorflow import RewriteResult, rewrite

QUESTION = "How fast are TensorFlow graphs rewritten?"
PAINTERS = ("duotone", "tensorflow")
LIMITS = {
    "ResNet-50, training": 1.0,
    "net of 1,000 nodes": 0.3,
    "net of 120,000 nodes": 20.0,
    "sums of 120,000 nodes": 20.0,
}
REPEATS = 2
VARIABLES = (10_000, 100_000)
NEIGHBOURS = 2


def cost(result: RewriteResult) -> tuple[int, int]:
    """Casts of a rewrite and their bytes, functions included."""
    bodies = [result, *result.functions.values()]
    return sum(len(body.casts) for body in bodies), sum(body.cast_bytes for body in bodies)


def timed_row(name: str, graph: Any, painter: str) -> list[Any]:
    """One graph and painter: nodes, the least processor seconds of several runs, casts, bytes."""
    runs = [seconds(lambda: rewrite(graph, painter=painter)) for _ in range(REPEATS)]
    result = runs[-1][2]
    least = min(busy for _, busy, _ in runs)
    return [f"{name}, {painter}", len(graph.node), least, *cost(result)]


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


def main() -> None:
    """Measures and writes."""
    graphs = {
        "ResNet-50, training": resnet50(),
        "net of 1,000 nodes": deep_net(1_000),
        "net of 120,000 nodes": deep_net(120_000),
        "sums of 120,000 nodes": long_sums(120_000),
    }
    times = [timed_row(name, graphs[name], by) for name in graphs for by in PAINTERS]
    cuts = [[count, seconds(hard_choice(count).solve)[1]] for count in VARIABLES]
    bars = [
        Bar(f"processor seconds, {row[0]}", row[2], LIMITS[row[0].rpartition(", ")[0]], "s")
        for row in times
    ]
    name = f"processor seconds, {cuts[-1][0]:,} variables coupled at random"
    bars.append(Bar(name, cuts[-1][1], 10.0, "s"))
    text = "\n\n".join(
        [
            table(["graph, painter", "nodes", "seconds", "casts", "bytes"], times),
            table(["variables coupled at random", "processor s"], cuts),
        ]
    )
    figures = {"times": times, "cuts": cuts}
    write(Result("graphdef", QUESTION, "python -m benchmarks.graphdef", bars, text, figures))


if __name__ == "__main__":
    main()
