"""Casts that are kernels of their own: they read all of a value and write all of it again.

Most casts cost nothing, since a compiler makes them part of a kernel that is there anyway. Not so
those of an argument that dots read, or of a dot's result that a dot reads. A weight that the step
hands back updated must be float32, and its cast is the price of that: it is no fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from duotone.advising.advice import Finding
from duotone.advising.step_model import LEAST_SHARE, StepModel
from duotone.cost.fused import result_dtype
from duotone.graph.graph import FULL_DTYPE, HALF_TYPES
from duotone.precision.record import CastRecord, OperationRecord

_WIDTHS = frozenset({FULL_DTYPE, *HALF_TYPES})


def in_memory(step: StepModel) -> Iterator[Finding]:
    """``casts``: those that reach memory, by what is cast."""
    groups: dict[str, list[tuple[float, int, OperationRecord | None]]] = {}
    launching: Counter[str] = Counter()
    for kernel, of in step.kernels:
        if isinstance(of, CastRecord) and of.sources:
            continue  # the painting's own, between what is half and what must be full
        if isinstance(of, CastRecord):
            shape, sources, target = of.shape, (), of.targets
        elif _is_cast(of, step.record.summary.half_dtype) and not _inside(step, of):
            shape, sources, target = of.shape, of.reads, (of.index,)
        else:
            continue
        again = isinstance(of, OperationRecord) and of.runs > 1 and _is_whole(step, of)
        if not sources and not again and _comes_back(step, shape):
            continue
        at = next((step.operations[i] for i in target if i in step.operations), None)
        entry = step.cost(kernel), kernel.total_bytes, at
        name = "results" if sources else "iterations" if again else "arguments"
        groups.setdefault(name, []).append(entry)
        launching[name] += kernel.runs
    for name, members in groups.items():
        cost = sum(spent for spent, *_ in members)
        launched = launching[name] * step.target.launch * step.timed
        if step.matters(cost - launched, _LEAST[name]):
            what, remedy = _WORDS[name]
            concerned = [at for *_, at in sorted(members, key=lambda m: -m[0]) if at is not None]
            found = {o.index: o for o in concerned[:1] + concerned}
            moved = sum(size for _, size, _ in members)
            yield step.finding("casts", what, remedy, found.values(), cost, moved)


_LEAST = {"arguments": 0.15, "iterations": LEAST_SHARE, "results": LEAST_SHARE}
"""The share of the step from which they are told. A step of few layers takes up to 12% to cast data
that are float32 (two layers of 1024, 8192 rows, on an H100), which is no fault of its own."""
_WORDS = {
    "arguments": (
        "arguments that the step does not hand back are cast to half at every call, each in a "
        "kernel of its own",
        "weights that never change: duotone.cast_params, or autocast(weights=...); data: load "
        "them in half and begin with x.astype(jnp.float32), which takes no time",
    ),
    "iterations": (
        "arguments are cast to half in every iteration of a loop",
        "cast them once, before the loop (a compiler may do that by itself), or leave the types to "
        "duotone.autocast, which does",
    ),
    "results": (
        "results of dots are written, read to be cast, and written again",
        "leave the cast out (astype, preferred_element_type), or put it behind an operation "
        "that works element by element, which it becomes part of",
    ),
}


def _is_cast(operation: OperationRecord, half: str) -> bool:
    """True if the user casts between float32 and half here."""
    ends = {*operation.operands[:1], result_dtype(operation, half)}
    return operation.operation == "convert_element_type" and len(ends) == 2 and ends <= _WIDTHS


def _inside(step: StepModel, operation: OperationRecord) -> bool:
    """True if a cast is part of a kernel that calculates what it casts."""
    makers = [step.operations[i] for i in operation.reads if i in step.operations]
    return any(not maker.flops or not maker.sizes for maker in makers)


def _is_whole(step: StepModel, operation: OperationRecord) -> bool:
    """True if an operation reads an argument as it is, no slice that a loop takes of it."""
    return any(0 <= number < len(step.arguments) for number, _ in operation.given)


def _comes_back(step: StepModel, shape: tuple[str, ...]) -> bool:
    """True if a result has this shape, or is a stack of such arrays (a loop over layers)."""
    return shape in step.results or any(result[1:] == shape for result in step.results)
