"""Arrays: shapes of ops that cut, join and rearrange, and of lists of tensors.

The handle of a list has the shape of one element.
``algebra`` says how rules work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from duotone.tensorflow.shapes.algebra import same
from duotone.tensorflow.shapes.operation import Operation, Shape, ShapeRule


def reshape(operation: Operation) -> Sequence[Shape]:
    """Infers a Reshape; a dimension of -1 takes what is left."""
    shape, target = operation.shape(0), operation.value(1)
    if target is None:
        wanted = operation.shape(1)
        known = wanted is not None and len(wanted) == 1 and wanted[0] == 0
        return [() if known else None]
    if -1 not in target:
        return [tuple(target)]
    rest = math.prod(dim for dim in target if dim is not None and dim != -1)
    if shape is None or None in shape or None in target:
        return [tuple(None if d == -1 else d for d in target)]
    total = math.prod(dim or 0 for dim in shape)
    return [tuple(total // max(rest, 1) if d == -1 else d for d in target)]


def transpose(operation: Operation) -> Sequence[Shape]:
    """Infers a Transpose by a constant permutation."""
    shape, order = operation.shape(0), operation.value(1)
    if order is None:
        return [None if shape is None else (None,) * len(shape)]
    shape = shape or (None,) * len(order)
    return [tuple(shape[i] for i in order if i is not None)]


def concat(operation: Operation) -> Sequence[Shape]:
    """Infers Concat, whose first input is the axis, and ConcatV2, whose last one is."""
    inputs = range(len(operation.shapes))
    slot = inputs[0] if operation.node.op == "Concat" else inputs[-1]
    shapes = [operation.known(i) for i in inputs if i != slot]
    axis = operation.axis(slot, len(shapes[0]))
    parts = [shape[axis] for shape in shapes]
    total = None if None in parts else sum(part or 0 for part in parts)
    return [(*shapes[0][:axis], total, *shapes[0][axis + 1 :])]


def split(operation: Operation) -> Sequence[Shape]:
    """Infers a Split into equal pieces; the axis comes first."""
    shape = operation.known(1)
    axis = operation.axis(0, len(shape))
    size = shape[axis]
    part = None if size is None else size // operation.outputs
    return [(*shape[:axis], part, *shape[axis + 1 :])] * operation.outputs


def split_v(operation: Operation) -> Sequence[Shape]:
    """Infers SplitV, with pieces of given sizes."""
    shape, sizes = operation.known(0), operation.numbers(1)
    axis = operation.axis(2, len(shape))
    total = shape[axis]
    known = sum(size for size in sizes if size is not None and size >= 0)
    left = None if total is None else total - known
    return [(*shape[:axis], left if s == -1 else s, *shape[axis + 1 :]) for s in sizes]


def pack(operation: Operation) -> Sequence[Shape]:
    """Infers a Pack along a new axis."""
    shape = next((s for s in operation.shapes if s is not None), None)
    if shape is None:
        return [None]
    axis = operation.integer("axis") % (len(shape) + 1)
    return [(*shape[:axis], len(operation.shapes), *shape[axis:])]


def unpack(operation: Operation) -> Sequence[Shape]:
    """Infers an Unpack along an axis."""
    shape = operation.known(0)
    axis = operation.integer("axis") % len(shape)
    return [(*shape[:axis], *shape[axis + 1 :])] * operation.outputs


def expand_dims(operation: Operation) -> Sequence[Shape]:
    """Infers ExpandDims at a constant position."""
    shape = operation.known(0)
    axis = operation.axis(1, len(shape) + 1)
    return [(*shape[:axis], 1, *shape[axis:])]


def squeeze(operation: Operation) -> Sequence[Shape]:
    """Infers Squeeze of given axes, or of all dimensions of 1."""
    shape = operation.known(0)
    axes = {axis % len(shape) for axis in operation.integers("squeeze_dims")}
    if not axes:
        axes = {i for i, d in enumerate(shape) if d == 1}
    return [tuple(d for i, d in enumerate(shape) if i not in axes)]


def pad(operation: Operation) -> Sequence[Shape]:
    """Infers Pad by constant widths."""
    shape, widths = operation.known(0), operation.value(1)
    if widths is None:
        return [shape]
    return [
        tuple(
            None if d is None else d + (widths[2 * i] or 0) + (widths[2 * i + 1] or 0)
            for i, d in enumerate(shape)
        )
    ]


def tile(operation: Operation) -> Sequence[Shape]:
    """Infers Tile by constant multiples."""
    pairs = zip(operation.known(0), operation.numbers(1), strict=True)
    return [tuple(None if d is None or n is None else d * n for d, n in pairs)]


def cut_out(operation: Operation) -> Sequence[Shape]:
    """Infers a Slice: the third input is the size; -1 takes the rest."""
    shape, size = operation.known(0), operation.numbers(2)
    starts = operation.value(1) or (None,) * len(shape)
    rest = [None if d is None or s is None else d - s for d, s in zip(shape, starts, strict=True)]
    return [tuple(r if n == -1 else n for n, r in zip(size, rest, strict=True))]


def gather(operation: Operation) -> Sequence[Shape]:
    """Infers GatherV2 and its forerunners along the first or a constant axis."""
    table, indices, axes = operation.known(0), operation.known(1), operation.value(2)
    axis = axes[0] or 0 if axes else 0
    batch = operation.integer("batch_dims")
    return [(*table[:axis], *indices[batch:], *table[axis + 1 :])]


def one_hot(operation: Operation) -> Sequence[Shape]:
    """Infers OneHot, which adds an axis of the depth."""
    shape, depth = operation.known(0), operation.value(1)
    axis = operation.integer("axis", -1) % (len(shape) + 1)
    return [(*shape[:axis], depth[0] if depth else None, *shape[axis:])]


def strided_slice(operation: Operation) -> Sequence[Shape]:
    """Infers StridedSlice with constant indices and masks, without an ellipsis."""
    shape = operation.known(0)
    starts, ends, steps = (operation.numbers(slot) for slot in (1, 2, 3))
    if operation.integer("ellipsis_mask"):
        return [None]
    new, shrink = operation.integer("new_axis_mask"), operation.integer("shrink_axis_mask")
    no_start, no_end = operation.integer("begin_mask"), operation.integer("end_mask")
    result: list[int | None] = []
    axis = 0
    for axis_index, (start, end, step) in enumerate(zip(starts, ends, steps, strict=True)):
        bit = 1 << axis_index
        if new & bit:
            result.append(1)
            continue
        dim = shape[axis]
        axis += 1
        if shrink & bit:
            continue
        if dim is None or start is None or end is None or step is None:
            result.append(None)
            continue
        window = slice(None if no_start & bit else start, None if no_end & bit else end, step)
        result.append(len(range(*window.indices(dim))))
    return [(*result, *shape[axis:])]


def new_list(operation: Operation) -> Sequence[Shape]:
    """Infers an empty list, whose first input is the shape of its elements."""
    sides = operation.value(0)
    if sides is None or operation.shape(0) == ():  # one number: the rank is not known
        return [None]
    return [tuple(None if side is None or side < 0 else side for side in sides)]


def unstacked(operation: Operation) -> Sequence[Shape]:
    """Infers the list of the rows of a tensor."""
    return [operation.known(0)[1:]]


def pushed(operation: Operation) -> Sequence[Shape]:
    """Infers a list with one more element, the last input."""
    return [operation.shapes[-1]]


def stacked(operation: Operation) -> Sequence[Shape]:
    """Infers the tensor whose rows are the elements of a list."""
    count = operation.integer("num_elements", -1)
    return [(count if count >= 0 else None, *operation.known(0))]


_FAMILIES: dict[ShapeRule, str] = {
    reshape: "Reshape",
    transpose: "Transpose",
    concat: "Concat ConcatV2",
    split: "Split",
    split_v: "SplitV",
    pack: "Pack",
    unpack: "Unpack",
    expand_dims: "ExpandDims",
    squeeze: "Squeeze",
    pad: "Pad PadV2 MirrorPad",
    tile: "Tile",
    cut_out: "Slice",
    gather: "Gather GatherV2 ResourceGather",
    one_hot: "OneHot",
    strided_slice: "StridedSlice",
    new_list: "EmptyTensorList TensorListReserve",
    unstacked: "TensorListFromTensor",
    pushed: "TensorListPushBack TensorListSetItem",
    stacked: "TensorListStack",
    same: "TensorListGetItem TensorListPopBack",  # an element, and the rest of the list
}

ARRAYS: dict[str, ShapeRule] = {op: rule for rule, ops in _FAMILIES.items() for op in ops.split()}
"""By op."""
