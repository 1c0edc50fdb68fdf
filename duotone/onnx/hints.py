"""Hints: shapes and types from a model's file or from ONNX's inference."""

from __future__ import annotations

from typing import Any

from duotone.onnx.protos import NO_DTYPE, GraphProto, dtype_of, graphs_in


class Hints:
    """Shapes and types of the values of one graph, as far as known; the file's own come first."""

    def __init__(self, *graphs: GraphProto | None) -> None:
        self.graphs = [graph for graph in graphs if graph is not None]
        self._types: dict[str, Any] = {}
        for graph in self.graphs:
            for value in (*graph.input, *graph.output, *graph.value_info):
                if value.type.HasField("tensor_type"):
                    before = self._types.get(value.name)
                    if before is None or not before.HasField("shape"):
                        self._types[value.name] = value.type.tensor_type

    def dtype(self, name: str) -> str:
        """Returns the dtype of a value; no dtype if it is unknown."""
        found = self._types.get(name)
        return NO_DTYPE if found is None else dtype_of(found.elem_type)

    def shape(self, name: str) -> tuple[object, ...]:
        """Returns the dimensions of a value; unknown ones by name, or ``"?"``."""
        found = self._types.get(name)
        if found is None or not found.HasField("shape"):
            return ("?",)
        return tuple(
            side.dim_value if _is_known(side) else side.dim_param or "?" for side in found.shape.dim
        )

    def inside(self, position: int, number: int) -> Hints:
        """Returns the hints of a nested graph, by the position of its node."""
        found = []
        for graph in self.graphs:
            if position < len(graph.node):
                inner = graphs_in(graph.node[position])
                if number < len(inner):
                    found.append(inner[number])
        return Hints(*found)


def _is_known(side: Any) -> bool:
    """Returns True for a dimension with a size; some exporters write -1 for one without."""
    return side.HasField("dim_value") and side.dim_value >= 0
