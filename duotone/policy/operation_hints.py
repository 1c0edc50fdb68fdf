"""Advice for an operation name that the front end does not know: the name to write instead.

Lists written for TensorFlow have TensorFlow names (``MatMul``), and lists for duotone have names of
JAX primitives (``dot_general``). To add a hint, add the TensorFlow name to the line of its
primitive, or of its primitives, in ``_OF_PRIMITIVES``. Names are never translated silently, because
one TensorFlow operation is rarely exactly one primitive.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from duotone.text.suggestions import did_you_mean

SHOWS_NAMES = "print(jax.make_jaxpr(fn)(*args)) shows the names fn uses"
"""The sentence about the names of a JAX program."""
LEAVE_IT = (
    " (to leave that variable to TensorFlow, set {}, which duotone reads instead; it may be empty)"
)
"""The sentence about a TensorFlow variable with an operation that only TensorFlow knows."""

_OF_ONE_NAME = (
    "Sub Mul Neg Abs Sign Exp Expm1 Log Log1p Pow Sqrt Rsqrt Square Tanh Erf "
    "Erfc Floor Ceil Round ArgMax ArgMin Cumsum Cumprod Reshape Squeeze Transpose"
)
"""TensorFlow operations whose JAX primitive has the same name in lower case."""
_OF_PRIMITIVES: dict[str, str] = {
    "dot_general": "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum",
    "conv_general_dilated": (
        "Conv2D Conv2DBackpropFilter Conv2DBackpropInput Conv3D Conv3DBackpropFilter "
        "Conv3DBackpropFilterV2 Conv3DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNative "
        "DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput "
        "FusedConv2DBiasActivation"
    ),
    "add": "Add AddV2 AddN BiasAdd BiasAddV1",
    "div": "RealDiv Div DivNoNan",
    "max": "Maximum Relu",
    "min": "Minimum",
    "logistic": "Sigmoid",
    "clamp": "ClipByValue",
    "reduce_sum": "Sum BiasAddGrad",
    "reduce_prod": "Prod",
    "reduce_max": "Max",
    "reduce_min": "Min",
    "reduce_window_sum": "AvgPool AvgPool3D",
    "reduce_window_max": "MaxPool MaxPoolV2 MaxPool3D",
    "select_and_scatter_add": "MaxPoolGrad MaxPoolGradV2 MaxPool3DGrad",
    "top_k": "TopK TopKV2",
    "concatenate": "Concat ConcatV2 Pack",
    "broadcast_in_dim": "BroadcastTo Fill ExpandDims Tile OnesLike ZerosLike",
    "slice": "Slice StridedSlice Split SplitV Unpack",
    "gather": "Gather GatherV2 GatherNd",
    "scatter-add": "ScatterNdAdd TensorScatterAdd UnsortedSegmentSum",
    "pad": "Pad PadV2",
    "rev": "Reverse ReverseV2",
    "select_n": "Select SelectV2 Where",
    "convert_element_type": "Cast",
    "is_finite": "IsFinite",
    "eq": "Equal",
    "ne": "NotEqual",
    "lt": "Less",
    "le": "LessEqual",
    "gt": "Greater",
    "ge": "GreaterEqual",
    "reduce_max sub exp reduce_sum div": "Softmax",
    "reduce_max sub exp reduce_sum log": (
        "LogSoftmax SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits"
    ),
    "reduce_sum div": "Mean",
    "square reduce_sum mul": "L2Loss",
    "sub square": "SquaredDifference",
    "integer_pow div": "Reciprocal Inv",
    "div floor": "FloorDiv",
    "max min": "Relu6",
    "mul select_n": "LeakyRelu",
    "expm1 select_n": "Elu",
    "expm1 select_n mul": "Selu",
    "max abs exp log1p": "Softplus",
    "abs add div": "Softsign",
    "reduce_sum sub rsqrt mul add": (
        "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 FusedBatchNormGradV2 FusedBatchNormGradV3"
    ),
    "gt select_n": "ReluGrad",
    "sub mul": "SigmoidGrad TanhGrad",
    "dot_general logistic tanh mul add": (
        "CudnnRNN CudnnRNNV2 CudnnRNNV3 LSTMBlockCell BlockLSTM BlockLSTMV2 GRUBlockCell"
    ),
}
"""The JAX primitives, one or several, that replace some TensorFlow operations."""

TENSORFLOW_OPERATIONS: dict[str, tuple[str, ...]] = {
    **{operation: (operation.lower(),) for operation in _OF_ONE_NAME.split()},
    **{
        operation: tuple(primitives.split())
        for primitives, operations in _OF_PRIMITIVES.items()
        for operation in operations.split()
    },
}
"""The JAX primitives that do the work of each TensorFlow operation, by name."""

# "conv2d" and "batch_mat_mul" are the same slip as "Conv2D" and "BatchMatMul".
_BY_PLAIN_NAME = {name.lower(): name for name in TENSORFLOW_OPERATIONS}


def advice(name: str, known: Collection[str], shows: str = SHOWS_NAMES) -> str:
    """Returns the name to write instead of `name`, as the end of a sentence in an error message.

    Returns:
        The primitive or primitives of a TensorFlow operation, else the known names that look most
        like `name`, else where the names can be read.

    Example:
        >>> advice("MatMul", ["dot_general", "exp"])
        "a TensorFlow operation; its JAX primitive is 'dot_general'"
        >>> advice("expp", ["dot_general", "exp"])
        "did you mean 'exp'?"
    """
    tensorflow_name = _BY_PLAIN_NAME.get(name.lower().replace("_", ""))
    if tensorflow_name is not None:
        return _tensorflow_advice(name, tensorflow_name)
    snake_case = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)  # ReduceSum looks for reduce_sum
    otherwise = f"no known name is like it; {shows}"
    return did_you_mean(snake_case, known, otherwise, most=3, cutoff=0.7)


def _tensorflow_advice(written: str, tensorflow_name: str) -> str:
    primitives = TENSORFLOW_OPERATIONS[tensorflow_name]
    what = (
        "a TensorFlow operation"
        if written == tensorflow_name
        else f"like TensorFlow's {tensorflow_name}"
    )
    if len(primitives) == 1:
        return f"{what}; its JAX primitive is {primitives[0]!r}"
    names = ", ".join(repr(p) for p in primitives)
    return (
        f"{what}; no single JAX primitive does it, but {names} together: list those that matter, "
        "or choose the place with a name-scope pattern in keep_full or keep_half"
    )
