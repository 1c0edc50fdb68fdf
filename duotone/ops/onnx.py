"""The lists for ONNX operations: allow, infer, deny, clear, each entry with its reason and source.

To add an operation, add its name to the family it belongs to. Operations on no list, those of
custom domains among them, stay float32 and are reported. Names here that are no operations are
meanings that the front end tells apart: ``CastExact`` (a ``Cast`` that half loses nothing in),
``Square`` (a ``Mul`` of a value with itself), ``ExactPower`` (a ``Pow`` with the constant
exponent 0, 1 or -1) and ``sum_of_products`` (a ``MatMul``, ``Gemm`` or ``Einsum`` without a free
axis, or with a handful of elements, as in JAX programs).

Runtimes sum up inside of a norm, a softmax, a mean or a pooling of half operands in float32 (ONNX
Runtime's CUDA kernels keep float accumulators, TensorRT likewise), so those are on the infer list:
what JAX programs write as several operations is one operation here.

Sources: TensorFlow 2.21, ``auto_mixed_precision_lists.h``; NVIDIA, "Training with Mixed Precision",
DU-08617; PyTorch, "CUDA Op-Specific Behavior". Where none has it, the reason stands for itself.
"""

from __future__ import annotations

from typing import Any

from duotone.graph.classify.lists import Entry, Kind, Pointwise, Taint

TF = "TensorFlow 2.21"
NVIDIA = "NVIDIA DU-08617"
TORCH = "PyTorch AMP"
OWN = "duotone"

_CHEAP = frozenset(
    "Add Sub Mul Div Sum Neg Abs Max Min Sign Where Clip Relu LeakyRelu PRelu Floor Ceil Round "
    "Cast CastExact ExactPower Equal Less Greater LessOrEqual GreaterOrEqual Identity Reshape "
    "Squeeze Unsqueeze Flatten Expand HardSigmoid HardSwish Reciprocal".split()
)


def _entries(kind: Kind, ops: str, reason: str, source: str, **features: Any) -> list[Entry]:
    """One entry for each name in ``ops``; ``features`` are fields of :class:`Entry`."""
    made = []
    for op in ops.split():
        pointwise = Pointwise.CHEAP if op in _CHEAP else Pointwise.NO
        made.append(Entry(op, kind, reason, source, pointwise=pointwise, **features))
    return made


_MATRIX = "runs on Tensor Cores, accumulates in float32"
_ALLOW = [
    *_entries(Kind.ALLOW, "MatMul Gemm Einsum", _MATRIX, f"{TF} MatMul, BatchMatMulV2, Einsum"),
    *_entries(
        Kind.ALLOW,
        "Conv ConvTranspose DeformConv CausalConvWithState",
        _MATRIX,
        f"{TF} Conv2D, Conv3D, Conv2DBackpropInput",
    ),
    *_entries(Kind.ALLOW, "LSTM GRU RNN", _MATRIX, f"{TF} CudnnRNN, GRUBlockCell, BlockLSTM"),
    *_entries(Kind.ALLOW, "Attention", _MATRIX, f"{TF} MatMul; {TORCH} attention"),
]
_SAFE = "safe where its operands are"
_SUMS_INSIDE = "kernels sum up in float32 inside; the result is no larger than its operands"
_INFER = [
    *_entries(Kind.INFER, "Add Sub Sum", _SAFE, f"{TF} Add, AddN, Sub", additive=True),
    *_entries(Kind.INFER, "Mul PRelu LeakyRelu ThresholdedRelu Shrink", _SAFE, f"{TF} Mul"),
    *_entries(Kind.INFER, "Div", _SAFE, f"{TF} RealDiv", divides=True),
    *_entries(
        Kind.INFER,
        "Tanh Sigmoid HardSigmoid HardSwish Erf Elu Selu Celu Gelu Mish Swish SwiGLU Softsign "
        "Softplus",
        "bounded, or no larger than its operand; small relative error",
        f"{TF} Tanh, Sigmoid, Erf, Elu, Selu, Softplus",
    ),
    *_entries(Kind.INFER, "Sqrt", "halves the exponent's range", f"{TF} Sqrt"),
    *_entries(
        Kind.INFER, "Asinh Atan", "no larger than its operand and no pole", f"{OWN}: |f(x)| <= |x|"
    ),
    *_entries(
        Kind.INFER,
        "BatchNormalization InstanceNormalization GroupNormalization LayerNormalization "
        "RMSNormalization LRN",
        "one operation, whose statistics kernels calculate in float32",
        f"{TF} FusedBatchNormV3, LRN",
    ),
    *_entries(Kind.INFER, "Softmax", "one operation, between 0 and 1", f"{TF} Softmax"),
    *_entries(
        Kind.INFER,
        "AveragePool GlobalAveragePool ReduceMean Mean Resize Upsample GridSample",
        _SUMS_INSIDE,
        f"{TF} AvgPool, ResizeNearestNeighbor",
    ),
    *_entries(Kind.INFER, "ExactPower", "a copy, a constant or a reciprocal", f"{TF} Reciprocal"),
    *_entries(Kind.INFER, "RotaryEmbedding", "multiplies with sines and cosines", f"{TF} Mul"),
]
_DENY = [
    *_entries(
        Kind.DENY,
        "Exp",
        "overflows half for operands above 11 (float16); magnifies the operand's error",
        f"{TF} Exp; {NVIDIA}",
    ),
    *_entries(
        Kind.DENY,
        "Log LogSoftmax ReduceLogSum ReduceLogSumExp",
        "used by difference: its absolute error counts",
        f"{NVIDIA}; {TORCH} log, log_softmax",
        taint=Taint.ADDITIVE,
    ),
    *_entries(
        Kind.DENY,
        "Pow Square",
        "overflows half, and is summed up in variances",
        f"{TF} Pow; {TORCH} pow",
    ),
    *_entries(
        Kind.DENY,
        "Reciprocal",
        "has a pole: reads roots and variances, which underflow in half",
        f"{TORCH} rsqrt",
        only=("float16",),
    ),
    *_entries(
        Kind.INFER, "Reciprocal", "bfloat16 has float32's range", f"{TF} Inv", only=("bfloat16",)
    ),
    *_entries(
        Kind.DENY,
        "ReduceSum ReduceSumSquare ReduceL1 ReduceL2 ReduceProd CumSum CumProd LpPool GlobalLpPool "
        "LpNormalization MeanVarianceNormalization LinearAttention",
        "accumulates many terms",
        f"{TF} Sum, L2Loss; {TORCH} sum, norm",
        adds_up=True,
    ),
    *_entries(
        Kind.DENY,
        "sum_of_products",
        "a sum of products, or a dot of a handful of elements: no matrix unit takes it",
        f"{OWN}: reads as much as it multiplies, so half gains nothing and loses digits",
    ),
    *_entries(
        Kind.DENY,
        "Sin Cos Tan Sinh Cosh Asin Acos Acosh Atanh",
        "argument reduction or a pole: needs the operand's low bits",
        f"{TORCH} tan, sinh, cosh, acos, asin",
    ),
    *_entries(
        Kind.DENY,
        "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
        "a loss",
        f"{TF} SoftmaxCrossEntropyWithLogits; {NVIDIA}",
    ),
    *_entries(
        Kind.DENY,
        "Range RoiAlign MaxRoiPool AffineGrid NonMaxSuppression",
        "calculates with places, whose absolute error counts",
        f"{OWN}: a place of 2049 is 2048 in float16",
    ),
    *_entries(Kind.DENY, "Mod Det DFT STFT", "needs the low bits of float32", f"{OWN}: {TF} none"),
]
_MOVES = "moves data; a cast commutes with it"
_PICKS = "picks one of its operands, monotone: a cast commutes with it"
_COMPARES = "compares; exact on a value that is half already"
_CLEAR = [
    *_entries(
        Kind.CLEAR,
        "Reshape Squeeze Unsqueeze Flatten Transpose Identity Slice Split DepthToSpace "
        "SpaceToDepth ReverseSequence Trilu CenterCropPad Dropout ConstantOfShape",
        _MOVES,
        f"{TF} Reshape, Transpose, Slice",
        commutes=True,
    ),
    *_entries(
        Kind.CLEAR, "Expand Tile", _MOVES, f"{TF} Tile, BroadcastTo", commutes=True, repeats=True
    ),
    *_entries(Kind.CLEAR, "Concat Pad", _MOVES, f"{TF} ConcatV2, Pad", commutes=True, parts=True),
    *_entries(
        Kind.CLEAR,
        "Gather GatherElements GatherND Compress",
        "moves data; reads less than it is given",
        f"{TF} GatherV2",
        commutes=True,
        repeats=True,
    ),
    *_entries(
        Kind.CLEAR,
        "ScatterND ScatterElements Scatter TensorScatter MaxUnpool OneHot",
        "moves data",
        f"{TF} ScatterNd, OneHot",
        commutes=True,
    ),
    *_entries(
        Kind.CLEAR,
        "Where Max Min Relu",
        _PICKS,
        f"{TF} SelectV2, Maximum, Relu",
        commutes=True,
        bounds=True,
    ),
    *_entries(Kind.CLEAR, "Neg Abs", "changes the sign bit", f"{TF} Neg, Abs", commutes=True),
    *_entries(
        Kind.CLEAR,
        "ReduceMax ReduceMin MaxPool GlobalMaxPool",
        _PICKS,
        f"{TF} Max, MaxPool",
        commutes=True,
        selects=True,
    ),
    *_entries(
        Kind.CLEAR,
        "Clip",
        _PICKS,
        f"{TF} ClipByValue",
        commutes=True,
        selects=True,
        bounds=True,
    ),
    *_entries(
        Kind.CLEAR,
        "TopK ArgMax ArgMin Hardmax Unique NonZero",
        "compares; does not calculate",
        f"{TF} TopKV2, ArgMax",
        selects=True,
    ),
    *_entries(
        Kind.CLEAR,
        "Equal Less Greater LessOrEqual GreaterOrEqual",
        _COMPARES,
        f"{TF} Equal, Less",
        bounds=True,
    ),
    *_entries(Kind.CLEAR, "Sign Floor Ceil Round IsNaN IsInf", _COMPARES, f"{TF} Sign, Floor"),
    *_entries(
        Kind.CLEAR, "Cast", "the model's own conversion of a value", f"{OWN}: reads what is stored"
    ),
    *_entries(
        Kind.CLEAR,
        "CastExact",
        "a conversion in which half loses nothing (bool, int8, half to float32)",
        f"{OWN}: {_MOVES}",
        commutes=True,
    ),
]
ENTRIES: tuple[Entry, ...] = (*_ALLOW, *_INFER, *_DENY, *_CLEAR)
"""All entries; :meth:`duotone.graph.classify.lists.OpLists.for_half` picks those of one half
type."""

NEUTRAL = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
    "Neg": "neg",
    "Abs": "abs",
    "Sqrt": "sqrt",
    "Exp": "exp",
    "Log": "log",
    "Tanh": "tanh",
    "Sigmoid": "logistic",
    "Erf": "erf",
    "Sin": "sin",
    "Cos": "cos",
    "Tan": "tan",
    "Floor": "floor",
    "Ceil": "ceil",
    "Round": "round",
    "Sign": "sign",
    "Where": "select_n",
    "Max": "max",
    "Min": "min",
    "Pow": "pow",
    "MatMul": "dot_general",
    "Cast": "convert_element_type",
    "CumSum": "CumSum",
}
"""The neutral name of what means the same there, operand for operand: the analyses of ranges,
places, solves and the rest know it by this name. The others keep their own."""
