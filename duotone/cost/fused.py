"""Predicts the kernels that a compiler would make of a traced program, from its record.

This is a model of fusion, not a compiler. Fusible operations work element by element, move elements
or repeat them. They are computed inside the kernel that reads them, unless their result must be in
memory. These values are in memory::

    results of all other operations: dots, convolutions, reductions, gathers, scatters, sorts, …
    results of fusible operations: that an operation reads which fuses no producers (dots, …), in
        the precision it reads that cross the boundary of a loop, or are results of the program
        whose recomputation in every reader would move more bytes than one stored copy that are
        transcendental and that several fusible operations read, unless an optimization recomputes
        them

Each value in memory is made by one kernel, which reads the values in memory that it follows from.
A cast is part of such a kernel too, unless a dot reads the cast of an argument, or of a dot's
result that something else reads too. Gathers run in their readers, and updates in the scatter that
adds them. One kernel computes a softmax, a dot what follows it, and kernels that read one value
together merge (:mod:`duotone.cost.merging`).

Some kernels belong to no operation::

    in each iteration of a loop, one counts, and one writes each result that the loop stacks
    before a convolution of an image that it dilates, one writes the image with zeros
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Hashable, Iterator, Mapping

from duotone.cost.merging import Part, Planned, elements, merged, with_epilogues, with_softmaxes
from duotone.ops.entries import Pointwise, names_with
from duotone.ops.jax import ENTRIES, TRAITS
from duotone.ops.traits import Trait
from duotone.precision.record import CastRecord, OperationRecord, Record

RESHAPED = frozenset({"reshape", "squeeze", "expand_dims"})
"""Operations that compilers turn into another view of the same bytes."""
_POINTWISE = frozenset(entry.op for entry in ENTRIES if entry.pointwise is not Pointwise.NO)
_FUSIBLE = (
    _POINTWISE
    | RESHAPED
    | frozenset(
        "and bitcast_convert_type concatenate digamma erf_inv iota lgamma nextafter not or pad "
        "population_count random_bits random_unwrap random_wrap real rem rev shift_left "
        "shift_right_arithmetic shift_right_logical slice split threefry2x32 transpose xor".split()
    )
)
"""Also operations of which each result element is one operand element, a bit pattern or a draw."""
_REDUCTIONS = frozenset(
    "argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor "
    "reduce_precision".split()
)
"""Operations that fuse the producers of their operands."""
_GATHERS = names_with(TRAITS, Trait.INDEXES)
"""Operations whose readers fetch the elements that they need from the operand in memory."""
_EXPENSIVE = frozenset(
    entry.op for entry in ENTRIES if entry.pointwise not in (Pointwise.NO, Pointwise.CHEAP)
)
"""Operations that compilers for GPUs do not compute twice."""
_EINSUMS = names_with(TRAITS, Trait.EINSUM)
_COUNTER = 8
"""Bytes that a loop's counter reads and writes."""
_PICKED = frozenset({"gather", "slice", "dynamic_slice", "split"})
"""Operations that read as much as they write."""
_IN_PLACE = names_with(TRAITS, Trait.UPDATES)
_NUMBER = re.compile(r"\d+")
_WIDENED = 4 + 2
"""Bytes of one element of a cast between float32 and half, read and written."""


def bits_of(dtype: str) -> int:
    """Returns the bits of one element.

    Example:
        >>> bits_of("bfloat16"), bits_of("bool")
        (16, 8)
    """
    found = _NUMBER.search(dtype)
    return max(int(found[0]), 8) if found else 8


def result_dtype(operation: OperationRecord, half: str) -> str:
    """Returns the dtype in which the first result is stored."""
    kept_half = operation.stored == "half" and operation.dtype == "float32"
    return half if kept_half else operation.dtype


def is_view(operation: OperationRecord, half: str) -> bool:
    """Checks if the result has the operand's bytes: a reshape, or a cast to the same type."""
    same = operation.operands == (result_dtype(operation, half),)
    return operation.operation in RESHAPED or (
        operation.operation == "convert_element_type" and same
    )


def cast_bytes(cast: CastRecord) -> int:
    """Returns bytes that one cast reads and writes as a separate kernel."""
    return elements(cast.shape) * _WIDENED


def own_bytes(operation: OperationRecord, half: str) -> int:
    """Returns the bytes that one run of an operation moves if it fuses no producers."""
    moved = operation.bytes // operation.runs
    made = elements(operation.shape) * bits_of(result_dtype(operation, half)) // 8
    name = operation.operation
    if name in _PICKED:
        return min(moved, 2 * made)
    if name in _IN_PLACE:
        # Elements are read and written where they change; the operand is as large as the result.
        changed = max(moved - 2 * made, 0)
        return changed + min(changed, made)
    return moved


class Fusion:
    """The kernels of a program, by the model of this file."""

    def __init__(self, record: Record, *, fills: bool = True) -> None:
        """Finds the readers of each operation.

        Args:
            record: the record of the program.
            fills: whether convolutions fill the image that they dilate with zeros.
        """
        self._fills = fills
        self._half = record.summary.half_dtype
        self._operations = {o.index: o for o in record.operations if o.runs}
        self._casts = record.casts
        self._readers: dict[int, list[OperationRecord]] = {}
        for operation in self._operations.values():
            for maker in operation.reads:
                self._readers.setdefault(maker, []).append(operation)
        self._follows: dict[int, Mapping[Hashable, int]] = {}
        self._kept: set[int] = set()

    def kernels(self) -> Iterator[tuple[OperationRecord, int]]:
        """Yields each kernel: the operation that names it, and the bytes that one run moves."""
        planned = with_epilogues(with_softmaxes(self._planned()), self._readers)
        for kernel in merged(planned):
            yield kernel.operation, kernel.moved

    def _planned(self) -> Iterator[Planned]:
        """Yields the kernels before siblings are merged, in program order."""
        runs = 1
        for index, operation in self._operations.items():
            if operation.runs not in (1, runs):
                yield _moving(operation, "while", _COUNTER)
            runs = operation.runs
            read, made = self._read(operation), self._made(operation)
            yield from self._around(operation, made)
            if operation.operation in _REDUCTIONS:
                size = self._size(operation)
                yield Planned(operation, read, {index: made}, size, reduces=True)
                continue
            if not self._is_fusible(operation):
                yield Planned(operation, read, {index: made}, other=self._other(operation, read))
                continue
            self._follows[index] = read
            if self._in_memory(operation, sum(read.values()), made):
                self._kept.add(index)
                unread = not read and not self._readers.get(index)  # a number that nothing needs
                if not unread and (not self._is_free(operation) or len(read) != 1):
                    alone = "loop.stack" in operation.leaves
                    size = 0 if alone else elements(operation.shape)
                    yield Planned(operation, read, {index: made}, size)

    def _around(self, operation: OperationRecord, made: int) -> Iterator[Planned]:
        """Yields the kernels besides an operation's own, which stack or fill with zeros."""
        carried = "loop.carry" in operation.leaves
        own = not self._is_fusible(operation) or operation.operation in _REDUCTIONS
        if "loop.stack" in operation.leaves and (carried or own):
            yield _moving(operation, "dynamic_update_slice", 2 * made)
        if (filled := self._filled(operation)) > 1:
            yield _moving(operation, "pad", int(filled * self._image(operation)))

    def _filled(self, operation: OperationRecord) -> float:
        """Returns the elements of the image that a convolution fills, over those without zeros."""
        if not self._fills or operation.filled == 1 or not operation.flops:
            return 1.0
        return max(1.0, 2.0 * math.prod(operation.sizes) * operation.runs / operation.flops)

    def _image(self, convolution: OperationRecord) -> int:
        """Returns the bytes of the image that a convolution reads."""
        maker = self._operations.get(next(iter(convolution.reads), -1))
        given = [size for _, size in convolution.given]
        return self._made(maker) if maker else max(given, default=0)

    def _is_fusible(self, operation: OperationRecord) -> bool:
        """Returns True if readers can compute an operation, such as a one-hot select."""
        one_hot = any(name == "one_hot" for name, _ in operation.optimizations)
        return one_hot or operation.operation in _FUSIBLE | _GATHERS

    def _is_free(self, operation: OperationRecord) -> bool:
        """Returns True for a view of a value in memory, such as a transpose before a dot."""
        readers = self._readers.get(operation.index, ())
        dots = bool(readers) and all(reader.operation in _EINSUMS for reader in readers)
        return is_view(operation, self._half) or (operation.operation == "transpose" and dots)

    def _other(self, operation: OperationRecord, read: Mapping[Hashable, int]) -> int:
        """Returns the bytes that an operation moves if it is not fused into its readers."""
        changed = own_bytes(operation, self._half)
        changed += int((self._filled(operation) - 1) * self._image(operation))
        if operation.operation not in _IN_PLACE:
            return changed
        # The updates may be computed in the kernel; the operand is as large as the result.
        return changed + max(sum(read.values()) - self._made(operation), 0)

    def _size(self, reduction: OperationRecord) -> int:
        """Returns the elements of the largest operand of a reduction."""
        makers = [self._operations[i] for i in reduction.reads if i in self._operations]
        wide = max(bits_of(dtype) for dtype in reduction.operands or ("float32",)) // 8
        given = [size // wide for _, size in reduction.given]
        return max([elements(maker.shape) for maker in makers] + given, default=0)

    def casts(self) -> Iterator[CastRecord]:
        """Yields the casts that are separate kernels."""
        for cast in self._casts:
            makers = [self._operations[i] for i in cast.sources if i in self._operations]
            inside = any(o.operation in _FUSIBLE | _REDUCTIONS for o in makers)
            read_by = [self._operations[i] for i in cast.targets if i in self._operations]
            if not inside and any(not self._fuses(o) for o in read_by):
                yield cast

    def _fuses(self, reader: OperationRecord) -> bool:
        """Returns True if an operation computes its operands in its own kernel."""
        return reader.operation in _FUSIBLE or reader.operation in _REDUCTIONS

    def _takes(self, reader: OperationRecord, operation: OperationRecord) -> bool:
        """Returns True if a reader computes an operation in its kernel, or updates it in place."""
        if any(name == "one_hot" for name, _ in reader.optimizations):
            return True
        sizes = elements(operation.shape), elements(reader.shape)
        updates = reader.operation in _IN_PLACE and sizes[0] != sizes[1]
        picks = reader.operation in _GATHERS and sizes[0] > sizes[1]
        return self._fuses(reader) or updates or picks

    def _made(self, operation: OperationRecord) -> int:
        """Returns the bytes of the stored result: half if all readers from memory read half."""
        kept = elements(operation.shape) * bits_of(result_dtype(operation, self._half)) // 8
        readers = self._readers.get(operation.index, ())
        halves = all(reader.paint == "half" and not self._fuses(reader) for reader in readers)
        whole = kept == 4 * elements(operation.shape)
        return kept // 2 if readers and halves and whole and operation.dtype == "float32" else kept

    def _read(self, operation: OperationRecord) -> dict[Hashable, int]:
        """Returns the bytes of the values in memory that an operation follows from, each once."""
        found: dict[Hashable, int] = {}
        for index in operation.reads:
            maker = self._operations.get(index)
            if maker is None:
                continue
            inside = index in self._follows and index not in self._kept
            if inside and maker.index < operation.index and maker.runs == operation.runs:
                found.update(self._follows[index])
            else:
                # A loop may read a slice of it in each iteration.
                most = math.inf if maker.runs == operation.runs else operation.bytes
                found[index] = int(min(self._made(maker), most // operation.runs))
        found |= {("given", number): size for number, size in operation.given}
        if operation.operation in _PICKED:
            made = self._made(operation)
            return {
                value if isinstance(value, Part) else Part(value, operation.index): min(size, made)
                for value, size in found.items()
            }
        return found

    def _in_memory(self, operation: OperationRecord, read: int, made: int) -> bool:
        readers = self._readers.get(operation.index, [])
        if operation.leaves or not readers:
            return True
        if any(
            not self._takes(reader, operation)
            or reader.index <= operation.index
            or reader.runs != operation.runs
            for reader in readers
        ):
            return True
        if any(name in ("recompute", "normalized_softmax") for name, _ in operation.optimizations):
            return False
        pointwise = sum(reader.operation not in _REDUCTIONS for reader in readers)
        if pointwise > 1 and operation.operation in _EXPENSIVE:
            return True
        recomputed = len(readers) * read
        return recomputed > read + made + len(readers) * made


def _moving(operation: OperationRecord, name: str, moved: int) -> Planned:
    """Returns a kernel that only moves bytes, next to the one of an operation."""
    return Planned(dataclasses.replace(operation, operation=name), {}, {}, other=moved)
