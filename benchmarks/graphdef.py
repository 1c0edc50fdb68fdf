# python -m benchmarks.graphdef
"""How fast are TensorFlow graphs rewritten, and how many bytes does the minimum cut save?

Three tables: processor seconds and casts for a ResNet-50 training graph and for nets of 1,000 and
120,000 nodes, by each painter; processor seconds of minimum cuts larger and harder than those of
any saved graph, in which every variable is coupled to four others or so at random; and, for each
graph of ``tests/data/tensorflow_amp`` in both modes, the casts and what they read and write, by
TensorFlow's painting and by minimum cut. Bytes are counted where the graph tells the shape; an
unknown dimension counts as 1.
"""

from __future__ import annotations

import json
import random
import statistics
from typing import Any

from benchmarks._common import Bar, Result, seconds, table, write
from benchmarks._graphdefs import cases, deep_net, long_sums, resnet50
from duotone.graph.cut import Labelling
from duotone.tensorflow import RewriteResult, rewrite
from duotone.tensorflow.protos import new_graph

QUESTION = "How fast are TensorFlow graphs rewritten, and what does the minimum cut save?"
PAINTERS = ("tensorflow", "mincut")
ALL_PAINTERS = ("duotone", *PAINTERS)
MODES = ("float16", "bfloat16")
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


def case_rows() -> list[list[Any]]:
    """Each observed graph and mode: casts and bytes of both painters."""
    rows = []
    for name, graph_text, answer in cases():
        graph = new_graph.FromString(graph_text)
        fetch = json.loads(answer)["fetch"]
        for dtype in MODES:
            results = [rewrite(graph, fetch=fetch, dtype=dtype, painter=by) for by in PAINTERS]
            (casts, size), (fewer, smaller) = map(cost, results)
            rows.append([f"{name}, {dtype}", casts, fewer, size, smaller])
    return rows


def main() -> None:
    """Measures and writes."""
    graphs = {
        "ResNet-50, training": resnet50(),
        "net of 1,000 nodes": deep_net(1_000),
        "net of 120,000 nodes": deep_net(120_000),
        "sums of 120,000 nodes": long_sums(120_000),
    }
    times = [timed_row(name, graphs[name], by) for name in graphs for by in ALL_PAINTERS]
    cuts = [[count, seconds(hard_choice(count).solve)[1]] for count in VARIABLES]
    rows = case_rows()
    bytes_ratios = [row[4] / row[3] for row in rows if row[3]]
    cast_ratios = [row[2] / row[1] for row in rows if row[1]]
    bars = [
        Bar(f"processor seconds, {row[0]}", row[2], LIMITS[row[0].rpartition(", ")[0]], "s")
        for row in times
    ]
    name = f"processor seconds, {cuts[-1][0]:,} variables coupled at random"
    bytes_mean, casts_mean = map(statistics.geometric_mean, (bytes_ratios, cast_ratios))
    bars += [
        Bar(name, cuts[-1][1], 10.0, "s"),
        Bar("bytes of casts, worst case, cut over TensorFlow", max(bytes_ratios), 1.0, "times"),
        Bar("bytes of casts, geometric mean", bytes_mean, 0.999, "times"),
    ]
    fewer = f"{sum(r < 1 for r in bytes_ratios)} of {len(bytes_ratios)} with fewer bytes"
    text = "\n\n".join(
        [
            table(["graph, painter", "nodes", "seconds", "casts", "bytes"], times),
            table(["variables coupled at random", "processor s"], cuts),
            table(["case", "casts", "cut", "bytes", "cut"], rows),
            f"{fewer}; casts in geometric mean {casts_mean:.3f} times",
        ]
    )
    figures = {
        "times": times,
        "cuts": cuts,
        "cases": rows,
        "casts_mean": casts_mean,
    }
    write(Result("graphdef", QUESTION, "python -m benchmarks.graphdef", bars, text, figures))


if __name__ == "__main__":
    main()
