"""Opsets: operations that ONNX does not know, or knows in half only in a newer opset."""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection

from duotone._checks import check_whole
from duotone.errors import ArgumentError, OnnxError
from duotone.graph.graph import HalfType
from duotone.onnx.parts import Built
from duotone.onnx.protos import ONNX, ModelProto, NodeProto, domain_of, named
from duotone.onnx.schemas import signature
from duotone.ops.traits import Trait
from duotone.text.suggestions import did_you_mean

logger = logging.getLogger("duotone")
NOT_YET = "in this opset"
"""How :attr:`Node.fixed` ends where a newer opset may take half."""
_ALIKE = 0.8
"""The similarity from which a name is taken for a typing error. Runtimes have operations of their
own in ONNX's domain (``SimplifiedLayerNormalization``), so that not every unknown name is one."""


def newest() -> int:
    """Returns the newest opset that the installed ``onnx`` knows."""
    return int(ONNX.defs.onnx_opset_version())


@functools.cache
def _operations() -> list[str]:
    """Returns the names of ONNX's own operations."""
    return sorted({found.name for found in ONNX.defs.get_all_schemas() if not found.domain})


def check_known(node: NodeProto, opted: Collection[str]) -> None:
    """Checks that the name of an operation of ONNX's domain is not a misspelled one.

    Raises:
        OnnxError: ONNX has no such operation, and one with nearly this name.
    """
    name = node.op_type
    if domain_of(node) or name in opted or "_" in name:
        return
    meant = did_you_mean(name, _operations(), cutoff=_ALIKE)
    if meant and name not in _operations():
        raise OnnxError(
            f"{named(node)}: ONNX has no such operation; {meant} If {name!r} is an operation of "
            "your runtime, give the node the runtime's domain, or list it: "
            f"Policy(deny_add=[{name!r}])."
        )


def say_newer(built: Built, half: HalfType, opset: int) -> None:
    """Logs which newer opset takes products in half, if this one does not."""
    refused = {
        built.operations[node.index]
        for node in built.graph.nodes
        if node.fixed.endswith(NOT_YET) and Trait.CONTRACTS in node.traits
    }
    first = {name: _first_with(name, half.name, opset) for name in sorted(refused)}
    known = {name: number for name, number in first.items() if number}
    if known:
        most = max(known.values())
        each = ", ".join(f"{name} from {number} on" for name, number in known.items())
        logger.warning(
            "opset %d has no %s for some products, which stay float32; newer ones have: %s. "
            "opset=%d (--opset %d) converts the model first.",
            *(opset, half.name, each, most, most),
        )


def _first_with(operation: str, half: str, opset: int) -> int:
    """Returns the first opset after ``opset`` in which an operation takes half; 0 for none."""
    for number in range(opset + 1, newest() + 1):
        found = signature(operation, "", number)
        if found is not None and any(half in types for types in found.allowed.values()):
            return number
    return 0


def converted(model: ModelProto, opset: int) -> ModelProto:
    """Returns a model in another opset, by ONNX's own converter.

    Raises:
        ArgumentError: there is no such opset.
        OnnxError: the converter has no rule for an operation of the model.
    """
    check_whole("duotone.onnx.rewrite", "opset", opset, 1)
    if opset > newest():
        raise ArgumentError(f"opset={opset}: the installed onnx has the opsets 1 to {newest()}.")
    try:
        made = ONNX.version_converter.convert_version(model, opset)
    except Exception as error:  # the converter's errors have no common class
        reason = " ".join(str(error).split())
        raise OnnxError(
            f"ONNX's converter cannot convert it to opset {opset}: {reason}. Export the model "
            "for that opset instead."
        ) from error
    made.ir_version = max(
        model.ir_version, ONNX.helper.find_min_ir_version_for(list(made.opset_import), True)
    )
    return made
