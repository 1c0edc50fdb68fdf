"""Epilogues: a dot computes the element-by-element operations that follow it.

A bias, an activation and a residual sum that nothing else needs are computed before the result of
the dot is written::

    for each kernel of fusible operations:
        merge it into the dot that makes one of its operands, if the two have as many elements,
        and from the dot to the kernel's result each operation has one reader and is no result

References:
    XLA, ``xla/backends/gpu/transforms/gemm_fusion.cc``, and the epilogues of cuBLASLt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from duotone.cost.siblings import Planned, elements
from duotone.ops.entries import names_with
from duotone.ops.jax import TRAITS
from duotone.ops.traits import Trait
from duotone.precision.record import OperationRecord

_DOTS = names_with(TRAITS, Trait.EINSUM)
Readers = Mapping[int, Sequence[OperationRecord]]


def with_epilogues(kernels: Sequence[Planned], readers: Readers) -> list[Planned]:
    """Returns the kernels after each dot took in the operations that follow it.

    Args:
        kernels: in program order.
        readers: by index of an operation, the operations that read its result.
    """
    dots = {k.operation.index: k for k in kernels if k.operation.operation in _DOTS}
    found = []
    for kernel in kernels:
        makers = (dots[value] for value in kernel.read if value in dots)  # pyright: ignore[reportArgumentType]
        dot = next((dot for dot in makers if _follows(kernel, dot, readers)), None)
        if dot is None:
            found.append(kernel)
        else:
            _take(dot, kernel)
            del dots[dot.operation.index]
    return found


def _follows(kernel: Planned, dot: Planned, readers: Readers) -> bool:
    """Checks if a kernel computes element by element and is the only reader of a dot's result."""
    operation, last = dot.operation, kernel.operation
    if not kernel.size or kernel.reduces or operation.runs != last.runs:
        return False
    while operation is not last:
        following = readers.get(operation.index, ())
        if operation.leaves or len(following) != 1 or elements(following[0].shape) != kernel.size:
            return False
        operation = following[0]
    return elements(dot.operation.shape) == kernel.size


def _take(dot: Planned, kernel: Planned) -> None:
    """Merges a kernel into the dot whose result it reads."""
    index = dot.operation.index
    kernel.read.pop(index)
    written = dot.made.pop(index)
    dot.other = dot.moved - written + kernel.moved
    dot.take(kernel)
