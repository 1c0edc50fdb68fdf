"""Finds dots and convolutions whose sizes do not suit matrix units.

The cost of an uneven size is the difference between the padded and the unpadded product, in
multiplications and copied bytes. On a GPU, XLA copies operands and result to pad each size of a
half dot, and the features of a convolution, to a multiple of 8. A TPU stores arrays in tiles. The
compiler may fuse a copy into another kernel, so the cost is an upper estimate.

References:
    XLA, ``xla/service/gpu/cublas_padding_requirements.h`` (multiples of 8),
    ``xla/service/gpu/transforms/cudnn_pad_for_convolutions.cc`` (the features of convolutions).
    NVIDIA, "Matrix Multiplication Background User's Guide": sizes in multiples of 16 bytes, on
    A100 better of 128.
    Google, "Cloud TPU performance guide": tiles of 8 by 128.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from duotone.advising.advice import Finding
from duotone.advising.step_model import StepModel, is_dot, multiplies_half
from duotone.cost.estimate import short_name
from duotone.cost.roofline import kernel_seconds, peak_of
from duotone.devices.specifications import Target
from duotone.precision.record import OperationRecord

_HALF_BYTES = 2
FEW_FEATURES = 8
"""A group of a convolution with fewer input and output features cannot fill the smallest tile of a
Tensor Core (mma.m16n8k8 of PTX; XLA pads to the same 8)."""
LEAST_PADDED = 0.02
"""The least share of the step that makes a finding. It is small because another number is an easy
remedy. The ten classes of a small network stay below it."""
_IMAGE_FEATURES = 4
"""Features of an image (RGBA). The user cannot choose them, and cuDNN has kernels for them (XLA
pads 3 to 4)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tiles:
    """Multiples that a device pads to.

    Attributes:
        rows: multiple of the rows of a matrix product.
        terms: multiple of the contracted dimension.
        columns: multiple of the columns.
        wide: a multiple that the device's maker recommends.
        copies: whether padding copies; if not, arrays are padded in memory.
    """

    rows: int
    terms: int
    columns: int
    wide: int
    copies: bool


_GPU = Tiles(8, 8, 8, 64, copies=True)
_TPU = Tiles(8, 128, 128, 128, copies=False)


def tiles_of(target: Target) -> Tiles | None:
    """Returns the tiles of a device; ``None`` if its speed is not known or it has no half type."""
    if not target.bandwidth or target.half is None:
        return None
    return _TPU if target.platform == "tpu" else _GPU


_Members = list[tuple[OperationRecord, float, float]]
"""Operations, each with the seconds and bytes of its padding."""


def uneven(step: StepModel) -> Iterator[Finding]:
    """Yields ``tiles``: sizes of dots and convolutions that are not multiples of a tile."""
    tiles = tiles_of(step.target)
    if tiles is None:
        return
    found: dict[frozenset[tuple[str, int]], _Members] = {}
    for operation in step.operations.values():
        products = _products(operation, tiles)
        if products is None:
            continue
        odd = frozenset((name, size) for name, size, multiple in products.sizes if size % multiple)
        if odd:
            cost, moved = products.padding(step.target)
            found.setdefault(odd, []).append((operation, cost, moved))
    # Operations with a common size have a common remedy.
    for odd, members in _joined(found):
        cost = sum(seconds for _, seconds, _ in members)
        if not step.matters(cost, LEAST_PADDED):
            continue
        most_expensive = max(members, key=lambda member: member[1])[0]
        named = sorted(odd)
        even = _products(most_expensive, tiles)
        multiples = {} if even is None else {size: m for _, size, m in even.sizes}
        sizes = [s for s in named if s in multiples and s % multiples[s]] or named
        yield step.finding(
            "tiles",
            f"{_in_words(most_expensive)}: {_listed(sizes)} "
            f"{'does' if len(sizes) == 1 else 'do'} not fit the tiles of {step.target.name}",
            _padded_remedy(sizes, multiples, tiles),
            [most_expensive, *(o for o, *_ in members if o is not most_expensive)],
            cost,
            round(sum(moved for *_, moved in members)),
        )


def small_convolutions(step: StepModel) -> Iterator[Finding]:
    """Yields ``convolutions``: depthwise ones, and ones with few features."""
    if tiles_of(step.target) is None:
        return
    depthwise, tiny = [], []
    for operation in step.operations.values():
        if _is_small(operation):
            (depthwise if operation.sizes[0] > 1 else tiny).append(operation)
    for members, what, remedy in (
        (
            depthwise,
            "depthwise convolutions multiply no matrices: the units that make half fast stay idle",
            "give each group 8 features or more (feature_group_count), or use fewer of them; "
            "half saves only their bytes",
        ),
        (
            tiny,
            "convolutions with fewer than 8 features on both sides do not fill one tile",
            "give them 8 features or more, or move pixels into features first (space to depth)",
        ),
    ):
        cost = sum(_unit_seconds(o, step.target) for o in members)
        if members and step.matters(cost):
            moved = sum(o.bytes for o in members)
            cost = min(cost, step.total)
            yield step.finding("convolutions", what, remedy, members, cost, moved)


def _is_small(operation: OperationRecord) -> bool:
    if operation.operation != "conv_general_dilated" or not operation.sizes:
        return False
    groups, _, pixels, window, inside, outside = operation.sizes
    # The gradient of a depthwise filter sums over the images.
    if groups > 1 and window > pixels:
        return outside < FEW_FEATURES
    return inside < FEW_FEATURES and outside < FEW_FEATURES and is_dot(operation)


def _unit_seconds(operation: OperationRecord, target: Target) -> float:
    """Estimates the seconds on the scalar units."""
    flops = operation.flops / operation.runs / peak_of(target, "f32")
    return operation.runs * kernel_seconds(target, operation.bytes / operation.runs, flops)


@dataclasses.dataclass(frozen=True, slots=True)
class _Products:
    """A dot or convolution as matrix products.

    Sizes are names, sizes and required multiples; arrays the elements unpadded and padded.
    """

    operation: OperationRecord
    sizes: tuple[tuple[str, int, int], ...]
    arrays: tuple[tuple[int, int], ...]
    tiles: Tiles

    def padding(self, target: Target) -> tuple[float, float]:
        """Returns the seconds and bytes of padding over all runs."""
        o, more = self.operation, 1.0
        for _, size, multiple in self.sizes:
            more *= _up(size, multiple) / size
        grown = [(old, new) for old, new in self.arrays if new != old]
        widened = sum(new - old for old, new in grown) * _HALF_BYTES
        copied = sum(new + old for old, new in grown) * _HALF_BYTES if self.tiles.copies else 0
        peak = peak_of(target, short_name(o.operands[0]))
        now, moved = o.flops / o.runs / peak, o.bytes / o.runs
        padded = kernel_seconds(target, moved + widened, now * more)
        cost = padded - kernel_seconds(target, moved, now) + copied / target.bandwidth
        return cost * o.runs, (widened + copied) * o.runs


def _products(operation: OperationRecord, tiles: Tiles) -> _Products | None:
    """Returns ``None`` if an operation is not a half matrix product, or a size is not known."""
    if not multiplies_half(operation) or not operation.sizes or not all(operation.sizes):
        return None
    if operation.operation == "dot_general":
        count, rows, terms, columns = operation.sizes
        if min(rows, columns) == 1:
            return None  # a matrix-vector product is memory-bound, and XLA does not pad it
        m, k, n = (_up(rows, tiles.rows), _up(terms, tiles.terms), _up(columns, tiles.columns))
        sides = ((rows, m), (terms, k)), ((terms, k), (columns, n)), ((rows, m), (columns, n))
        return _Products(
            operation,
            (
                ("rows", rows, tiles.rows),
                ("terms", terms, tiles.terms),
                ("columns", columns, tiles.columns),
            ),
            tuple((count * a * b, count * c * d) for (a, c), (b, d) in sides),
            tiles,
        )
    if not tiles.copies:
        return None  # a TPU's compiler chooses the layouts of convolutions
    groups, images, pixels, window, inside, outside = operation.sizes
    image = min(inside, outside) <= _IMAGE_FEATURES
    if groups > 1 or window > pixels or image:
        return None  # `convolutions` reports groups; a filter's gradient has the forward's sizes
    i, o = _up(inside, tiles.terms), _up(outside, tiles.columns)
    read = operation.bytes // operation.runs // _HALF_BYTES
    given = max(read - images * pixels * outside - window * inside * outside, 0)
    return _Products(
        operation,
        (("features read", inside, tiles.terms), ("features made", outside, tiles.columns)),
        (
            (given, given * i // inside),
            (window * inside * outside, window * i * o),
            (images * pixels * outside, images * pixels * o),
        ),
        tiles,
    )


def _joined(
    found: Mapping[frozenset[tuple[str, int]], _Members],
) -> list[tuple[set[int], _Members]]:
    """Groups operations by their uneven sizes and merges groups with a common size."""
    groups: list[tuple[set[int], _Members]] = []
    for odd, members in found.items():
        sizes, joined = {size for _, size in odd}, list(members)
        apart = []
        for other, theirs in groups:
            if sizes & other:
                sizes, joined = sizes | other, theirs + joined
            else:
                apart.append((other, theirs))
        groups = [*apart, (sizes, joined)]
    return groups


def _in_words(operation: OperationRecord) -> str:
    if operation.operation == "dot_general":
        count, *sizes = operation.sizes
        times = f"{count} times " if count > 1 else ""
        return f"a product of {times}{sizes[0]}x{sizes[1]} by {sizes[1]}x{sizes[2]}"
    return f"a convolution from {operation.sizes[4]} to {operation.sizes[5]} features"


def _padded_remedy(sizes: list[int], multiples: dict[int, int], tiles: Tiles) -> str:
    parts = []
    for size in sizes:
        multiple = multiples.get(size, tiles.columns)
        near, wide = _up(size, multiple), _up(size, tiles.wide)
        better = f" (or {wide}, a multiple of {tiles.wide})" if wide != near else ""
        parts.append(f"{size} -> {near}{better}")
    return f"pad or choose multiples of {max(multiples.values(), default=8)}: {'; '.join(parts)}"


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _listed(sizes: list[int]) -> str:
    return " and ".join(map(str, sizes))
