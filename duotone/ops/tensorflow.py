"""TensorFlow 2.21's own four lists, which its painter follows.

The list of each op, for each half type, comes from ``auto_mixed_precision_lists.h`` unchanged.
float16 is the mode for NVIDIA GPUs, bfloat16 the oneDNN mode for CPUs. duotone's own judgements of
TensorFlow ops are in :mod:`duotone.ops.tensorflow_meanings`.
"""

from __future__ import annotations

from duotone.ops.entries import Entry, Kind, rows

_SOURCE = "TensorFlow 2.21, auto_mixed_precision_lists.h"
_FLOAT16, _BFLOAT16 = ("float16",), ("bfloat16",)


def _rows(kind: Kind, ops: str, *, only: tuple[str, ...] = ()) -> list[Entry]:
    reason = f"on TensorFlow's {kind.value} list"
    return rows(kind, ops, "", reason, _SOURCE, only=only)


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
    *_rows(Kind.ALLOW, "Conv2D Conv2DBackpropFilter Conv2DBackpropInput Einsum MatMul"),
    *_rows(
        Kind.ALLOW,
        f"{' '.join(SINCE)} BlockLSTM BlockLSTMGrad BlockLSTMGradV2 BlockLSTMV2 CudnnRNN "
        "CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3 CudnnRNNV2 CudnnRNNV3 "
        "FastUnsortedSegmentMax FusedConv2DBiasActivation FusedSparseConvGpuV2 GRUBlockCell "
        "GRUBlockCellGrad LSTMBlockCell LSTMBlockCellGrad Mha MhaV2 Pmlp Tmlp TmlpV2 TmlpV3 "
        "VoxelMax",
        only=_FLOAT16,
    ),
    *_rows(
        Kind.ALLOW,
        "BatchMatMul BatchMatMulV2 Conv3D Conv3DBackpropFilterV2 Conv3DBackpropInputV2 "
        f"{_DEPTHWISE} FusedPadConv2D",
        only=_BFLOAT16,
    ),
]
_INFER = [
    *_rows(
        Kind.INFER,
        "Add AddN AddV2 AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad BiasAdd BiasAddGrad BiasAddV1 "
        "Elu EluGrad Erf Erfc FloorDiv FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2 "
        "FusedBatchNormV3 Inv LeakyRelu LeakyReluGrad Log Log1p LogSoftmax Mul Prod RealDiv "
        "Reciprocal Selu SeluGrad Sigmoid SigmoidGrad Softmax Softplus SoftplusGrad Softsign "
        "SoftsignGrad Sqrt Sub Tanh TanhGrad _FusedBatchNormEx",
    ),
    *_rows(Kind.INFER, "Mean Rsqrt Square SquaredDifference Sum", only=_BFLOAT16),
]
_DENY = [
    *_rows(
        Kind.DENY,
        "Exp Expm1 L2Loss Pow SaveV2 SoftmaxCrossEntropyWithLogits "
        "SparseSoftmaxCrossEntropyWithLogits",
    ),
    *_rows(Kind.DENY, "Mean Sum", only=_FLOAT16),
]
_CLEAR = [
    *_rows(
        Kind.CLEAR,
        "Abs ArgMax ArgMin BatchToSpace BatchToSpaceND BroadcastTo Ceil CheckNumerics ClipByValue "
        "Concat ConcatV2 DepthToSpace DynamicPartition DynamicStitch EnsureShape Enter Equal Exit "
        "ExpandDims Fill Floor Gather GatherNd GatherV2 Greater GreaterEqual Identity IdentityN "
        "IsFinite IsInf IsNan Less LessEqual Max MaxPool MaxPool3D MaxPool3DGrad MaxPoolGrad "
        "MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradV2 MaxPoolV2 Maximum Merge Min Minimum "
        "MirrorPad MirrorPadGrad Neg NextIteration NotEqual OnesLike Pack Pad PadV2 "
        "PreventGradient Rank Relu Relu6 Relu6Grad ReluGrad Reshape ResizeNearestNeighbor "
        "ResizeNearestNeighborGrad Reverse ReverseSequence ReverseV2 Round Select SelectV2 Shape "
        "ShapeN Sign Slice Snapshot SpaceToBatch SpaceToBatchND SpaceToDepth Split SplitV Squeeze "
        "StopGradient StridedSlice StridedSliceGrad Switch TensorListConcat TensorListConcatLists "
        "TensorListConcatV2 TensorListFromTensor TensorListGather TensorListGetItem "
        "TensorListPopBack TensorListPushBack TensorListPushBackBatch TensorListScatter "
        "TensorListScatterIntoExistingList TensorListScatterV2 TensorListSetItem TensorListSplit "
        "TensorListStack Tile TopK TopKV2 Transpose Unpack Where ZerosLike",
    ),
    *_rows(Kind.CLEAR, "MaxPool3DGradGrad OneHot Size", only=_FLOAT16),
    *_rows(Kind.CLEAR, "ResizeBilinear ScatterNd StatelessWhile While", only=_BFLOAT16),
]

ENTRIES: tuple[Entry, ...] = (*_ALLOW, *_INFER, *_DENY, *_CLEAR)
"""All rows; an op that is on different lists for different half types has several."""
