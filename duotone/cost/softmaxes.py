"""Softmaxes of half rows: one kernel reads a row for its maximum, its sum, and the normalized row.

::

    for each kernel of fusible operations:
        merge the reductions of its rows into it, if one is a maximum,
        the rows are half, and they read nothing large that it does not read

Compilers made three kernels of every softmax of float32 rows that we examined.

References:
    XLA, ``xla/backends/gpu/transforms/softmax_rewriter_triton.cc``.
"""

from __future__ import annotations

from collections.abc import Iterable

from duotone.cost.siblings import Planned
from duotone.ops.entries import names_with
from duotone.ops.jax import TRAITS
from duotone.ops.traits import Trait

_MAXIMA = names_with(TRAITS, Trait.EXTREMA)
_HALF = 2
"""Bytes of one element."""


def with_softmaxes(kernels: Iterable[Planned]) -> list[Planned]:
    """Returns the kernels after each one that normalizes rows took in the reductions of the rows.

    Args:
        kernels: in program order.
    """
    reductions: dict[object, Planned] = {}
    found: dict[int, Planned] = {}
    for kernel in kernels:
        found[id(kernel)] = kernel
        if kernel.reduces:
            reductions |= dict.fromkeys(kernel.made, kernel)
            continue
        of_rows = [r for v in kernel.read if (r := reductions.get(v)) and _of_rows(r, kernel)]
        if any(reduction.operation.operation in _MAXIMA for reduction in of_rows):
            for reduction in of_rows:
                del found[id(reduction)]
                for value in reduction.made:
                    del reductions[value]
                    del kernel.read[value]
                kernel.made |= reduction.made
    return list(found.values())


def _of_rows(reduction: Planned, kernel: Planned) -> bool:
    """Checks if a reduction reads the half rows that a kernel reads, and nothing else large."""
    rows = reduction.operation.shape == kernel.operation.shape[:-1]
    alike = reduction.size == kernel.size and reduction.operation.runs == kernel.operation.runs
    large = {value: size for value, size in reduction.read.items() if 2 * size > reduction.moved}
    half = set(large.values()) == {_HALF * kernel.size}
    return rows and alike and half and large.keys() <= kernel.read.keys()
