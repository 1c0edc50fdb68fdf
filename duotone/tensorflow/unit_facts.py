"""Facts: the properties of units that the passes use, besides edges."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from duotone.ops.entries import Kind
from duotone.precision.resolved import Resolved
from duotone.tensorflow.devices import DeviceType, placement
from duotone.tensorflow.op_registry import attribute_values, has_kernel
from duotone.tensorflow.protos import FLOAT, HALVES, QUANTIZED
from duotone.tensorflow.shapes import Shapes
from duotone.tensorflow.units import Units


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """The facts on a graph's units for one rewrite.

    Attributes:
        units: the graph.
        shapes: of its values.
        resolved: the user's policy.
        kinds: by node, the list that its op is on.
        processed: by node, whether the rewrite may change it.
        device: default device type.
        functions: names of the library's functions.
        tested: for the body of a While, the numbers of the arguments that its condition reads;
            ``None`` for any other graph.
        compiled: whether XLA compiles the graph, which makes casts a part of the operations around
            them.
    """

    units: Units
    shapes: Shapes
    resolved: Resolved
    kinds: tuple[Kind, ...]
    processed: tuple[bool, ...]
    device: DeviceType
    functions: Collection[str]
    tested: Collection[int] | None = None
    compiled: bool = False
    _kernels: dict[tuple[Any, ...], bool] = dataclasses.field(default_factory=dict)

    @property
    def dtype(self) -> str:
        """Name of the half type."""
        return self.resolved.half.name

    @property
    def half(self) -> int:
        """Number of the half type."""
        return HALVES[self.dtype]

    def kind(self, unit: int) -> Kind:
        """Returns the list that the op of a unit's node is on."""
        return self.kinds[self.units.node[unit]]

    def is_processed(self, unit: int) -> bool:
        """Returns True if the rewrite may change the unit's node."""
        return self.processed[self.units.node[unit]]

    def is_float(self, unit: int) -> bool:
        """Returns True if the unit is float32."""
        return self.units.dtype[unit] == FLOAT

    def is_quantized(self, unit: int) -> bool:
        """Returns True if any type of the unit's node is a quantized one."""
        units = self.units
        return any(units.dtype[u] in QUANTIZED for u in units.of_node[units.node[unit]])

    def is_forced(self, unit: int) -> bool:
        """Returns True if ``UNSAFE_FORCE_ALL`` makes the unit's node allowed."""
        definition = self.units.definitions[self.units.node[unit]]
        if not self.resolved.force_all or definition.function:
            return False
        unchanged = definition.stateful or definition.has_references
        # TensorFlow leaves these two alone as well.
        return not unchanged and definition.name not in ("Const", "SoftmaxCrossEntropyWithLogits")

    def allows_half(self, unit: int) -> bool:
        """Returns True if the op definition allows half there; kernels are not asked."""
        attribute = self.units.attribute[unit]
        definition = self.units.definitions[self.units.node[unit]]
        if definition.function:
            return False
        if not attribute.name:
            return attribute.fixed == self.half
        allowed = definition.attributes[attribute.name].allowed
        return not allowed or self.half in allowed

    def can_be_half(self, unit: int) -> bool:
        """Checks if the op definition allows half there and a kernel of the device takes it."""
        return self.allows_half(unit) and self._has_kernel(unit)

    def may_be_half(self, unit: int) -> bool:
        """Checks if the rewrite may make a unit half, and its op and a kernel allow it."""
        return self.is_processed(unit) and self.is_float(unit) and self.can_be_half(unit)

    def _has_kernel(self, unit: int) -> bool:
        """Returns True if the node has a kernel with this type set to half."""
        units = self.units
        attribute = units.attribute[unit]
        node = units.nodes[units.node[unit]]
        where = placement(node.device, self.device)
        if not attribute.name or not where.valid:
            return False
        values = attribute_values(node, units.definitions[units.node[unit]])
        if attribute.name in values:
            types = list(values[attribute.name])
            types[max(attribute.position, 0)] = self.half
            values[attribute.name] = tuple(types)
        label = node.attr["_kernel"].s.decode("utf-8", "replace") if "_kernel" in node.attr else ""
        key = (node.op, where.type, label, tuple(values.items()))
        if key not in self._kernels:
            self._kernels[key] = has_kernel(node.op, where.type, label, values)
        return self._kernels[key]
