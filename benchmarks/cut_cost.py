# python -m benchmarks.cut_cost
"""What does a minimum cut cost?

Choices larger and harder than those of any saved graph: every variable is coupled to four others or
so at random. (``benchmarks/graphdef.py`` measures the painting of graphs.)
"""

from __future__ import annotations

import random

from benchmarks._common import Bar, Result, seconds, table, write
from duotone.graph.cut import Labelling

QUESTION = "What does a minimum cut cost?"
SIZES = (10_000, 100_000)
NEIGHBOURS = 2


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
    """Measures and writes the result."""
    rows = []
    for count in SIZES:
        labels = hard_choice(count)
        rows.append([count, seconds(labels.solve)[1]])
    bars = [Bar(f"{rows[-1][0]:,} variables coupled at random", rows[-1][1], 10.0, "s")]
    text = table(["variables coupled at random", "processor s"], rows)
    write(Result("cut_cost", QUESTION, "python -m benchmarks.cut_cost", bars, text, {"hard": rows}))


if __name__ == "__main__":
    main()
