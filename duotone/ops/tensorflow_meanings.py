"""The meanings of TensorFlow ops: the row of each op in duotone's own table.

:mod:`duotone.ops.tensorflow` has TensorFlow's four lists, which its own painter follows. duotone's
painter follows the rows of this module. Most ops mean the same as an operation of ONNX or JAX, and
take over its row: the list, the reason, the traits. So each judgement is written once.

To add an op, add its name to the line of the operation that it equals in :data:`_SAME`. If it only
has the same traits, and its results may lie in another interval, add it to :data:`_ALIKE`. An op
without a row stays float32, keeps every safety rule on, and is reported.

A name may say which operands count, and in which order, as ``Split[1]`` or ``ConcatV2[:-1]``. The
other operands say how an op works: axes, shapes, permutations.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from duotone.ops import jax, onnx
from duotone.ops.entries import (
    OWN,
    STRUCTURAL_ENTRIES,
    TF,
    Entry,
    Kind,
    Pointwise,
    intervals_by_name,
    rows,
    traits_by_name,
)

_SAME = {
    "MatMul": "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3",
    "Einsum": "Einsum",
    "Conv": "Conv2D Conv3D",
    "Add": "Add AddV2 BiasAdd BiasAddV1",
    "Sum": "AddN AccumulateNV2",
    "Sub": "Sub",
    "Mul": "Mul",
    "Div": "RealDiv Div",
    "Mod": "FloorDiv FloorMod Mod TruncateDiv TruncateMod",
    "Tanh": "Tanh",
    "Sigmoid": "Sigmoid",
    "Erf": "Erf",
    "erfc": "Erfc",
    "Softplus": "Softplus",
    "Elu": "Elu",
    "Selu": "Selu",
    "Softsign": "Softsign",
    "LeakyRelu": "LeakyRelu",
    "Relu": "Relu",
    "Softmax": "Softmax",
    "LogSoftmax": "LogSoftmax",
    "SoftmaxCrossEntropyLoss": "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits",
    "BatchNormalization": "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 _FusedBatchNormEx",
    "LRN": "LRN",
    "AveragePool": "AvgPool AvgPool3D",
    "MaxPool": "MaxPool MaxPool3D MaxPoolV2[0]",
    "Sqrt": "Sqrt",
    "rsqrt": "Rsqrt",
    "Reciprocal": "Reciprocal Inv",
    "Square": "Square",
    "Pow": "Pow",
    "Exp": "Exp",
    "expm1": "Expm1",
    "Log": "Log",
    "log1p": "Log1p",
    "Sin": "Sin",
    "Cos": "Cos",
    "Tan": "Tan",
    "Sinh": "Sinh",
    "Cosh": "Cosh",
    "Asin": "Asin",
    "Acos": "Acos",
    "Asinh": "Asinh",
    "Acosh": "Acosh",
    "Atan": "Atan",
    "Atanh": "Atanh",
    "atan2": "Atan2",
    "lgamma": "Lgamma",
    "digamma": "Digamma",
    "erf_inv": "Erfinv Ndtri",
    "ReduceSum": "Sum[0]",
    "ReduceSumSquare": "L2Loss",
    "ReduceL2": "EuclideanNorm[0]",
    "ReduceMax": "Max[0]",
    "ReduceMin": "Min[0]",
    "ReduceProd": "Prod[0]",
    "Max": "Maximum",
    "Min": "Minimum",
    "Clip": "ClipByValue",
    "Where": "Select SelectV2",
    "Neg": "Neg",
    "Abs": "Abs",
    "Sign": "Sign",
    "Floor": "Floor",
    "Ceil": "Ceil",
    "Round": "Round Rint",
    "Equal": "Equal NotEqual ApproximateEqual",
    "Less": "Less",
    "LessOrEqual": "LessEqual",
    "Greater": "Greater",
    "GreaterOrEqual": "GreaterEqual",
    "IsNaN": "IsNan",
    "IsInf": "IsInf IsFinite",
    "Identity": "Identity Snapshot StopGradient PreventGradient CheckNumerics CheckNumericsV2 "
    "EnsureShape RefIdentity Enter RefEnter Exit RefExit Switch[0] RefSwitch[0] IdentityN",
    "Reshape": "Reshape[0] ExpandDims[0] Squeeze",
    "Transpose": "Transpose[0]",
    "Expand": "BroadcastTo[0] Fill[1]",
    "Tile": "Tile[0]",
    "Slice": "Slice[0] StridedSlice[0] Reverse[0] ReverseV2[0] Roll[0]",
    "Split": "Split[1] SplitV[0] Unpack",
    "DepthToSpace": "DepthToSpace",
    "SpaceToDepth": "SpaceToDepth",
    "Concat": "ConcatV2[:-1] Concat[1:] Pack ParallelConcat",
    "Gather": "Gather GatherV2[:2]",
    "GatherND": "GatherNd",
    "Range": "Range",
    "Resize": "ResizeBilinear[0] ResizeNearestNeighbor[0] ResizeBicubic[0] ResizeArea[0]",
    "Shape": "Shape ShapeN Size Rank",
    "TopK": "TopK[0] TopKV2[0]",
    "ArgMax": "ArgMax[0] ArgMin[0]",
    "NonZero": "Where",
    "Cast": "Cast",
    "and": "LogicalAnd",
    "or": "LogicalOr",
    "not": "LogicalNot",
}
"""By a row of ONNX or JAX, the ops that compute the same."""

_ALIKE = {
    "Conv": "Conv2DBackpropFilter[0,2] Conv2DBackpropFilterV2[0,2] Conv3DBackpropFilter[0,2] "
    "Conv3DBackpropFilterV2[0,2] "
    "Conv2DBackpropInput[2,1] Conv2DBackpropInputV2[2,1] Conv3DBackpropInput[2,1] "
    "Conv3DBackpropInputV2[2,1] FusedPadConv2D "
    "FusedConv2DBiasActivation FusedSparseConvGpuV2",
    "LSTM": "BlockLSTM BlockLSTMV2 CudnnRNN CudnnRNNV2 CudnnRNNV3 GRUBlockCell LSTMBlockCell "
    "BlockLSTMGrad BlockLSTMGradV2 CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3 "
    "GRUBlockCellGrad LSTMBlockCellGrad",
    "Attention": "Mha MhaV2 Pmlp Tmlp TmlpV2 TmlpV3",
    "Mul": "MulNoNan",
    "Div": "DivNoNan Xdivy",
    "Log": "Xlogy[1,0]",
    "log1p": "Xlog1py[1,0]",
    "CumSum": "Cumsum[0]",
    "CumProd": "Cumprod[0]",
    "cumlogsumexp": "CumulativeLogsumexp[0]",
    "scatter-add": "ScatterNd TensorScatterAdd TensorScatterSub SegmentSum SegmentSumV2 "
    "UnsortedSegmentSum SegmentMean",
    "ScatterND": "TensorScatterUpdate TensorScatterMax TensorScatterMin TensorStridedSliceUpdate "
    "InplaceUpdate",
    "ReduceMax": "SegmentMax SegmentMaxV2 UnsortedSegmentMax SegmentMin SegmentMinV2 "
    "UnsortedSegmentMin FastUnsortedSegmentMax VoxelMax",
    "MaxPool": "MaxPoolWithArgmax FractionalMaxPool",
    "AveragePool": "FractionalAvgPool",
    "Pad": "Pad PadV2 MirrorPad SpaceToBatch SpaceToBatchND BatchToSpace BatchToSpaceND "
    "StridedSliceGrad[4] ExtractImagePatches ExtractVolumePatches",
    "Concat": "DynamicStitch ParallelDynamicStitch",
    "Compress": "DynamicPartition",
    "ReverseSequence": "ReverseSequence",
    "Trilu": "MatrixBandPart MatrixDiag MatrixDiagV2 MatrixDiagV3 MatrixDiagPart "
    "MatrixDiagPartV2 MatrixDiagPartV3",
    "OneHot": "OneHot",
    "ConstantOfShape": "ZerosLike[0] OnesLike[0] Empty[0]",
    "Range": "LinSpace",
    "Unique": "Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 InTopK InTopKV2",
    "RoiAlign": "CropAndResize CropAndResizeGradImage CropAndResizeGradBoxes ScaleAndTranslate "
    "ImageProjectiveTransformV2 ImageProjectiveTransformV3 ExtractGlimpse ExtractGlimpseV2",
    "NonMaxSuppression": "NonMaxSuppression NonMaxSuppressionV2 NonMaxSuppressionV3 "
    "NonMaxSuppressionV4 NonMaxSuppressionV5 CombinedNonMaxSuppression",
    "DFT": "AudioSpectrogram Mfcc",
    "fft": "FFT FFT2D FFT3D FFTND IFFT IFFT2D IFFT3D IFFTND RFFT RFFT2D RFFT3D RFFTND IRFFT "
    "IRFFT2D IRFFT3D IRFFTND",
    "cholesky": "Cholesky CholeskyGrad MatrixInverse MatrixSolve MatrixSolveLs "
    "MatrixTriangularSolve BandedTriangularSolve TridiagonalSolve Qr Svd Lu Eig SelfAdjointEigV2 "
    "MatrixExponential MatrixLogarithm MatrixSquareRoot MatrixDeterminant LogMatrixDeterminant",
    "SoftmaxCrossEntropyLoss": "CTCLoss CTCLossV2",
    "DequantizeLinear": "Dequantize QuantizeV2 QuantizedMatMul QuantizedConv2D",
    "real": "Real Imag",
    "complex": "Complex",
}
"""By a row of ONNX or JAX, ops with its traits; nothing is known of their intervals."""

_GRADIENT = f"{TF} TanhGrad, SigmoidGrad, ReluGrad"
_NORM = f"{TF} FusedBatchNormGradV3"
_OWN = (
    *rows(
        Kind.ALLOW,
        "DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter "
        "DepthwiseConv2dNativeBackpropInput",
        "contracts",
        "on TensorFlow's allow list from cuDNN 8 on; contracts only the window",
        f"{TF} DepthwiseConv2dNative",
    ),
    *rows(
        Kind.INFER,
        "TanhGrad SigmoidGrad EluGrad SeluGrad SoftplusGrad SoftsignGrad LeakyReluGrad",
        "multiplies",
        "a gradient times a bounded derivative",
        _GRADIENT,
        cost=Pointwise.CHEAP,
    ),
    *rows(
        Kind.CLEAR,
        "ReluGrad Relu6Grad MaxPoolGrad MaxPoolGradV2 MaxPoolGradWithArgmax MaxPool3DGrad "
        "MaxPoolGradGrad MaxPoolGradGradV2 MaxPool3DGradGrad MirrorPadGrad "
        "ResizeNearestNeighborGrad",
        "",
        "passes elements of a gradient on",
        _GRADIENT,
    ),
    *rows(
        Kind.INFER,
        "AvgPoolGrad AvgPool3DGrad ResizeBilinearGrad ResizeBicubicGrad LRNGrad",
        "",
        "spreads a gradient; kernels sum up in float32 inside",
        f"{TF} AvgPoolGrad",
    ),
    *rows(
        Kind.INFER,
        "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3",
        "",
        "one operation; kernels compute its sums in float32",
        _NORM,
    ),
    *rows(
        Kind.INFER,
        "BiasAddGrad",
        "sums averages",
        "kernels sum up in float32 inside",
        f"{TF} BiasAddGrad",
    ),
    *rows(
        Kind.DENY,
        "SqrtGrad RsqrtGrad InvGrad ReciprocalGrad",
        "multiplies raises pole",
        "a power of a reciprocal, which half may not hold",
        f"{OWN}: on no list of {TF}",
    ),
    *rows(
        Kind.DENY,
        "SquaredDifference",
        "adds subtracts raises power",
        "overflows half, and variances sum it up",
        f"{TF}: absent from the float16 lists",
    ),
    *rows(
        Kind.DENY,
        "Mean",
        "sums averages sums_axes",
        "accumulates many terms",
        f"{TF} Mean",
        interval="ReduceMean",
    ),
    *rows(
        Kind.CLEAR,
        "Relu6",
        "commutes bounds activation",
        "picks one of its operands, monotone: a cast commutes with it",
        f"{TF} Relu6",
        cost=Pointwise.CHEAP,
        interval="Clip",
    ),
    *rows(
        Kind.CLEAR,
        "TensorListFromTensor TensorListPushBack TensorListPushBackBatch TensorListScatter "
        "TensorListScatterV2 TensorListScatterIntoExistingList TensorListSetItem TensorListSplit "
        "TensorListStack TensorListGather TensorListGetItem+iterates TensorListPopBack+iterates "
        "TensorListConcat TensorListConcatV2 TensorListConcatLists",
        "commutes",
        "moves elements into a list or out of it",
        f"{TF} TensorListStack",
    ),
    *rows(
        Kind.CLEAR,
        "All Any",
        "",
        "combines truth values",
        OWN,
    ),
)
"""Ops that no operation of ONNX or JAX equals."""

POSITIONS = MappingProxyType(
    {
        "CombinedNonMaxSuppression": (0,),
        "CropAndResize": (1,),
        "CropAndResizeGradBoxes": (2,),
        "CropAndResizeGradImage": (1,),
        "ExtractGlimpse": (2,),
        "ExtractGlimpseV2": (2,),
        "ImageProjectiveTransformV2": (1,),
        "ImageProjectiveTransformV3": (1,),
        **dict.fromkeys((f"NonMaxSuppression{v}" for v in ("", "V2", "V3", "V4", "V5")), (0,)),
        "ScaleAndTranslate": (2, 3),
    }
)
"""The operands that hold positions, or from which positions follow, by name."""

_MEANINGS = ("sum_of_products", "short_dot", "ExactPower", "CastExact")
"""Rows that are not ops: meanings that the front end distinguishes."""


def _named(text: str) -> Iterator[tuple[str, str]]:
    """Yields the names in a line, each with its operands."""
    for word in text.split():
        name, _, operands = word.rstrip("]").partition("[")
        yield name, operands


def _taken(table: Mapping[str, str], *, interval: bool) -> Iterator[Entry]:
    by_name: dict[str, list[Entry]] = {}
    for entry in (*jax.ROWS, *onnx.ROWS):
        same = by_name.setdefault(entry.op, [])
        if not any(known.only == entry.only for known in same):
            same.append(entry)
    for row, text in table.items():
        for name, _ in _named(text):
            for entry in by_name[row]:
                source = f"as {row}: {entry.source}" if name != row else entry.source
                known = entry.interval if interval else ""
                yield dataclasses.replace(entry, op=name, source=source, interval=known)


def _operands(text: str) -> slice | tuple[int, ...]:
    """Returns the operands that count, as written in brackets."""
    if ":" in text:
        first, _, last = text.partition(":")
        return slice(int(first) if first else None, int(last) if last else None)
    return tuple(map(int, text.split(",")))


ENTRIES: tuple[Entry, ...] = (
    *_taken(_SAME, interval=True),
    *_taken(_ALIKE, interval=False),
    *_taken({name: name for name in _MEANINGS}, interval=True),
    *_OWN,
)
"""The rows of TensorFlow ops, as duotone's painter reads them."""

_ROWS = (*STRUCTURAL_ENTRIES, *ENTRIES)
TRAITS = traits_by_name(_ROWS)
"""The traits of each op that has a row, by name."""

INTERVALS = intervals_by_name(_ROWS)
"""The name of the interval function of each op, by name."""

FIXED = MappingProxyType({entry.op: entry.fixed for entry in ENTRIES if entry.fixed})
"""Why ops stay as they are whatever a list says, by name."""

_OWN_OPERANDS = (
    "Mean[0] All[0] Any[0] DepthwiseConv2dNativeBackpropFilter[0,2] "
    "DepthwiseConv2dNativeBackpropInput[2,1]"
)
_OPERANDS = {
    name: _operands(text)
    for table in (_SAME, _ALIKE, {"": _OWN_OPERANDS})
    for line in table.values()
    for name, text in _named(line)
    if text
}


@functools.lru_cache(maxsize=4096)
def operands_of(op: str, count: int) -> Sequence[int]:
    """Returns the positions of the operands of an op that count, as a range or a tuple.

    Args:
        op: its name.
        count: the number of its data inputs.

    Example:
        >>> list(operands_of("ConcatV2", 3)), list(operands_of("Split", 2))
        ([0, 1], [1])
    """
    chosen = _OPERANDS.get(op, slice(None))
    if isinstance(chosen, slice):
        return range(count)[chosen]
    return tuple(slot for slot in chosen if slot < count)
