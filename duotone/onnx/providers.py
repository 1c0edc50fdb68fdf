"""Providers: the operations for which a runtime has no half kernel.

A runtime without a kernel runs the operation in float32 between two casts, or refuses the model. An
operation that is not in a table counts as having a kernel. The tables of CUDA and DirectML were not
tried on a device, and no table knows the opset of a kernel.

References:
    ONNX Runtime, ``docs/OperatorKernels.md``; onnx-tensorrt, ``docs/operators.md``.
"""

from __future__ import annotations

from duotone.errors import ArgumentError, shown
from duotone.ops.onnx import ENTRIES

_ALL = frozenset(entry.op for entry in ENTRIES)
_MOVES = frozenset(
    "Reshape Squeeze Unsqueeze Flatten Transpose Identity Slice Split Concat Expand Tile Gather "
    "GatherElements GatherND ScatterND ScatterElements Cast CastExact Where ConstantOfShape "
    "Compress ReverseSequence DepthToSpace SpaceToDepth".split()
)
"""Data movement, for which all providers have kernels of any type."""
_CPU_FLOAT16 = _MOVES | frozenset({"Attention", "Clip"})
_NOT_TENSORRT = frozenset(
    "Compress Det Hardmax IsInf MaxRoiPool MaxUnpool MeanVarianceNormalization Mod "
    "NegativeLogLikelihoodLoss OneHot RoiAlign Shrink SoftmaxCrossEntropyLoss "
    "Unique ConstantOfShape".split()
)
_NOT_CUDA_FLOAT16 = frozenset(
    "CumProd Det DFT STFT Hardmax LpNormalization MaxUnpool MeanVarianceNormalization Mod RoiAlign "
    "Unique LRN GridSample Celu Mish Swish SwiGLU AffineGrid DeformConv Asin Acos Atan Asinh Acosh "
    "Atanh Sinh Cosh Tan".split()
)
_CUDA_BFLOAT16 = _MOVES | frozenset(
    "MatMul Gemm Conv Add Sub Mul Div Sum Tanh Sigmoid Erf Sqrt Exp Log Pow Relu Softmax "
    "LayerNormalization RMSNormalization ReduceSum ReduceMean ReduceMax ReduceMin Gelu "
    "RotaryEmbedding Attention Max Min Neg Abs".split()
)
_TABLES: dict[tuple[str, str], frozenset[str]] = {
    ("cpu", "float16"): _ALL - _CPU_FLOAT16,
    ("cpu", "bfloat16"): _ALL - _MOVES,
    ("cuda", "float16"): _NOT_CUDA_FLOAT16,
    ("cuda", "bfloat16"): _ALL - _CUDA_BFLOAT16,
    ("tensorrt", "float16"): _NOT_TENSORRT,
    ("tensorrt", "bfloat16"): _NOT_TENSORRT,
    ("directml", "float16"): frozenset("Det DFT STFT Unique Compress MaxUnpool".split()),
    ("directml", "bfloat16"): _ALL,
}
PROVIDERS = ("cpu", "cuda", "tensorrt", "directml")
"""The providers with a table."""


def without_half(provider: str | None, half: str) -> frozenset[str]:
    """Returns the operations without a half kernel in a provider.

    Raises:
        ArgumentError: there is no table for it.
    """
    if provider is None:
        return frozenset()
    if not isinstance(provider, str) or provider not in PROVIDERS:
        raise ArgumentError(f"provider={shown(provider)}: it takes {', '.join(PROVIDERS)}.")
    return _TABLES[provider, half]
