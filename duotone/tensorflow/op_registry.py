"""The registry: TensorFlow 2.21's op definitions and kernels, as far as a painter needs them.

``registry.json.xz`` has the facts of one TensorFlow release, packed by
``scripts/pack_tensorflow_registry.py``::

    ops      name -> inputs, outputs   [name, type, type_attr, number_attr, type_list_attr, is_ref]
                     attributes        [name, kind, allowed types, has default, default]
                     stateful
    kernels  op -> "GPU" or "GPU|label" -> [priority, [[attribute, kind, allowed values] ...]]

A kernel fits a node if all its constraints are true. The kernels of the device type come first,
then those of ``DEFAULT``. As in TensorFlow, the answer is "no kernel" if a constraint is on an
attribute that the node lacks, or if two kernels of the same priority fit.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duotone.tensorflow.protos import INVALID, AttrValue, NodeDef

_FILE = Path(__file__).with_name("registry.json.xz")
_FIELDS = {"type": "type", "string": "s", "int": "i", "bool": "b"}


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """An input or output of an op.

    Attributes:
        name: as defined.
        type: number of a fixed data type, or 0.
        type_attr: the attribute that gives its type, or empty.
        number_attr: the attribute that gives its number of repeats, or empty.
        type_list_attr: the attribute that lists the types of a sequence, or empty.
        is_ref: whether it is a reference to a variable.
    """

    name: str
    type: int
    type_attr: str
    number_attr: str
    type_list_attr: str
    is_ref: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of an op.

    Attributes:
        name: as defined.
        kind: ``"type"``, ``"list(type)"``, ``"int"`` and so on.
        allowed: numbers of the allowed data types; empty for all.
        has_default: whether a node may omit it.
        default: its default if that is a type, integer, string, boolean or a list of these.
    """

    name: str
    kind: str
    allowed: frozenset[int]
    has_default: bool
    default: Any


@dataclasses.dataclass(frozen=True, slots=True)
class OpDefinition:
    """The definition of an op, or of a function of the graph's library.

    Attributes:
        name: the name of the op.
        inputs: in order.
        outputs: in order.
        attributes: by name.
        stateful: whether it has side effects.
        function: whether it is a function of the library.
    """

    name: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    attributes: Mapping[str, Attribute]
    stateful: bool
    function: bool = False

    @property
    def has_references(self) -> bool:
        """True if an input or output is a reference to a variable."""
        return any(argument.is_ref for argument in (*self.inputs, *self.outputs))

    @property
    def writes_reference(self) -> bool:
        """True if it writes a variable and returns its reference, as ``Assign`` does."""
        sides = (self.inputs, self.outputs)
        passes = "Ref" in self.name  # RefIdentity, RefSwitch, ...
        return not passes and all(any(argument.is_ref for argument in side) for side in sides)


@functools.cache
def _data() -> dict[str, Any]:
    return json.loads(lzma.decompress(_FILE.read_bytes()))


def op_names() -> frozenset[str]:
    """Returns the names of all ops of the release."""
    return frozenset(_data()["ops"])


@functools.cache
def find_op(name: str) -> OpDefinition | None:
    """Returns the definition of an op, or None if the release has none of this name.

    Example:
        >>> [argument.name for argument in find_op("MatMul").inputs]
        ['a', 'b']
    """
    packed = _data()["ops"].get(name)
    if packed is None:
        return None
    attributes = {
        attribute: Attribute(attribute, kind, frozenset(allowed), bool(has_default), default)
        for attribute, kind, allowed, has_default, default in packed["attributes"]
    }
    return OpDefinition(
        name,
        tuple(Argument(*a) for a in packed["inputs"]),
        tuple(Argument(*a) for a in packed["outputs"]),
        attributes,
        bool(packed["stateful"]),
    )


def define_function(signature: Any) -> OpDefinition:
    """Returns the definition of a function of the library.

    Args:
        signature: the ``OpDef`` of its ``FunctionDef``.
    """

    def arguments(given: Any) -> tuple[Argument, ...]:
        return tuple(
            Argument(a.name, a.type, a.type_attr, a.number_attr, a.type_list_attr, a.is_ref)
            for a in given
        )

    attributes = {
        a.name: Attribute(a.name, a.type, frozenset(a.allowed_values.list.type), False, None)
        for a in signature.attr
    }
    return OpDefinition(
        signature.name,
        arguments(signature.input_arg),
        arguments(signature.output_arg),
        attributes,
        signature.is_stateful,
        function=True,
    )


@functools.cache
def constrained_attributes(op: str) -> tuple[str, ...]:
    """Returns the attributes on which the choice among an op's kernels depends."""
    devices = _data()["kernels"].get(op, {})
    names = {
        constraint[0]
        for kernels in devices.values()
        for _, constraints in kernels
        for constraint in constraints
    }
    return tuple(sorted(names))


def attribute_values(node: NodeDef, definition: OpDefinition) -> dict[str, tuple[Any, ...]]:
    """Returns the attributes on which a node's kernel depends, defaults filled in.

    Returns:
        Values by attribute name; a scalar is a tuple of one. Absent attributes are left out.
    """
    values: dict[str, tuple[Any, ...]] = {}
    for name in constrained_attributes(node.op):
        if name in node.attr:
            values[name] = _plain(node.attr[name])
        elif (found := definition.attributes.get(name)) is not None and found.has_default:
            default = found.default
            values[name] = tuple(default) if isinstance(default, list) else (default,)
    return values


def _plain(value: AttrValue) -> tuple[Any, ...]:
    """Returns an attribute's value as Python values; a list of one kind, in order."""
    kind = value.WhichOneof("value")
    if kind == "list":
        for field in _FIELDS.values():
            if items := getattr(value.list, field):
                return tuple(_text(item) for item in items)
        return ()
    return (_text(getattr(value, kind)),) if kind in _FIELDS.values() else ()


def _text(item: Any) -> Any:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else item


def has_kernel(op: str, device: str, label: str, values: Mapping[str, tuple[Any, ...]]) -> bool:
    """Returns True if a device has a kernel for an op with these types.

    Args:
        op: name of the op.
        device: device type, such as ``"GPU"``.
        label: the node's ``_kernel`` attribute; usually empty.
        values: the result of :func:`attribute_values`, with the type in question replaced.

    Example:
        >>> has_kernel("MatMul", "GPU", "", {"T": (19,)})
        True
        >>> has_kernel("MatMul", "GPU", "", {"T": (3,)})
        False
    """
    devices = _data()["kernels"].get(op, {})
    for name in (device, "DEFAULT"):
        key = f"{name}|{label}" if label else name
        fitting: list[int] = []
        for priority, constraints in devices.get(key, ()):
            fits = _fits(constraints, values)
            if fits is None:
                return False
            if fits:
                fitting.append(priority)
        if fitting:
            return not _contested(fitting)
    return False


def _fits(constraints: list[Any], values: Mapping[str, tuple[Any, ...]]) -> bool | None:
    """Returns True if all constraints hold; None if one is on an attribute that the node lacks."""
    for name, _, allowed in constraints:
        given = values.get(name)
        if given is None or given == (INVALID,):
            return None
        if any(item not in allowed for item in given):
            return False
    return True


def _contested(priorities: list[int]) -> bool:
    """Returns True if a kernel meets another of the priority that is the best so far."""
    best: int | None = None
    for priority in priorities:
        if priority == best:
            return True
        best = priority if best is None else max(best, priority)
    return False
