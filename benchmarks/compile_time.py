# python -m benchmarks.compile_time
"""What do repeated parts and many shapes cost to compile, as written and with duotone?

Four questions in one run. ``reroll`` on ten programs with loops that Python unrolls
(:mod:`benchmarks._unrolled`): processor seconds of XLA's compilation, step time, memory. ``reroll``
on programs that repeat nothing worth a loop: it must decline, and cost nothing. How long the search
takes on programs of up to 100,000 equations. ``bucketed`` on 200 calls of random lengths.
``--only NAME`` measures one program and writes nothing; ``--soak`` calls a bucketed function 10,000
times from 8 threads.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import duotone
from benchmarks._common import Bar, Result, median, seconds, table, write
from benchmarks._unrolled import PROGRAMS, without_repetition
from duotone.compiling.listing import list_program
from duotone.compiling.plan import make_plan

QUESTION = "What do repeated parts and many shapes cost to compile, as written and with duotone?"
SIZES = (25_000, 50_000, 100_000)
STEP_SECONDS = 0.5


def compiled(fn: Callable[..., Any], args: Any) -> tuple[float, float, Any]:
    """Processor seconds of all of it and of XLA alone, and the program."""
    jax.clear_caches()
    _, tracing, lowered = seconds(lambda: jax.jit(fn).lower(*args))
    _, busy, program = seconds(lowered.compile)
    return tracing + busy, busy, program


def memory(program: Any) -> int:
    """Bytes of arguments, results and what is needed between."""
    found = program.memory_analysis()
    return found.temp_size_in_bytes + found.output_size_in_bytes + found.argument_size_in_bytes


def step_seconds(programs: dict[str, Any], args: Any) -> dict[str, float]:
    """The median seconds of a call of each, in turn."""
    spent: dict[str, list[float]] = {name: [] for name in programs}
    for program in programs.values():
        jax.block_until_ready(program(*args))
    end = time.perf_counter() + STEP_SECONDS * len(programs)
    while time.perf_counter() < end or len(next(iter(spent.values()))) < 5:
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*args))
            spent[name].append(time.perf_counter() - start)
    return {name: median(times) for name, times in spent.items()}


def apart(mine: Any, theirs: Any) -> float:
    """The largest difference between results, over the largest element of each."""
    worst = 0.0
    for x, y in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
        worst = max(worst, float(np.abs(a - b).max() / (np.abs(b).max() + 1e-30)))
    return worst


def rolled(name: str) -> dict[str, float]:
    """One program with loops, whole and rolled."""
    make, steps = PROGRAMS[name]
    fn, args = make(steps)
    mine_all, mine, ours = compiled(duotone.reroll(fn), args)
    their_all, theirs, whole = compiled(fn, args)
    step = step_seconds({"whole": whole, "ours": ours}, args)
    return {
        "whole s": theirs,
        "ours s": mine,
        "whole with tracing s": their_all,
        "ours with tracing s": mine_all,
        "whole step ms": 1e3 * step["whole"],
        "ours step ms": 1e3 * step["ours"],
        "whole MB": memory(whole) / 1e6,
        "ours MB": memory(ours) / 1e6,
        "apart": apart(ours(*args), whole(*args)),
    }


def declined(fn: Callable[..., Any], args: Any, rounds: int = 2) -> dict[str, float]:
    """A program without repetition: total processor seconds, whole and with ``reroll``."""
    whole, ours = [], []
    for _ in range(rounds):
        whole.append(compiled(fn, args)[0])
        ours.append(compiled(duotone.reroll(fn), args)[0])
    loops = sum(line.rolled for line in duotone.clusters(fn, *args).lines)
    return {"whole s": min(whole), "ours s": min(ours), "loops": loops}


def analysis() -> dict[int, float]:
    """Processor seconds to list, search and plan a program, by its number of equations."""

    def program(x: Any, count: int) -> Any:
        rng = random.Random(0)
        while count > 0:
            body = [rng.choice([jax.lax.sin, jax.lax.tanh, jax.lax.neg]) for _ in range(7)]
            for _ in range(rng.randint(1, 300)):
                for operation in body:
                    x = operation(x)
                count -= len(body)
        return x

    found = {}
    for size in SIZES:
        jaxpr = jax.make_jaxpr(lambda x, size=size: program(x, size))(jnp.ones(2))
        _, busy, plan = seconds(lambda jaxpr=jaxpr: make_plan(list_program(jaxpr)))
        assert plan.changes
        found[size] = busy
    return found


def _layers(weights: Any, x: Any) -> Any:
    for w in weights:
        scores = jax.nn.softmax(jnp.tril(x @ x.swapaxes(-1, -2)) * 0.1, axis=-1)
        x = jax.nn.gelu(scores @ x @ w) + x
    return x


def lengths() -> dict[str, float]:
    """200 calls of random lengths from 64 to 512: clock seconds of plain ``jit`` and of buckets."""
    rng = random.Random(0)
    calls = [rng.randint(64, 512) for _ in range(200)]
    weights = [0.1 * jax.random.normal(jax.random.key(i), (64, 64)) for i in range(6)]
    data = {n: jax.random.normal(jax.random.key(n), (2, n, 64)) for n in set(calls)}

    def masked(weights: Any, x: Any, mask: Any) -> Any:
        for w in weights:
            scores = jnp.where(mask, x @ x.swapaxes(-1, -2) * 0.1, -1e9)
            x = jax.nn.gelu(jax.nn.softmax(scores, axis=-1) @ x @ w) + x
        return x

    ours = duotone.bucketed(masked, {"x": 1}, mask="mask")
    plain = jax.jit(lambda weights, x: masked(weights, x, jnp.ones(x.shape[1], bool)))
    figures: dict[str, float] = {"lengths": len(set(calls))}
    results: dict[str, list[Any]] = {}
    for name, fn in {"ours": ours, "plain": plain}.items():
        start = time.perf_counter()
        results[name] = [jax.block_until_ready(fn(weights, data[n])) for n in calls]
        figures[f"{name} s"] = time.perf_counter() - start
    figures["apart"] = max(map(apart, results["ours"], results["plain"]))
    figures["compiles"] = ours.counts.compiles
    return figures


def soak(calls: int = 10_000, threads: int = 8, shapes: int = 50) -> dict[str, float]:
    """Calls from threads over many shapes, of which few programs are kept."""
    fn = duotone.bucketed(
        lambda x: jnp.cumsum(x) * 2.0, 0, sizes=range(4, 4 * shapes + 4, 4), programs=10
    )
    rng = random.Random(0)
    asked = [
        rng.randint(1, 4 * shapes) if rng.random() < 0.02 else rng.randint(1, 32)
        for _ in range(calls)
    ]
    before = threading.active_count()

    def call(n: int) -> bool:
        return bool(np.allclose(fn(jnp.ones(n)), 2.0 * np.arange(1, n + 1)))

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        right = sum(pool.map(call, asked))
    counts = fn.counts
    return {
        "calls": calls,
        "right": right,
        "compiles": counts.compiles,
        "evictions": counts.evictions,
        "programs kept": counts.programs,
        "threads left": threading.active_count() - before,
    }


def measure() -> tuple[list[Bar], str, dict[str, Any]]:
    """All four questions; returns bars, tables and data."""
    bars, data, texts = [], {}, []
    rows = []
    for name in PROGRAMS:
        f = data[name] = rolled(name)
        rows.append([name, *f.values()])
        bars.append(
            Bar(f"{name}: XLA's time, ours over whole", f["ours s"] / f["whole s"], 0.1, "times")
        )
        bars.append(
            Bar(
                f"{name}: step, ours over whole",
                f["ours step ms"] / f["whole step ms"],
                1.02,
                "times",
            )
        )
        bars.append(
            Bar(f"{name}: memory, ours over whole", f["ours MB"] / f["whole MB"], 1.05, "times")
        )
        print(rows[-1], flush=True)
    texts.append(table(["unrolled", *next(iter(data.values()))], rows))
    rows = []
    for name, (fn, args) in without_repetition().items():
        f = data[name] = declined(fn, args)
        rows.append([name, *f.values()])
        bars.append(
            Bar(f"{name}: total, ours over whole", f["ours s"] / f["whole s"], 1.05, "times")
        )
        print(rows[-1], flush=True)
    texts.append(table(["without repetition", "whole s", "ours s", "loops"], rows))
    found = data["analysis"] = analysis()
    texts.append(table(["equations", "s"], [[str(n), s] for n, s in found.items()]))
    bars.append(Bar("100,000 equations analysed", found[SIZES[-1]], 15.0, "s"))
    growth = found[SIZES[-1]] / found[SIZES[0]] / 4
    bars.append(Bar("time for each equation, 100,000 over 25,000", growth, 1.3, "times"))
    f = data["lengths"] = lengths()
    texts.append(table(["200 calls", *f], [["random lengths", *f.values()]]))
    bars.append(
        Bar("200 random lengths: buckets over plain jit", f["ours s"] / f["plain s"], 0.25, "times")
    )
    f = data["soak"] = soak()
    texts.append(table(["soak", *f], [["8 threads", *f.values()]]))
    bars.append(Bar("soak: wrong results", f["calls"] - f["right"], 0, "calls"))
    bars.append(Bar("soak: programs kept", f["programs kept"], 10, "programs"))
    return bars, "\n\n".join(texts), data


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(PROGRAMS))
    parser.add_argument("--soak", action="store_true")
    asked = parser.parse_args()
    if asked.only:
        print(rolled(asked.only))
    elif asked.soak:
        print(soak())
    else:
        bars, text, data = measure()
        write(
            Result("compile_time", QUESTION, "python -m benchmarks.compile_time", bars, text, data)
        )


if __name__ == "__main__":
    main()
