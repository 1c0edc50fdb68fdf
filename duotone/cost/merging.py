"""Merges the planned kernels of a program as compilers do: softmaxes, epilogues, siblings.

*Softmaxes of half rows*: one kernel reads a row for its maximum, its sum, and the normalized row.
Compilers made three kernels of every softmax of float32 rows that we examined::

    for each kernel of fusible operations:
        merge the reductions of its rows into it, if one is a maximum,
        the rows are half, and they read nothing large that it does not read

*Epilogues*: a dot computes the element-by-element operations that follow it: a bias, an activation
and a residual sum that nothing else needs are computed before the result of the dot is written::

    for each kernel of fusible operations:
        merge it into the dot that makes one of its operands, if the two have as many elements,
        and from the dot to the kernel's result each operation has one reader and is no result

*Siblings*: kernels that read the same value become one kernel with several results. The weight, the
moments and their selects of an optimizer's update read one gradient, and compilers write all of
them in one kernel that reads it once::

    for each kernel, in program order:
        merge it into an earlier one of the same size and number of runs that reads a large value
            which it reads too
        unless it needs a sum that the earlier one makes, or a kernel that needs the earlier one

Kernels of fusible operations merge, and so do reductions to one shape. Dots, gathers, scatters and
the like do not. Kernels that read parts of a value (:class:`Part`) read different ones.

References:
    XLA, ``xla/backends/gpu/transforms/softmax_rewriter_triton.cc``, ``gemm_fusion.cc`` (and the
    epilogues of cuBLASLt); ``xla/service/gpu/transforms/multi_output_fusion.cc``, siblings.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

from duotone.ops.entries import names_with
from duotone.ops.jax import TRAITS
from duotone.ops.traits import Trait
from duotone.precision.record import OperationRecord

_DOTS = names_with(TRAITS, Trait.EINSUM)
_MAXIMA = names_with(TRAITS, Trait.EXTREMA)
_HALF = 2
"""Bytes of one element of half rows."""
Readers = Mapping[int, Sequence[OperationRecord]]
SMALL = 1 << 20
"""The bytes below which reading a value twice costs no more than launching a kernel."""


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of a value in memory, which an operation, the reader, picks."""

    value: Hashable
    reader: int


@dataclasses.dataclass(slots=True)
class Planned:
    """A kernel before siblings are merged.

    Attributes:
        operation: the operation that names it.
        read: the bytes of each value in memory that one run reads.
        made: the bytes of each result that one run writes, by operation.
        size: the elements over which it runs, if it may merge; 0 if not.
        reduces: whether it is a reduction.
        other: the bytes that one run moves if it does not merge; ``None`` for reads and results.
    """

    operation: OperationRecord
    read: dict[Hashable, int]
    made: dict[int, int]
    size: int = 0
    reduces: bool = False
    other: int | None = None

    @property
    def moved(self) -> int:
        """The bytes that one run reads and writes."""
        both = sum(self.read.values()) + sum(self.made.values())
        return both if self.other is None else self.other

    def take(self, other: Planned) -> None:
        """Merges another kernel into this one, which then makes the results of both."""
        self.read |= {v: size for v, size in other.read.items() if v not in self.made}
        self.made |= other.made


def elements(shape: tuple[str, ...]) -> int:
    """Returns the elements of a shape; an unknown dimension counts as 1."""
    return math.prod(int(dimension) if dimension.isdigit() else 1 for dimension in shape)


def with_softmaxes(kernels: Iterable[Planned]) -> list[Planned]:
    """Merges the reductions of rows into the kernels, in program order, that normalize the rows."""
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


def with_epilogues(kernels: Sequence[Planned], readers: Readers) -> list[Planned]:
    """Returns the kernels, in program order, after each dot took in the operations after it."""
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


def merged(kernels: Iterable[Planned]) -> list[Planned]:
    """Merges each kernel, in program order, into an earlier one where compilers would do so."""
    found: list[Planned] = []
    needs: list[int] = []  # of each kernel, those that run before it, as bits
    maker: dict[Hashable, int] = {}
    readers: dict[Hashable, list[int]] = {}
    for kernel in kernels:
        before = 0
        for read in kernel.read:
            value = read.value if isinstance(read, Part) else read
            if value in maker:
                before |= needs[maker[value]] | 1 << maker[value]
        fitting = (p for p in _near(kernel, readers) if _fits(kernel, found[p]))
        # A sum is not complete before its kernel ends.
        ready = (p for p in fitting if not (kernel.reduces and before >> p & 1))
        position = next((p for p in ready if not _between(p, before, needs)), None)
        if position is None:
            position = len(found)
            found.append(kernel)
            needs.append(before)
        else:
            found[position].take(kernel)
            needs[position] |= before & ~(1 << position)
        maker |= dict.fromkeys(kernel.made, position)
        for value in kernel.read:
            readers.setdefault(value, []).append(position)
    return found


def _near(kernel: Planned, readers: dict[Hashable, list[int]]) -> list[int]:
    """Returns the kernels that read a large value that a kernel reads too, last first."""
    if not kernel.size or not kernel.read:
        return []
    least = SMALL if max(kernel.read.values()) >= SMALL else 0
    large = [value for value, size in kernel.read.items() if size >= least]
    return sorted({reader for value in large for reader in readers.get(value, ())}, reverse=True)


def _fits(kernel: Planned, other: Planned) -> bool:
    """Returns True if two kernels run over the same elements, and both or neither sum them."""
    alike = other.size == kernel.size and other.operation.runs == kernel.operation.runs
    same = kernel.reduces == other.reduces
    axes = kernel.operation.shape == other.operation.shape
    return alike and same and (axes or not kernel.reduces)


def _between(position: int, before: int, needs: Sequence[int]) -> bool:
    """Checks if a kernel that must run before another needs the one at a position."""
    others = before & ~(1 << position)
    later = others >> (position + 1)
    while later:
        lowest = later & -later
        if needs[position + lowest.bit_length()] >> position & 1:
            return True
        later ^= lowest
    return False
