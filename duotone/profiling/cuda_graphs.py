"""Names the operations of kernels in CUDA graphs.

XLA records several operations in one CUDA graph and launches them together. In a trace, the
events of their kernels have the name of the graph (``command_buffer_7``) in place of the
operation. XLA names its own kernels after their operation, so the compiled program still
describes them. It makes one kernel for equal operations, such as those of the layers of a model,
so such a kernel has a dtype but no scope and no source line. Kernels of libraries have only their
own name.

JAX 0.11.2 writes such traces on an H100.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import numpy as np

from duotone.profiling.programs import Fact, Facts, fact_of
from duotone.profiling.trace_events import EventKind, Trace

_GRAPH = re.compile(r"command_buffer(_\d+)?")
_LAUNCHED_ONE_BY_ONE = "XLA_FLAGS=--xla_gpu_enable_command_buffer="
_REPORTED = 0.01
"""The least share of the time in graphs that gives a note."""


def name_kernels(
    trace: Trace, facts: Mapping[int, Facts]
) -> tuple[Trace, Mapping[int, Facts], tuple[str, ...]]:
    """Replaces the names of CUDA graphs by those of their kernels.

    Returns:
        The trace, in which the operation of a kernel in a graph is the kernel; facts that also
        describe these; and a note if graphs take a noticeable time.
    """
    in_graph = [_is_in_graph(kind, facts) for kind in trace.kinds]
    if not any(in_graph):
        return trace, facts, ()
    more = {program: dict(known) for program, known in facts.items()}
    kernels = {program: _kernels_of(known) for program, known in facts.items()}
    numbers: dict[EventKind, int] = {}
    renamed = []
    for kind, inside in zip(trace.kinds, in_graph, strict=True):
        fact = kernels.get(kind.program or 0, {}).get(kind.kernel) if inside else None
        if fact is not None and kind.program is not None:
            more[kind.program].setdefault(kind.kernel, fact)
        named = dataclasses.replace(kind, operation=kind.kernel) if inside else kind
        renamed.append(numbers.setdefault(named, len(numbers)))
    found = dataclasses.replace(
        trace, kinds=tuple(numbers), kind=np.array(renamed, np.int32)[trace.kind]
    )
    return found, more, _notes(trace, np.array(in_graph))


def _is_in_graph(kind: EventKind, facts: Mapping[int, Facts]) -> bool:
    return fact_of(kind, facts) is None and _GRAPH.fullmatch(kind.operation) is not None


def _kernels_of(known: Facts) -> dict[str, Fact]:
    """Returns the facts that equal operations have in common, by the name of XLA's kernel."""
    return {
        re.sub(r"\W", "_", name): dataclasses.replace(fact, scope="", source="")
        for name, fact in known.items()
    }


def _notes(trace: Trace, in_graph: np.ndarray) -> tuple[str, ...]:
    seconds = np.bincount(trace.kind, trace.end - trace.start, len(trace.kinds))
    share = float(seconds[in_graph].sum() / seconds.sum()) if seconds.sum() else 0.0
    if share < _REPORTED:
        return ()
    return (
        f"{share:.0%} of the time is in CUDA graphs, of whose kernels a trace names no scope, and "
        f"of those of libraries no operation: to see them, set {_LAUNCHED_ONE_BY_ONE} before JAX "
        "starts",
    )
