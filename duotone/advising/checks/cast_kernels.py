"""Finds casts that are separate kernels, which read and write a whole value.

Most casts cost nothing, since the compiler fuses them into another kernel. It cannot fuse the
cast of an argument that dots read, or of a dot's result that another dot reads and something else
needs in float32. A weight that the step updates and returns must be float32, so its cast is not a
finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from duotone.advising.advice import Finding
from duotone.advising.step_model import LEAST_SHARE, StepModel
from duotone.cost.fused import result_dtype
from duotone.graph.graph import FULL_DTYPE, HALF_TYPES
from duotone.precision.record import CastRecord, OperationRecord


def in_memory(step: StepModel) -> Iterator[Finding]:
    """Yields ``casts``: casts that are separate kernels, grouped by what they cast."""
    groups: dict[str, list[tuple[float, int, OperationRecord | None]]] = {}
    launching: Counter[str] = Counter()
    for kernel, of in step.kernels:
        if isinstance(of, CastRecord) and of.sources:
            continue  # the painting needs this cast between half and full operations
        if isinstance(of, CastRecord):
            shape, sources, target = of.shape, (), of.targets
        elif _is_cast(of, step.record.summary.half_dtype) and not _inside(step, of):
            shape, sources, target = of.shape, of.reads, (of.index,)
        else:
            continue
        repeated = isinstance(of, OperationRecord) and of.runs > 1 and _is_whole(step, of)
        if not sources and not repeated and _is_returned(step, shape):
            continue
        at = next((step.operations[i] for i in target if i in step.operations), None)
        entry = step.cost(kernel), kernel.total_bytes, at
        name = "results" if sources else "iterations" if repeated else "arguments"
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
"""The least share of the step that makes a finding. A step with few layers spends up to 12% on
casting float32 data (two layers of 1024, 8192 rows, on an H100), which is not a finding."""
_WORDS = {
    "arguments": (
        "arguments that the step does not return are cast to half at every call, each in a "
        "separate kernel",
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
        "leave the cast out (astype, preferred_element_type), or move it after an elementwise "
        "operation, whose kernel then includes it",
    ),
}


def _is_cast(operation: OperationRecord, half: str) -> bool:
    """Returns True if the user casts between float32 and half here."""
    ends = {*operation.operands[:1], result_dtype(operation, half)}
    widths = {FULL_DTYPE, *HALF_TYPES}
    return operation.operation == "convert_element_type" and len(ends) == 2 and ends <= widths


def _inside(step: StepModel, operation: OperationRecord) -> bool:
    """Returns True if a cast is fused into the kernel that makes its operand."""
    makers = [step.operations[i] for i in operation.reads if i in step.operations]
    return any(not maker.flops or not maker.sizes for maker in makers)


def _is_whole(step: StepModel, operation: OperationRecord) -> bool:
    """Returns True if an operation reads a whole argument, not the slice of it in a loop."""
    return any(0 <= number < len(step.arguments) for number, _ in operation.given)


def _is_returned(step: StepModel, shape: tuple[str, ...]) -> bool:
    """Checks if a result has this shape, or is a stack of such arrays (a loop over layers)."""
    return shape in step.results or any(result[1:] == shape for result in step.results)
