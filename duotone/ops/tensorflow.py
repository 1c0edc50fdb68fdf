"""The table of TensorFlow ops: TensorFlow 2.21's own four lists, with the traits of each op.

The list of each op, for each half type, comes from ``auto_mixed_precision_lists.h`` unchanged.
float16 is the mode for NVIDIA GPUs, bfloat16 the oneDNN mode for CPUs. The traits are duotone's:
they mean the same as in the tables of JAX and ONNX.
"""

from __future__ import annotations

from duotone.ops.entries import Entry, Kind, rows, traits_by_name

_SOURCE = "TensorFlow 2.21, auto_mixed_precision_lists.h"
_FLOAT16, _BFLOAT16 = ("float16",), ("bfloat16",)


def _rows(kind: Kind, ops: str, traits: str = "", *, only: tuple[str, ...] = ()) -> list[Entry]:
    reason = f"on TensorFlow's {kind.value} list"
    return rows(kind, ops, traits, reason, _SOURCE, only=only)


_CONVOLUTIONS_3D = (
    "Conv3D Conv3DBackpropFilter Conv3DBackpropFilterV2 Conv3DBackpropInput Conv3DBackpropInputV2"
)
_DEPTHWISE = (
    "DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput"
)
SINCE = {
    **dict.fromkeys("BatchMatMul BatchMatMulV2".split(), ("cuda", 9010)),
    **dict.fromkeys(_CONVOLUTIONS_3D.split(), ("cudnn", 7602)),
    **dict.fromkeys(_DEPTHWISE.split(), ("cudnn", 8000)),
}
"""Ops that are on the float16 allow list only from a version of a library on: (name, version)."""

_ALLOW = [
    *_rows(
        Kind.ALLOW, "Conv2D Conv2DBackpropFilter Conv2DBackpropInput Einsum MatMul", "contracts"
    ),
    *_rows(Kind.ALLOW, " ".join(SINCE), "contracts", only=_FLOAT16),
    *_rows(
        Kind.ALLOW,
        "BlockLSTM BlockLSTMV2 CudnnRNN CudnnRNNV2 CudnnRNNV3 GRUBlockCell LSTMBlockCell Mha MhaV2 "
        "FusedConv2DBiasActivation Pmlp Tmlp TmlpV2 TmlpV3",
        "contracts activation",
        only=_FLOAT16,
    ),
    *_rows(
        Kind.ALLOW,
        "BlockLSTMGrad BlockLSTMGradV2 CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3 "
        "FusedSparseConvGpuV2 GRUBlockCellGrad LSTMBlockCellGrad",
        "contracts",
        only=_FLOAT16,
    ),
    *_rows(Kind.ALLOW, "FastUnsortedSegmentMax VoxelMax", "selects", only=_FLOAT16),
    *_rows(
        Kind.ALLOW,
        "BatchMatMul BatchMatMulV2 Conv3D Conv3DBackpropFilterV2 Conv3DBackpropInputV2 "
        f"{_DEPTHWISE} FusedPadConv2D",
        "contracts",
        only=_BFLOAT16,
    ),
]
_INFER = [
    *_rows(Kind.INFER, "Add AddN AddV2 BiasAdd BiasAddV1", "adds"),
    *_rows(Kind.INFER, "Sub", "adds subtracts"),
    *_rows(Kind.INFER, "Mul", "multiplies"),
    *_rows(Kind.INFER, "RealDiv", "divides"),
    *_rows(Kind.INFER, "FloorDiv", "divides rounds"),
    *_rows(Kind.INFER, "BiasAddGrad AvgPool AvgPool3D", "sums averages"),
    *_rows(
        Kind.INFER,
        "Elu Erf Erfc LeakyRelu Selu Sigmoid Softmax Softplus Softsign Tanh",
        "activation",
    ),
    *_rows(Kind.INFER, "Log", "logarithm"),
    *_rows(Kind.INFER, "Log1p", "logarithm activation"),
    *_rows(Kind.INFER, "Inv Reciprocal", "raises"),
    *_rows(Kind.INFER, "Sqrt", "roots"),
    *_rows(
        Kind.INFER,
        "AvgPool3DGrad AvgPoolGrad EluGrad FusedBatchNormGradV2 FusedBatchNormGradV3 "
        "FusedBatchNormV2 FusedBatchNormV3 LeakyReluGrad LogSoftmax Prod SeluGrad SigmoidGrad "
        "SoftplusGrad SoftsignGrad TanhGrad _FusedBatchNormEx",
    ),
    *_rows(Kind.INFER, "Mean Sum", "sums averages", only=_BFLOAT16),
    *_rows(Kind.INFER, "Rsqrt", "roots", only=_BFLOAT16),
    *_rows(Kind.INFER, "Square", "raises", only=_BFLOAT16),
    *_rows(Kind.INFER, "SquaredDifference", "adds subtracts raises", only=_BFLOAT16),
]
_DENY = [
    *_rows(Kind.DENY, "Exp Expm1", "exponential activation"),
    *_rows(Kind.DENY, "Pow", "raises"),
    *_rows(Kind.DENY, "L2Loss", "sums averages raises"),
    *_rows(Kind.DENY, "SaveV2 SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits"),
    *_rows(Kind.DENY, "Mean Sum", "sums averages", only=_FLOAT16),
]
_CLEAR = [
    *_rows(
        Kind.CLEAR,
        "EnsureShape ExpandDims Identity IdentityN Reshape Snapshot Squeeze StopGradient "
        "PreventGradient CheckNumerics",
        "commutes reshapes",
    ),
    *_rows(Kind.CLEAR, "Transpose", "commutes transposes"),
    *_rows(
        Kind.CLEAR,
        "BatchToSpace BatchToSpaceND DepthToSpace Reverse ReverseSequence ReverseV2 Slice "
        "SpaceToBatch SpaceToBatchND SpaceToDepth Split SplitV StridedSlice StridedSliceGrad "
        "Unpack DynamicPartition DynamicStitch MirrorPadGrad Enter Exit Merge NextIteration Switch",
        "commutes",
    ),
    *_rows(Kind.CLEAR, "BroadcastTo Tile", "commutes repeats"),
    *_rows(Kind.CLEAR, "Concat ConcatV2 MirrorPad Pack Pad PadV2", "commutes parts"),
    *_rows(Kind.CLEAR, "Gather GatherNd GatherV2", "commutes repeats indexes"),
    *_rows(Kind.CLEAR, "Abs Neg", "commutes negates"),
    *_rows(Kind.CLEAR, "Relu Relu6 Maximum", "commutes bounds activation"),
    *_rows(Kind.CLEAR, "Minimum", "commutes bounds"),
    *_rows(Kind.CLEAR, "ClipByValue", "commutes selects bounds"),
    *_rows(Kind.CLEAR, "Select SelectV2", "commutes bounds chooses"),
    *_rows(Kind.CLEAR, "Max Min MaxPool MaxPool3D MaxPoolV2", "commutes selects"),
    *_rows(Kind.CLEAR, "ArgMax ArgMin TopK TopKV2 Where", "selects"),
    *_rows(Kind.CLEAR, "Equal Greater GreaterEqual Less LessEqual NotEqual", "bounds compares"),
    *_rows(Kind.CLEAR, "IsFinite IsInf IsNan", "compares"),
    *_rows(Kind.CLEAR, "Ceil Floor Round", "rounds"),
    *_rows(
        Kind.CLEAR,
        "Fill MaxPool3DGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradV2 OnesLike "
        "Rank Relu6Grad ReluGrad ResizeNearestNeighbor ResizeNearestNeighborGrad Shape ShapeN Sign "
        "TensorListConcat TensorListConcatLists TensorListConcatV2 TensorListFromTensor "
        "TensorListGather TensorListGetItem TensorListPopBack TensorListPushBack "
        "TensorListPushBackBatch TensorListScatter TensorListScatterIntoExistingList "
        "TensorListScatterV2 TensorListSetItem TensorListSplit TensorListStack ZerosLike",
    ),
    *_rows(Kind.CLEAR, "OneHot Size MaxPool3DGradGrad", only=_FLOAT16),
    *_rows(Kind.CLEAR, "ResizeBilinear ScatterNd While StatelessWhile", only=_BFLOAT16),
]

ENTRIES: tuple[Entry, ...] = (*_ALLOW, *_INFER, *_DENY, *_CLEAR)
"""All rows; an op that is on different lists for different half types has several."""

TRAITS = traits_by_name(ENTRIES)
"""The traits of each op that has a row, by name."""
