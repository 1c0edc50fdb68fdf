"""Lists: shapes of lists of tensors, whose handles have the shape of one element."""

from __future__ import annotations

from collections.abc import Sequence

from duotone.tensorflow.shapes.algebra import same
from duotone.tensorflow.shapes.operation import Operation, Shape, ShapeRule


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


LISTS: dict[str, ShapeRule] = {
    "EmptyTensorList": new_list,
    "TensorListReserve": new_list,
    "TensorListFromTensor": unstacked,
    "TensorListPushBack": pushed,
    "TensorListSetItem": pushed,
    "TensorListGetItem": same,  # an element, and the handle of the list without it
    "TensorListPopBack": same,
    "TensorListStack": stacked,
}
"""By op."""
