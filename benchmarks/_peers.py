"""A process that measures one way for ``peers_cpu.py``: it prepares a task, then runs it when told.

It stays on one core and measures processor time, which other programs on a busy machine hardly
change: a library with two threads waits for the one that another program holds up. Imports neither
JAX nor PyTorch, so that a process has one of them only.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Spec = dict[str, Any]
"""An array's ``shape`` without its batch, and ``below`` if it has whole numbers."""
COMPILED = "torch.compile, autocast"
INT8 = "ONNX Runtime, int8"
ONNX = ("ONNX Runtime", INT8)
"""The ways of ONNX Runtime, whose models PyTorch's process exports."""
Made = tuple[Callable[[], Any], int]
"""A function that runs the task and returns when it is done, and the number of parameters."""


def draw(specs: list[Spec], batch: int) -> list[np.ndarray]:
    """Arrays of a batch: normal in float32, or whole numbers in int32."""
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, spec["below"], (batch, *spec["shape"]), np.int32)
        if "below" in spec
        else rng.standard_normal((batch, *spec["shape"]), np.float32)
        for spec in specs
    ]


def memory() -> float:
    """The megabytes that this process holds, after freed memory went back to the system."""
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def prepare(make: Callable[..., Made], task: dict[str, Any]) -> tuple[Callable[[], Any], dict]:
    """Makes and warms a task.

    Returns:
        The function to run; and its number of parameters, the megabytes of the process, and the
        runs of one measurement, which takes a twentieth of a second.
    """
    run, parameters = make(**task)
    run()
    start = time.process_time()
    run()
    times = math.ceil(0.05 / max(time.process_time() - start, 1e-4))
    return run, {"parameters": parameters, "memory": memory(), "times": times}


def _seconds(run: Callable[[], Any], times: int) -> dict[str, float]:
    clock, busy = time.perf_counter(), time.process_time()
    for _ in range(times):
        run()
    ended, done = time.perf_counter(), time.process_time()
    return {"seconds": (done - busy) / times, "clock": (ended - clock) / times}


def serve(make: Callable[..., Made]) -> None:
    """Answers the commands on the standard input, one JSON in a line, until it ends.

    ``{"times": n}`` runs the task and answers its seconds of processor time and by the clock; any
    other command is a task for ``make``. A task that raises is answered with its error.
    """
    # Before the first computation, so that pools of threads see one core.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    idle, before = int, memory()
    run: Callable[[], Any] = idle
    for line in sys.stdin:
        task = json.loads(line)
        try:
            if "times" in task:
                found = _seconds(run, task["times"])
            else:
                run = idle
                gc.collect()
                run, found = prepare(make, task)
                found["memory"] -= before
        except Exception as error:  # a way that fails is a result
            found = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(found), flush=True)
