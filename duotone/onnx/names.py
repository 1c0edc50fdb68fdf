"""Names of operations in list edits: maps JAX's primitives to ONNX's names.

One environment and one policy serve JAX programs and the models exported from them, so a list edit
may name either. ONNX writes its names with capitals and JAX without, so no name is both.
"""

from __future__ import annotations

from collections.abc import Iterable

from duotone.ops.onnx import NEUTRAL

_SEVERAL = {
    "dot_general": "MatMul Gemm Einsum",
    "conv_general_dilated": "Conv ConvTranspose",
    "max": "Max Relu",
    "square": "Square",
    "integer_pow": "Pow Square",
    "reduce_sum": "ReduceSum ReduceSumSquare",
    "reduce_prod": "ReduceProd",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_window_max": "MaxPool",
    "cumsum": "CumSum",
    "cumprod": "CumProd",
    "clamp": "Clip",
    "concatenate": "Concat",
    "broadcast_in_dim": "Expand",
    "reshape": "Reshape Flatten",
    "squeeze": "Squeeze",
    "transpose": "Transpose",
    "slice": "Slice Split",
    "gather": "Gather GatherElements GatherND",
    "pad": "Pad",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
}
OF_JAX = {primitive: (name,) for name, primitive in NEUTRAL.items()} | {
    primitive: tuple(names.split()) for primitive, names in _SEVERAL.items()
}
"""The ONNX operations of each primitive that has any."""


def onnx_names(names: Iterable[str]) -> frozenset[str]:
    """Returns the names of a list edit as ONNX spells them, and other names unchanged.

    Example:
        >>> sorted(onnx_names(["logistic", "dot_general", "Softmax"]))
        ['Einsum', 'Gemm', 'MatMul', 'Sigmoid', 'Softmax']
    """
    return frozenset(found for name in names for found in OF_JAX.get(name, (name,)))
