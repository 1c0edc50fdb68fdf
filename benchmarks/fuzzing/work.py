"""One process of :mod:`benchmarks.fuzz`: judges programs and prints a row of JSON for each.

``python -m benchmarks.fuzzing.work SEED ...``
"""

from __future__ import annotations

import json
import logging
import math
import sys
from typing import Any

import numpy as np

from benchmarks.fuzzing.judge import FORMS, WAYS, Case, judge
from benchmarks.fuzzing.programs import random_program

_LIKELY = (0.45, 0.45, 0.1)
"""The probability of each of :data:`WAYS`."""
_COMPILED = 40
"""One program in as many is compiled."""
_WRONG, _TIMES_FLOAT32 = 0.1, 100.0


def case_of(seed: int) -> Case:
    """The program of a seed, and how it is painted."""
    random = np.random.default_rng([seed, 2])
    form, way = random.choice(FORMS), random.choice(WAYS, p=_LIKELY)
    return Case(random_program(seed), str(form), str(way), seed, seed % _COMPILED == 0)


def judged(seed: int) -> dict[str, Any]:
    """A row: seed, form, way, operations and verdict."""
    case = case_of(seed)
    verdict = judge(case)
    return {
        "seed": seed,
        "form": case.form,
        "way": case.way,
        "steps": sorted(case.program.steps()),
        "kind": verdict.kind,
        "text": verdict.text if verdict.is_finding else "",
        "ratio": verdict.ratio if math.isfinite(verdict.ratio) else 1e9,
        "wrong": verdict.error > _WRONG and verdict.beside_float32 > _TIMES_FLOAT32,
    }


def main() -> None:
    """Judges the programs that the command line names."""
    logging.getLogger("duotone").setLevel(logging.ERROR)
    for seed in map(int, sys.argv[1:]):
        print(json.dumps(judged(seed)), flush=True)


if __name__ == "__main__":
    main()
