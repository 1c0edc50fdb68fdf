"""python scripts/pack_tensorflow_registry.py shared/tensorflow_amp: packs TensorFlow's registries.

Reads ``oplist.pb`` (OpList) and ``kernellist.pb`` (KernelList) of one TensorFlow release and writes
what a painter asks of them to ``duotone/tensorflow/registry.json.xz``; the layout is in
``duotone/tensorflow/op_registry.py``. Run it once for a new release.
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorboard.compat.proto import attr_value_pb2, op_def_pb2

ATTRIBUTES: Any = attr_value_pb2
OPS: Any = op_def_pb2
"""The generated modules, whose messages type checkers do not see."""
TARGET = Path(__file__).parents[1] / "duotone" / "tensorflow" / "registry.json.xz"
RELEASE = "2.21.0"
ATTRIBUTE_FILE = "tensorboard/compat/proto/attr_value.proto"
LISTS = (("type", "type"), ("s", "string"), ("i", "int"), ("b", "bool"))


def kernel_list_class() -> Any:
    """The KernelList message, which tensorboard does not ship, from its public field numbers."""
    file = descriptor_pb2.FileDescriptorProto(
        name="kernel_list.proto", package="duotone_pack", syntax="proto3"
    )
    file.dependency.append(ATTRIBUTE_FILE)
    package = ATTRIBUTES.AttrValue.DESCRIPTOR.full_name
    fields = {
        "Constraint": [("name", 1, "string", 1), ("allowed_values", 2, f".{package}", 1)],
        "Kernel": [
            ("op", 1, "string", 1),
            ("device_type", 2, "string", 1),
            ("constraint", 3, ".duotone_pack.Constraint", 3),
            ("label", 5, "string", 1),
            ("priority", 6, "int32", 1),
        ],
        "KernelList": [("kernel", 1, ".duotone_pack.Kernel", 3)],
    }
    types = {"string": 9, "int32": 5}
    for name, members in fields.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label in members:
            added = message.field.add(
                name=field, number=number, label=label, type=types.get(kind, 11)
            )
            if kind not in types:
                added.type_name = kind
    pool = descriptor_pool.Default()
    pool.Add(file)  # type: ignore[attr-defined]
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("duotone_pack.KernelList"))


def packed_value(value: Any) -> Any:
    """A default or allowed value as JSON: a scalar, or a list; None for what nobody asks."""
    kind = value.WhichOneof("value")
    if kind == "list":
        for field, _ in LISTS:
            if items := getattr(value.list, field):
                return [x.decode() if isinstance(x, bytes) else x for x in items]
        return []
    if kind in ("type", "i", "b"):
        return getattr(value, kind)
    return value.s.decode("utf-8", "replace") if kind == "s" else None


def packed_argument(argument: Any) -> list[Any]:
    """[name, fixed type, type attribute, number attribute, type list attribute, is reference]."""
    return [
        argument.name,
        argument.type,
        argument.type_attr,
        argument.number_attr,
        argument.type_list_attr,
        int(argument.is_ref),
    ]


def packed_op(op: Any) -> dict[str, Any]:
    """Returns the packed facts of one op definition."""
    return {
        "inputs": [packed_argument(a) for a in op.input_arg],
        "outputs": [packed_argument(a) for a in op.output_arg],
        "attributes": [
            [
                a.name,
                a.type,
                list(a.allowed_values.list.type),
                int(a.HasField("default_value")),
                packed_value(a.default_value),
            ]
            for a in op.attr
        ],
        "stateful": int(op.is_stateful),
    }


def packed_kernel(kernel: Any) -> list[Any]:
    """[priority, [[attribute, kind, [values]] ...]]."""
    constraints = []
    for constraint in kernel.constraint:
        given = constraint.allowed_values.list
        kinds = [kind for field, kind in LISTS if getattr(given, field)]
        assert len(kinds) == 1, f"{kernel.op}: constraint {constraint.name} has {kinds}"
        constraints.append([constraint.name, kinds[0], packed_value(constraint.allowed_values)])
    return [kernel.priority, constraints]


def main(folder: Path) -> None:
    """Writes the packed registry."""
    ops = OPS.OpList.FromString((folder / "oplist.pb").read_bytes())
    kernels = kernel_list_class().FromString((folder / "kernellist.pb").read_bytes())
    by_op: dict[str, dict[str, list[Any]]] = {}
    for kernel in kernels.kernel:
        key = kernel.device_type + (f"|{kernel.label}" if kernel.label else "")
        by_op.setdefault(kernel.op, {}).setdefault(key, []).append(packed_kernel(kernel))
    data = {
        "release": RELEASE,
        "ops": {op.name: packed_op(op) for op in sorted(ops.op, key=lambda op: op.name)},
        "kernels": dict(sorted(by_op.items())),
    }
    text = json.dumps(data, separators=(",", ":")).encode()
    TARGET.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(data['ops'])} ops, {len(kernels.kernel)} kernels: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
