"""Estimates the cost of a traced program without a compiler, between two bounds.

Only a compiler knows which operations it fuses into kernels. So there are three figures:

- *least*: only the dots and convolutions, at the peak of their type. No program takes less time.
- *estimate*: the kernels that the model in :mod:`duotone.cost.fused` predicts.
- *most*: each operation and each cast is a separate kernel, which reads its operands from memory
  and writes its results there. A compiled program has fewer kernels and moves fewer bytes.

It does not know trip counts that are not in the program (it counts one trip), which branch is taken
(it counts all), and the FLOPs of ragged dots and custom calls.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from duotone.cost.compiled_record import Kernel, ProgramCost
from duotone.cost.doubts import doubt_about
from duotone.cost.fused import Fusion, bits_of, cast_bytes, is_view, result_dtype
from duotone.cost.roofline import kernel_seconds, peak_of
from duotone.devices.specifications import Target
from duotone.ops.jax import DOTS
from duotone.precision.record import CastRecord, OperationRecord, Record

_NAME = re.compile(r"^(bfloat|float|int|uint|complex)(\d+)(?:_(\w+))?$")
_LETTER = {"bfloat": "bf", "float": "f", "int": "s", "uint": "u", "complex": "c"}
_ALGORITHM = re.compile(r"\b(BF16|F16|TF32|F32|F64)_(?:BF16|F16|TF32|F32|F64)_\w+?(?:_X(\d))?\b")


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """The cost of one call, between bounds.

    Attributes:
        estimate: a record like that of a compiled program. Its memory is only that of arguments and
            results.
        least_seconds: the time of the dots alone; 0 if the device's figures are unknown.
        most_seconds: the time if each operation is a kernel; 0 if the device's figures are unknown.
        doubt: why the estimate may be far off; empty if nothing speaks against it.
    """

    estimate: ProgramCost
    least_seconds: float
    most_seconds: float
    doubt: str = ""


def bound_of(record: Record, target: Target, arguments: int, results: int, donated: int) -> Bound:
    """Returns the cost of a program, between bounds, from its record as painted for the target.

    The other arguments are bytes; ``donated`` are those of results that may reuse arguments.
    """
    half = record.summary.half_dtype
    flops: Counter[str] = Counter()
    dots: Counter[str] = Counter()
    least = 0.0
    for operation in record.operations:
        types, seconds = _dot(operation, target, half)
        if types:
            flops[types] += _flops(operation, target)  # pyright: ignore[reportArgumentType]
            dots[types] += operation.runs
            least += seconds * operation.runs
    named = list(kernels_of(record, target))
    kernels = _grouped(named)
    most = [
        (_kernel(o, 0 if is_view(o, half) else o.bytes // o.runs, target, half), o.runs)
        for o in record.operations
        if o.runs
    ] + [(_cast(cast, target), cast.runs) for cast in record.casts]
    estimate = ProgramCost(
        target=target.name,
        device=target.description,
        compiled_on_device=False,
        bytes=sum(kernel.total_bytes for kernel in kernels),
        flops=dict(flops),
        dots=dict(dots),
        kernel_count=sum(kernel.runs for kernel in kernels),
        casts=sum(cast.runs for cast in record.casts),
        seconds=sum(kernel.total_seconds for kernel in kernels),
        compiler_seconds=None,
        argument_bytes=arguments,
        output_bytes=results,
        alias_bytes=donated,
        temporary_bytes=0,
        compile_seconds=0.0,
        kernels=kernels,
    )
    # The kernels that stack and count in loops belong to no operation.
    highest = max(estimate.seconds, sum(kernel.seconds * runs for kernel, runs in most))
    return Bound(estimate, least, highest, doubt_about(named, target))


def kernels_of(
    record: Record, target: Target
) -> Iterator[tuple[Kernel, OperationRecord | CastRecord]]:
    """Yields the kernels of the estimate in program order, with the operations that name them."""
    fusion = Fusion(record, fills=_fills(target))
    half = record.summary.half_dtype
    for operation, moved in fusion.kernels():
        kernel = _kernel(operation, moved, target, half)
        if kernel.bytes or kernel.flops:
            yield dataclasses.replace(kernel, runs=operation.runs), operation
    for cast in fusion.casts():
        if (kernel := _cast(cast, target)).bytes:
            yield dataclasses.replace(kernel, runs=cast.runs), cast


def _grouped(found: Iterable[tuple[Kernel, object]]) -> tuple[Kernel, ...]:
    """Merges equal kernels of several layers on one line."""
    runs: Counter[Kernel] = Counter()
    for kernel, _ in found:
        runs[dataclasses.replace(kernel, runs=1)] += kernel.runs
    return tuple(dataclasses.replace(kernel, runs=count) for kernel, count in runs.items())


def _kernel(operation: OperationRecord, moved: int, target: Target, half: str) -> Kernel:
    """Returns one run of the kernel that an operation names."""
    types, computing = _dot(operation, target, half)
    free = not moved and not types
    return Kernel(
        name=operation.operation,
        op=operation.operation,
        bytes=moved,
        flops=_flops(operation, target) / operation.runs if types else 0.0,
        dtype=types,
        seconds=0.0 if free else kernel_seconds(target, moved, computing),
        runs=1,
        source=operation.source,
    )


def _cast(cast: CastRecord, target: Target) -> Kernel:
    """Returns one run of a cast, which has no source line."""
    moved = cast_bytes(cast)
    seconds = kernel_seconds(target, moved, 0.0)
    return Kernel(f"cast to {cast.to}", "cast", moved, 0.0, "", seconds, 1, "", casts=1)


def _dot(operation: OperationRecord, target: Target, half: str) -> tuple[str, float]:
    """Returns the types of a dot or convolution and the seconds of its arithmetic, if any."""
    if operation.operation not in DOTS or len(operation.operands) < 2 or not operation.runs:
        return "", 0.0
    lhs, rhs = (short_name(dtype) for dtype in operation.operands[:2])
    types = f"{lhs}×{rhs}→{short_name(result_dtype(operation, half))}"
    named, passes = _math(operation)
    if named not in ("default", lhs, rhs):
        types += f" as {named}"
    if not target.bandwidth:
        return types, 0.0
    seconds = _flops(operation, target) / peak_of(target, named)
    return types, seconds * passes / operation.runs


def _fills(target: Target) -> bool:
    """Returns True if libraries of a device fill dilated operands of convolutions with zeros."""
    return target.platform == "cuda"


def _flops(operation: OperationRecord, target: Target) -> float:
    """Returns the FLOPs of all runs, with the zeros that a device multiplies."""
    return operation.flops * operation.filled if _fills(target) else operation.flops


def _math(operation: OperationRecord) -> tuple[str, int]:
    """Returns the type in which products are computed, and the number of passes."""
    if found := _ALGORITHM.search(operation.fixed):
        return found[1].lower(), int(found[2] or 1)
    wider = short_name(max(operation.operands[:2], key=bits_of))
    if wider == "f32" and "HIGHEST" not in operation.fixed:
        return "default", 1
    return wider, 1


def short_name(dtype: str) -> str:
    """Returns the name of a dtype in compiled programs.

    Example:
        >>> short_name("bfloat16"), short_name("int32"), short_name("float8_e4m3fn")
        ('bf16', 's32', 'f8e4m3fn')
    """
    found = _NAME.match(dtype)
    if found is None:
        return dtype
    return f"{_LETTER[found[1]]}{found[2]}{found[3] or ''}"
