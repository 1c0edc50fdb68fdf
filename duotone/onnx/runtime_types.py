"""Runtime types: the types of results of operations that ONNX Runtime has and ONNX has not.

A model that ONNX Runtime's optimizer wrote consists of such operations to a large part. duotone
leaves them as they are, but if the type of a result were unknown, its readers would stay float32
too.

References:
    ONNX Runtime, ``docs/ContribOperators.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from duotone.onnx.protos import NO_DTYPE, NodeProto, operation

_MICROSOFT = "com.microsoft."
_ALIKE = (
    "Attention BiasAdd BiasGelu BiasSoftmax BiasSplitGelu CDist ComplexMul "
    "ConvTransposeWithDynamicPads CropAndResize DecoderAttention DecoderMaskedMultiHeadAttention "
    "DecoderMaskedSelfAttention DynamicQuantizeMatMul ExpandDims FastGelu FusedConv FusedGemm "
    "FusedMatMul FusedMatMulActivation GatedRelativePositionBias Gelu GemmFastGelu GridSample "
    "GroupNorm GroupQueryAttention Inverse Irfft LongformerAttention MatMulBnb4 MatMulNBits MoE "
    "MultiHeadAttention NhwcConv NhwcFusedConv NhwcMaxPool PackedAttention "
    "PackedMultiHeadAttention QMoE QuickGelu RelativePositionBias Rfft RotaryEmbedding "
    "SkipGroupNorm SkipLayerNormalization SkipSimplifiedLayerNormalization SparseAttention "
    "TransposeMatMul Trilu"
).split()
"""Operations whose first result has the type of their first operand."""
_STATES = (
    "DecoderMaskedMultiHeadAttention DecoderMaskedSelfAttention GroupQueryAttention "
    "MultiHeadAttention SparseAttention"
).split()
"""Some of these operations also return keys and values, of the same type."""
OPERAND_OF_RESULT: Mapping[str, Mapping[int, int]] = {
    **{_MICROSOFT + name: {0: 0} for name in _ALIKE},
    **{_MICROSOFT + name: {0: 0, 1: 0, 2: 0} for name in _STATES},
    _MICROSOFT + "Attention": {0: 0, 1: 0},
    _MICROSOFT + "DequantizeLinear": {0: 1},
    _MICROSOFT + "EmbedLayerNormalization": {0: 2, 2: 2},
    _MICROSOFT + "MatMulIntegerToFloat": {0: 2},
    _MICROSOFT + "QAttention": {0: 3, 1: 3},
    _MICROSOFT + "SkipGroupNorm": {0: 0, 1: 0},
    _MICROSOFT + "SkipLayerNormalization": {0: 0, 3: 0},
    _MICROSOFT + "SkipSimplifiedLayerNormalization": {0: 0, 3: 0},
    "SimplifiedLayerNormalization": {0: 0},
}
"""By operation: the operand whose type each result has."""


def result_dtypes(node: NodeProto, operands: Sequence[str]) -> list[str]:
    """Returns the dtype of each result of a node without a schema; no dtype where it is unknown.

    Args:
        node: the node.
        operands: the dtype of each operand; empty for an omitted one.
    """
    slots = OPERAND_OF_RESULT.get(operation(node), {})
    read = [slots.get(number, len(operands)) for number in range(len(node.output))]
    return [operands[slot] or NO_DTYPE if slot < len(operands) else NO_DTYPE for slot in read]
