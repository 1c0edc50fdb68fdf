# python -m benchmarks.compile_time
"""What do repeated parts and many shapes cost to compile, as written and with duotone?

Four questions in one run. ``reroll`` on ten programs with loops that Python unrolls
(:mod:`benchmarks._unrolled`): processor seconds of XLA's compilation, step time, memory. ``reroll``
on programs that repeat nothing worth a loop: it must decline, and cost nothing. How long the search
takes on programs of up to 100,000 equations. ``bucketed`` on 200 calls of random lengths.
``--only NAME`` measures one program and writes nothing; ``--soak`` calls a bucketed function 10,000
times from 8 threads. A run that was cut off goes on where it stopped.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track

import duotone
from benchmarks._common import RESULTS, Bar, Result, median, seconds, table, write
from benchmarks._unrolled import PROGRAMS, without_repetition
from duotone.compiling.listing import list_program
from duotone.compiling.loop_plan import Loop, LoopPlan

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
    fn, args = make(steps, lambda unrolled: unrolled)
    mine_all, mine, ours = compiled(make(steps, duotone.reroll)[0], args)
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


def declined(fn: Callable[..., Any], args: Any, rounds: int = 5) -> dict[str, float]:
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
        _, busy, plan = seconds(lambda jaxpr=jaxpr: LoopPlan(list_program(jaxpr)))
        assert any(isinstance(step, Loop) for step in plan.steps)
        found[size] = busy
    return found


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


def measure() -> dict[str, Any]:
    """All four questions; takes up what was cut off, from a file that is removed at the end."""
    kept = RESULTS.parent / ".compile_time.json"
    done: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    parts: dict[str, Callable[[], Any]] = {
        **{name: functools.partial(rolled, name) for name in PROGRAMS},
        **{
            name: functools.partial(declined, *program)
            for name, program in without_repetition().items()
        },
        "analysis": lambda: {str(size): spent for size, spent in analysis().items()},
        "lengths": lengths,
        "soak": soak,
    }
    for name in track([name for name in parts if name not in done], "compile time"):
        done[name] = parts[name]()
        kept.write_text(json.dumps(done))
    kept.unlink(missing_ok=True)
    return done


def bars_of(data: dict[str, Any]) -> list[Bar]:
    """The limits of the four questions."""

    def over(name: str, what: str, ours: str, whole: str, limit: float) -> Bar:
        ratio = data[name][ours] / data[name][whole]
        return Bar(f"{name}: {what}, ours over whole", ratio, limit, "times")

    bars = []
    for name in PROGRAMS:
        bars.append(over(name, "XLA's time", "ours s", "whole s", 0.1))
        bars.append(over(name, "step", "ours step ms", "whole step ms", 1.02))
        bars.append(over(name, "memory", "ours MB", "whole MB", 1.05))
    bars += [over(name, "total", "ours s", "whole s", 1.05) for name in without_repetition()]
    found, f, soaked = data["analysis"], data["lengths"], data["soak"]
    first, last = str(SIZES[0]), str(SIZES[-1])
    growth = found[last] / found[first] / (SIZES[-1] / SIZES[0])
    return [
        *bars,
        Bar("100,000 equations analysed", found[last], 15.0, "s"),
        Bar("time for each equation, 100,000 over 25,000", growth, 1.3, "times"),
        Bar(
            "200 random lengths: buckets over plain jit", f["ours s"] / f["plain s"], 0.25, "times"
        ),
        Bar("soak: wrong results", soaked["calls"] - soaked["right"], 0, "calls"),
        Bar("soak: programs kept", soaked["programs kept"], 10, "programs"),
    ]


def text_of(data: dict[str, Any]) -> str:
    """The tables."""
    unrolled = [[name, *data[name].values()] for name in PROGRAMS]
    whole = [[name, *data[name].values()] for name in without_repetition()]
    tables = [
        table(["unrolled", *data[next(iter(PROGRAMS))]], unrolled),
        table(["without repetition", "whole s", "ours s", "loops"], whole),
        table(["equations", "s"], list(map(list, data["analysis"].items()))),
        table(["200 calls", *data["lengths"]], [["random lengths", *data["lengths"].values()]]),
        table(["soak", *data["soak"]], [["8 threads", *data["soak"].values()]]),
    ]
    return "\n\n".join(tables)


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
        data = measure()
        command = "python -m benchmarks.compile_time"
        write(Result("compile_time", QUESTION, command, bars_of(data), text_of(data), data))


if __name__ == "__main__":
    main()
