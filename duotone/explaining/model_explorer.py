"""Writes painted programs for Model Explorer, Google's viewer of graphs with groups.

The color of a node is its precision; a click shows rule, reason and source line. Writing a file
does not need the app. To open it, ``pip install ai-edge-model-explorer``, then
``model-explorer FILE``.

References:
    https://github.com/google-ai-edge/model-explorer/wiki: a file is a collection of graphs. A graph
    is a list of nodes with ``namespace`` (groups) and ``incomingEdges``.
"""

from __future__ import annotations

import json
from typing import Any

from duotone.explaining.drawn import CAST, DrawnNode, drawn_nodes
from duotone.precision.record import Record

_COLORS = {"half": "#56b4e9", "full": "#e69f00", "computes": "#cc79a7", CAST: "#f0e442"}
"""Colors by the first word of a precision, from a palette for color-blind readers (Okabe and Ito,
"Color Universal Design", 2008)."""


def collection_of_record(record: Record) -> str:
    """Writes the graph of a JAX program as a JSON collection of one graph."""
    half = record.summary.half_dtype
    words = {
        "half type": half,
        "operations in half": str(record.summary.operations_half),
        "operations in float32": str(record.summary.operations_full),
        "casts": str(record.summary.casts_inserted),
    }
    graph = {
        "id": f"painted in {half}",
        "nodes": [_node(drawn) for drawn in drawn_nodes(record)],
        "groupNodeAttributes": {"": words},
    }
    return json.dumps({"label": "duotone", "graphs": [graph]})


def _node(drawn: DrawnNode) -> dict[str, Any]:
    about = {"precision": drawn.precision, "list": drawn.list, **drawn.why}
    return {
        "id": drawn.name,
        "label": drawn.operation,
        "namespace": drawn.name.rpartition("/")[0],
        "attrs": [{"key": key, "value": value} for key, value in about.items() if value],
        "incomingEdges": [
            {"sourceNodeId": name, "sourceNodeOutputId": "0", "targetNodeInputId": str(slot)}
            for slot, name in enumerate(drawn.reads)
        ],
        "outputsMetadata": [
            {"id": "0", "attrs": [{"key": "tensor_shape", "value": drawn.why["result"]}]}
        ]
        if "result" in drawn.why
        else [],
        "style": {"backgroundColor": _COLORS[drawn.precision.split(" ")[0]]},
    }
