"""The table of ONNX operations: one row for each, with its list, reason, source and traits.

The rows of the clear list are in :mod:`duotone.ops.onnx_moves`.

To add an operation, add its name to the row of its family. Operations without a row, those of
custom domains included, stay float32, keep every safety rule on, and are reported. Names here that
are not operations are meanings that the front end distinguishes: ``CastExact`` (a ``Cast`` that
loses nothing in half), ``Square`` (a ``Mul`` of a value with itself), ``ExactPower`` (a ``Pow``
with the constant exponent 0, 1 or -1), ``sum_of_products`` and ``short_dot`` (a ``MatMul``,
``Gemm`` or ``Einsum`` that fills no matrix instruction, see :mod:`duotone.graph.products`).

Inside a norm, a softmax, a mean or a pooling of half operands, runtimes sum up in float32 (ONNX
Runtime's CUDA kernels and TensorRT keep float accumulators). So these operations are on the infer
list, although JAX programs write them as several operations, some of them denied.

Sources: TensorFlow 2.21, ``auto_mixed_precision_lists.h``; NVIDIA, "Training with Mixed Precision",
DU-08617; PyTorch, "CUDA Op-Specific Behavior". If none lists the operation, the reason is ours.
"""

from __future__ import annotations

from types import MappingProxyType

from duotone.ops.entries import (
    NVIDIA,
    OWN,
    STRUCTURAL_ENTRIES,
    TF,
    TORCH,
    Entry,
    Kind,
    Pointwise,
    Taint,
    intervals_by_name,
    rows,
    traits_by_name,
)
from duotone.ops.onnx_moves import CLEAR

_CHEAP = Pointwise.CHEAP


_MATRIX = "runs on Tensor Cores, accumulates in float32"
_CONV = f"{TF} Conv2D, Conv3D, Conv2DBackpropInput"
_RNN = f"{TF} CudnnRNN, GRUBlockCell, BlockLSTM"
_ALLOW = [
    *rows(
        Kind.ALLOW,
        "MatMul Gemm Einsum",
        "contracts einsum",
        _MATRIX,
        f"{TF} MatMul, BatchMatMulV2, Einsum",
    ),
    *rows(
        Kind.ALLOW,
        "Conv ConvTranspose DeformConv CausalConvWithState",
        "contracts convolves",
        _MATRIX,
        _CONV,
    ),
    *rows(Kind.ALLOW, "LSTM GRU RNN", "contracts activation", _MATRIX, _RNN),
    *rows(
        Kind.ALLOW, "Attention", "contracts activation", _MATRIX, f"{TF} MatMul; {TORCH} attention"
    ),
]
_SAFE = "safe where its operands are"
_SUMS_INSIDE = "kernels sum up in float32 inside; the result is no larger than its operands"
_SUMS_INSIDE_SOURCE = f"{TF} AvgPool, ResizeNearestNeighbor"
_BOUNDED = "bounded, or no larger than its operand; small relative error"
_BOUNDED_SOURCE = f"{TF} Tanh, Sigmoid, Erf, Elu, Selu, Softplus"
_INFER = [
    *rows(
        Kind.INFER,
        "Add Sum",
        "adds keeps_nan",
        _SAFE,
        f"{TF} Add, AddN, Sub",
        cost=_CHEAP,
        interval="add Sum",
    ),
    *rows(
        Kind.INFER,
        "Sub",
        "adds subtracts keeps_nan",
        _SAFE,
        f"{TF} Add, AddN, Sub",
        cost=_CHEAP,
        interval="sub",
    ),
    *rows(
        Kind.INFER, "Mul", "multiplies keeps_nan", _SAFE, f"{TF} Mul", cost=_CHEAP, interval="mul"
    ),
    *rows(Kind.INFER, "PRelu LeakyRelu", "activation", _SAFE, f"{TF} Mul", cost=_CHEAP),
    *rows(Kind.INFER, "ThresholdedRelu Shrink", "activation", _SAFE, f"{TF} Mul"),
    *rows(
        Kind.INFER, "Div", "divides keeps_nan", _SAFE, f"{TF} RealDiv", cost=_CHEAP, interval="div"
    ),
    *rows(
        Kind.INFER,
        "Tanh Sigmoid+nonzero Erf",
        "activation bounded saturates keeps_nan",
        _BOUNDED,
        _BOUNDED_SOURCE,
        interval="tanh logistic erf",
    ),
    *rows(
        Kind.INFER,
        "Elu Selu Celu Gelu Mish Swish SwiGLU Softsign Softplus",
        "activation",
        _BOUNDED,
        _BOUNDED_SOURCE,
    ),
    *rows(
        Kind.INFER, "HardSigmoid HardSwish", "activation", _BOUNDED, _BOUNDED_SOURCE, cost=_CHEAP
    ),
    *rows(
        Kind.INFER,
        "Sqrt",
        "roots square_root pole keeps_nan",
        "halves the exponent's range",
        f"{TF} Sqrt",
        interval="sqrt",
    ),
    *rows(
        Kind.INFER,
        "Asinh Atan",
        "",
        "no larger than its operand and no pole",
        f"{OWN}: |f(x)| <= |x|",
    ),
    *rows(
        Kind.INFER,
        "BatchNormalization InstanceNormalization+normalizes GroupNormalization+normalizes "
        "LayerNormalization+normalizes RMSNormalization+normalizes LRN",
        "",
        "one operation; kernels compute its statistics in float32",
        f"{TF} FusedBatchNormV3, LRN",
    ),
    *rows(Kind.INFER, "Softmax", "activation", "one operation, between 0 and 1", f"{TF} Softmax"),
    *rows(
        Kind.INFER,
        "AveragePool+pools GlobalAveragePool ReduceMean",
        "sums",
        _SUMS_INSIDE,
        _SUMS_INSIDE_SOURCE,
    ),
    *rows(Kind.INFER, "Mean Resize Upsample GridSample", "", _SUMS_INSIDE, _SUMS_INSIDE_SOURCE),
    *rows(
        Kind.INFER,
        "ExactPower",
        "raises power",
        "a copy, a constant or a reciprocal",
        f"{TF} Reciprocal",
        cost=_CHEAP,
        interval="pow",
    ),
    *rows(Kind.INFER, "RotaryEmbedding", "", "multiplies with sines and cosines", f"{TF} Mul"),
]
_LOG = "used by difference: its absolute error counts"
_LOG_SOURCE = f"{NVIDIA}; {TORCH} log, log_softmax"
_MANY = "accumulates many terms"
_MANY_SOURCE = f"{TF} Sum, L2Loss; {TORCH} sum, norm"
_LOW_BITS = "argument reduction or a pole: needs the operand's low bits"
_LOW_BITS_SOURCE = f"{TORCH} tan, sinh, cosh, acos, asin"
_POSITIONS = "computes with positions, whose absolute error counts"
_POSITIONS_SOURCE = f"{OWN}: float16 rounds the position 2049 to 2048"
_DENY = [
    *rows(
        Kind.DENY,
        "Exp",
        "exponential activation nonzero keeps_nan",
        "overflows half for operands above 11 (float16); magnifies the operand's error",
        f"{TF} Exp; {NVIDIA}",
        interval="exp",
    ),
    *rows(
        Kind.DENY,
        "Log",
        "logarithm logs keeps_nan",
        _LOG,
        _LOG_SOURCE,
        taint=Taint.ADDITIVE,
        interval="log",
    ),
    *rows(Kind.DENY, "ReduceLogSum", "logarithm logs", _LOG, _LOG_SOURCE, taint=Taint.ADDITIVE),
    *rows(Kind.DENY, "LogSoftmax ReduceLogSumExp", "", _LOG, _LOG_SOURCE, taint=Taint.ADDITIVE),
    *rows(
        Kind.DENY,
        "Pow+pole Square+squares+keeps_nan",
        "raises power",
        "overflows half, and variances sum it up",
        f"{TF} Pow; {TORCH} pow",
        interval="pow square",
    ),
    *rows(
        Kind.DENY,
        "Reciprocal",
        "raises pole",
        "has a pole: reads roots and variances, which underflow in half",
        f"{TORCH} rsqrt",
        cost=_CHEAP,
        only=("float16",),
    ),
    *rows(
        Kind.INFER,
        "Reciprocal",
        "raises pole",
        "bfloat16 has float32's range",
        f"{TF} Inv",
        cost=_CHEAP,
        only=("bfloat16",),
    ),
    *rows(
        Kind.DENY,
        "ReduceSum+sums_axes ReduceL1 CumSum+running",
        "sums averages",
        _MANY,
        _MANY_SOURCE,
    ),
    *rows(Kind.DENY, "ReduceSumSquare ReduceL2", "sums averages raises", _MANY, _MANY_SOURCE),
    *rows(
        Kind.DENY,
        "LpPool GlobalLpPool LpNormalization+normalizes MeanVarianceNormalization+normalizes "
        "LinearAttention "
        "ReduceProd+multiplies_up CumProd+multiplies_up+running",
        "averages",
        _MANY,
        _MANY_SOURCE,
    ),
    *rows(
        Kind.DENY,
        "sum_of_products",
        "contracts einsum",
        "a sum of products: too small for a matrix instruction",
        f"{OWN}: reads as much as it multiplies, so half gains nothing and loses digits",
    ),
    *rows(
        Kind.DENY,
        "short_dot",
        "contracts einsum short",
        "contracts fewer elements than a matrix instruction takes",
        f"{OWN}: half gains nothing and loses digits",
    ),
    *rows(
        Kind.DENY,
        "Sin+bounded Cos+bounded+nonzero Tan",
        "sine keeps_nan",
        _LOW_BITS,
        _LOW_BITS_SOURCE,
        interval="sin cos Tan",
    ),
    *rows(
        Kind.DENY,
        "Sinh Cosh+nonzero Asin+pole+steep Acos+pole+steep Acosh+pole+steep Atanh+pole+steep",
        "keeps_nan",
        _LOW_BITS,
        _LOW_BITS_SOURCE,
    ),
    *rows(
        Kind.DENY,
        "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
        "",
        "a loss",
        f"{TF} SoftmaxCrossEntropyWithLogits; {NVIDIA}",
    ),
    *rows(Kind.DENY, "Range", "counts", _POSITIONS, _POSITIONS_SOURCE),
    *rows(
        Kind.DENY,
        "RoiAlign MaxRoiPool AffineGrid NonMaxSuppression",
        "",
        _POSITIONS,
        _POSITIONS_SOURCE,
    ),
    *rows(Kind.DENY, "Mod", "rounds decides", "needs the low bits of float32", f"{OWN}: {TF} none"),
    *rows(Kind.DENY, "Det DFT STFT", "", "needs the low bits of float32", f"{OWN}: {TF} none"),
]
ENTRIES: tuple[Entry, ...] = (*_ALLOW, *_INFER, *_DENY, *CLEAR)
"""The rows of operations on a list; :meth:`duotone.precision.classify.lists.OpLists.for_half`
picks those of one half type."""


def _fixed(ops: str, why: str) -> list[Entry]:
    return rows(Kind.UNLISTED, ops, "", "on no list", OWN, fixed=why)


_ON_NO_LIST = [
    *rows(Kind.UNLISTED, "Shape Size", "moves shapes", "on no list", OWN),
    *_fixed(
        "SequenceConstruct SequenceInsert SequenceAt SequenceEmpty SequenceErase SequenceLength "
        "SplitToSequence ConcatFromSequence Optional OptionalGetElement OptionalHasElement "
        "CastLike",
        "keeps the type of a sequence or of another value",
    ),
    *_fixed(
        "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul "
        "ConvInteger MatMulInteger",
        "quantised: left alone",
    ),
]
ROWS = (*STRUCTURAL_ENTRIES, *ENTRIES, *_ON_NO_LIST)
"""All rows."""
TRAITS = traits_by_name(ROWS)
"""The traits of each operation that has a row, by name."""
FIXED = MappingProxyType({entry.op: entry.fixed for entry in ROWS if entry.fixed})
"""Why operations stay as they are whatever a list says, by name."""
INTERVALS = intervals_by_name(ROWS)
"""The name of the interval function of each, by name."""
POSITIONS = MappingProxyType(
    {
        "AffineGrid": (0,),
        "GridSample": (1,),
        "MaxRoiPool": (1,),
        "NonMaxSuppression": (0,),
        "Resize": (1, 2),
        "RoiAlign": (1,),
        "Upsample": (1,),
    }
)
"""The operands that hold positions, or from which positions follow, by name. The offsets of
``DeformConv`` are displacements: their relative error counts, as that of any other operand."""

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
"""The neutral names of operations that mean the same in JAX, operand for operand. The analyses of
ranges, positions, solves and others know them by these names. Other operations keep their own."""
