# python -m benchmarks._second_process FORM LAYERS FOLDER
"""The time until a step is loaded in a process that another one prepared, with JAX's cache.

A child process traces, paints, lowers and looks up the step of an unrolled transformer in JAX's
persistent compilation cache. A small net in the same form comes before the clock starts: it imports
what the form needs and starts JAX's backend. The first child of each form fills the cache and is
not counted.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import jax
import jax.monitoring

import duotone
from benchmarks._common import Bar, in_a_process, medians, seconds, table
from benchmarks._deep_nets import FORMS, unrolled_gpt, unrolled_net

MOST = 1.3
CHILDREN = {12: 7, 48: 3}
"""By layers: children of each form that find its program in the cache."""


def load(form: str, layers: int, folder: str) -> dict[str, Any]:
    """Returns the processor seconds from the function to its loaded program.

    ``found`` says whether the cache had the program.
    """
    events: list[str] = []
    duotone.use_cache(folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    make = FORMS[form][0]
    loss, shapes = unrolled_net(1)
    jax.jit(make(loss)).lower(*shapes).compile()
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    loss, shapes = unrolled_gpt(layers)
    step = jax.jit(make(loss))
    _, spent, _ = seconds(lambda: step.lower(*shapes).compile())
    return {"seconds": spent, "found": "/jax/compilation_cache/cache_hits" in events}


def measure(children: Mapping[int, int]) -> tuple[list[Bar], str, dict[str, Any]]:
    """Returns limits, a table and data, for numbers of children by layers."""
    spent = {layers: _medians(layers, count) for layers, count in children.items()}
    rows, bars = [], []
    for name, (_, base, _) in FORMS.items():
        rows.append([name, *[found[name] for found in spent.values()]])
        if base:
            ratios = {count: found[name] / found[base] for count, found in spent.items()}
            rows.append([f"  over {base}", *ratios.values()])
            bars += [
                Bar(f"second process, {name}, {count} layers", ratio, MOST, f"times {base}")
                for count, ratio in ratios.items()
            ]
    head = ["second process: processor seconds until loaded", *map(str, children)]
    return bars, table(head, rows), {str(count): found for count, found in spent.items()}


def _medians(layers: int, children: int) -> dict[str, float]:
    """Medians of each form's seconds.

    Raises:
        RuntimeError: JAX compiled a program that a child before had compiled.
    """
    with tempfile.TemporaryDirectory() as folder:
        rounds = [
            {name: _child(name, layers, folder) for name in FORMS} for _ in range(children + 1)
        ]
    missing = [name for found in rounds[1:] for name in FORMS if not found[name]["found"]]
    if missing:
        raise RuntimeError(f"not in the cache: {', '.join(missing)}")
    return medians([{name: found[name]["seconds"] for name in FORMS} for found in rounds[1:]])


def _child(form: str, layers: int, folder: str) -> dict[str, Any]:
    command = (sys.executable, "-m", "benchmarks._second_process", form, str(layers), folder)
    return in_a_process(*command)


if __name__ == "__main__":
    print(json.dumps(load(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
