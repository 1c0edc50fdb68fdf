"""Update ops: moving statistics in the graphs of TensorFlow 1.

A program of TensorFlow 1 updates them in operations on which its training step depends::

    with tf.control_dependencies(tf.compat.v1.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train = opt.minimize(loss)

Reads of a variable in such a program have no fixed order. So this module adds a read, and makes the
update depend on it. TensorFlow has no public function for that. If the private one is missing,
skipped steps do not restore the statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from duotone.adapters.tensorflow.scaling import float32_scope, tf

_ASSIGNMENTS = ("Assign", "AssignSub", "AssignAdd")
_WRITES = frozenset(f"{kind}{suffix}" for kind in _ASSIGNMENTS for suffix in ("", "VariableOp"))


def moved_before_this() -> list[tuple[Any, Any]]:
    """Returns the variables that the operations of this context depend on, with earlier values.

    Returns:
        Pairs of a variable that an operation in ``tf.control_dependencies`` assigns, and its value
        before that. Empty in a ``tf.function``.
    """
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or getattr(graph, "building_function", False):
        return []
    known = {getattr(v, "handle", v).op.name: v for v in tf.compat.v1.global_variables()}
    writes = [
        (operation, known[operation.inputs[0].op.name])
        for operation in _writes(tf.no_op().control_inputs)
        if hasattr(operation, "_add_control_input") and operation.inputs[0].op.name in known
    ]
    return [(variable, _read_before(write, variable)) for write, variable in writes]


def _writes(operations: Any) -> Iterator[Any]:
    """Yields the assignments that operations wait for."""
    found, seen = list(operations), set()
    while found:
        operation = found.pop()
        if operation.name in seen:
            continue
        seen.add(operation.name)
        if operation.type in _WRITES:
            yield operation
        elif operation.type in ("NoOp", "Identity", "ReadVariableOp"):  # they name an update
            found += [*operation.control_inputs, *(tensor.op for tensor in operation.inputs)]


def _read_before(write: Any, variable: Any) -> Any:
    with tf.control_dependencies(None), float32_scope():
        if hasattr(variable, "handle"):
            value = tf.identity(variable.read_value())
        else:  # a copy of a reference variable, which an assignment does not change
            value = variable + tf.zeros([], variable.dtype.base_dtype)
    write._add_control_input(value.op)
    return value
