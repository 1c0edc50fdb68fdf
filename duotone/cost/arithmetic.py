"""FLOPs of the dots and convolutions of a compiled program, and the types they run in.

Programs have three forms: ``dot`` and ``convolution`` (also inside fusions; a TPU's compiler turns
dots into convolutions), and calls of cuBLAS and cuDNN.

A dot does ``2 × result × contracted`` operations. A convolution does ``2 × outputs × kernel /
output features``, where outputs are those of the *forward* convolution: in cuDNN's calls for
gradients they are an operand.

References:
    XLA, ``xla/service/hlo_cost_analysis.cc``: ``GetDotFlops``, ``GetConvolutionFlops``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterator

import numpy as np

from duotone.cost.hlo import Array, CompiledProgram, Computation, Instruction, bits_of


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledDot:
    """One dot or convolution.

    Attributes:
        types: the types of operands and result, ``"f16×f16→f32"``; also the type in which products
            are computed, if the program names one: ``"f32×f32→f32 as tf32"``.
        flops: operations.
        math: the type in which products are computed: ``f16``, ``tf32`` …; ``"default"`` for
            float32 operands for which the program names no precision.
        passes: how often the products are computed, for more precision than ``math`` has.
    """

    types: str
    flops: float
    math: str
    passes: int = 1


def dots_of(
    instruction: Instruction, computation: Computation, program: CompiledProgram
) -> Iterator[CompiledDot]:
    """Yields the dots of an instruction, including those inside its fusion."""
    for nested, inner in program.inside(instruction, computation):
        if flops := _flops(nested, inner):
            yield _dot(nested, inner, flops)


def _dot(instruction: Instruction, computation: Computation, flops: float) -> CompiledDot:
    lhs, rhs = (computation.operand(instruction, n).arrays[0] for n in (0, 1))
    result = instruction.arrays[0]
    types = f"{lhs.dtype}×{rhs.dtype}→{result.dtype}"
    wider = max((lhs.dtype, rhs.dtype), key=bits_of)
    if algorithm := _ALGORITHM.search(instruction.attributes):
        named, passes = algorithm[1].lower(), int(algorithm[2] or 1)
        return CompiledDot(f"{types} as {named}", flops, named, passes)
    if wider == "f32" and not _HIGHEST.search(instruction.attributes):
        return CompiledDot(types, flops, "default")
    return CompiledDot(types, flops, wider)


_ALGORITHM = re.compile(
    r'algorithm(?:=|":"alg_)dot_(bf16|f16|tf32|f32|f64)_[a-z0-9]+_[a-z0-9]+?(?:_x(\d))?\b', re.I
)
"""How a program names a dot algorithm: an attribute, or a setting of cuBLAS."""
_HIGHEST = re.compile(r'operand_precision(?:=\{|":\[")highest', re.I)


def _flops(instruction: Instruction, computation: Computation) -> float:
    target = instruction.target if instruction.opcode == "custom-call" else ""
    if instruction.opcode == "dot":
        dimensions = instruction.numbers("lhs_contracting_dims")
    elif target.startswith("__cublas$"):
        dimensions = library_dimensions(instruction, "lhs_contracting_dimensions")
    elif target.startswith("__onednn$matmul"):
        settings = backend_config(instruction).get("onednn_matmul_config", {})
        dimensions = (-2 if settings.get("transpose_a") else -1,)
    elif target.startswith("__cudnn$fmha"):
        return _attention_flops(instruction, computation, target)
    elif instruction.opcode == "convolution" or target.startswith(_LIBRARY_CONVOLUTIONS):
        return _convolution_flops(instruction, computation, target)
    else:
        return 0.0
    lhs = computation.operand(instruction, 0).arrays[0]
    contracted = math.prod(lhs.shape[d] for d in dimensions)
    return 2.0 * instruction.arrays[0].size * contracted


_LIBRARY_CONVOLUTIONS = ("__cudnn$conv", "__onednn$conv")


def library_dimensions(instruction: Instruction, name: str) -> tuple[int, ...]:
    """Returns the dimensions of an operand of a call of cuBLAS, by XLA's name of their kind."""
    config = backend_config(instruction)
    numbers = config.get("gemm_backend_config", config).get("dot_dimension_numbers", {})
    return tuple(int(d) for d in numbers.get(name, ()))


def _attention_flops(instruction: Instruction, computation: Computation, target: str) -> float:
    """Counts a fused attention as two dots of the size of its first, and its derivative as five."""
    config = backend_config(instruction).get("cudnn_fmha_backend_config", {})
    backward = "Backward" in target
    # The dot in which queries (of the derivative: cotangents) meet keys (values).
    name = "bmm2_grad_gemm2" if backward else "bmm1"
    numbers = config.get(f"{name}_dot_dimension_numbers", {})
    query, key = (computation.operand(instruction, n).arrays[0] for n in (0, 1))
    taken = numbers.get("rhs_contracting_dimensions", ()), numbers.get("rhs_batch_dimensions", ())
    shared = {int(d) for names in taken for d in names}
    own = math.prod(size for d, size in enumerate(key.shape) if d not in shared)
    return (5 if backward else 2) * 2.0 * query.size * own


def _convolution_flops(instruction: Instruction, computation: Computation, target: str) -> float:
    kernel, outputs, features = convolution_parts(instruction, computation, target)
    if target:
        # One in n products has an element where an operand is dilated by n.
        dilation = math.prod(_window_numbers(instruction.attribute("window"), "lhs_dilate"))
        share = 1 / dilation
    else:
        lhs = computation.operand(instruction, 0).arrays[0]
        share = _share_of_products(instruction, lhs, instruction.arrays[0])
    return 2.0 * outputs.size * kernel.size / features * share


def convolution_parts(
    instruction: Instruction, computation: Computation, target: str
) -> tuple[Array, Array, int]:
    """Returns kernel, outputs and number of output features of the forward convolution."""
    lhs, rhs = (computation.operand(instruction, n).arrays[0] for n in (0, 1))
    kernel, outputs = rhs, instruction.arrays[0]
    if "BackwardInput" in target:
        outputs = lhs
    elif "BackwardFilter" in target:
        kernel, outputs = outputs, rhs
    return kernel, outputs, max(_output_features(instruction, kernel), 1)


def oversized_window(instruction: Instruction) -> list[int]:
    """Returns the window of a convolution by cuDNN if it is much larger than the result.

    XLA computes some gradients of filters in this form, with the cotangent as the window.

    Returns:
        Its sizes, ``[128, 128, 128]``; empty for other instructions.
    """
    called = instruction.target if instruction.opcode == "custom-call" else ""
    if not called.startswith(_FORWARD_BY_CUDNN):
        return []
    window = instruction.attribute("window")
    sizes = _window_numbers(window, "size")
    labels = instruction.attribute("dim_labels").partition("->")[2]
    result = instruction.arrays[0].shape
    positions = math.prod(result[labels.index(str(axis))] for axis in range(len(sizes)))
    apart = _window_numbers(window, "stride") == sizes  # as fast as a dot
    is_oversized = math.prod(sizes) >= max(_SMALL_WINDOW, _OVERSIZED * positions)
    return sizes if is_oversized and not apart else []


_FORWARD_BY_CUDNN = ("__cudnn$convForward", "__cudnn$convBiasActivationForward")
_SMALL_WINDOW, _OVERSIZED = 256, 16
"""Elements that a slow window has at least, and how many for each position of the result. A dense
layer after 7 x 7 positions has 49 of them, and is as fast as a dot."""


def _output_features(instruction: Instruction, kernel: Array) -> int:
    """Returns the size of the dimension ``o`` of the kernel in ``dim_labels=b01f_01io->b01f``."""
    if (config := backend_config(instruction).get("onednn_conv_config")) is not None:
        return kernel.shape[int(config["kernel"]["filter"]["output_feature_dim"])]
    found = re.search(r"_(\w+)->", instruction.attribute("dim_labels"))
    if not found or "o" not in found[1]:
        return 1
    return kernel.shape[found[1].index("o")]


def _share_of_products(instruction: Instruction, lhs: Array, result: Array) -> float:
    """Returns the number of products with elements, without padding and dilation zeros.

    A TPU's compiler may write a pointwise convolution with the kernel as the one element of a
    padded image and the image as the window; then nearly all products are products with padding.
    """
    window = instruction.attribute("window")
    labels = re.search(r"(\w+)_\w+->(\w+)", instruction.attribute("dim_labels"))
    sizes = _window_numbers(window, "size")
    if labels is None or not sizes:
        return 1.0
    ones = [1] * len(sizes)
    strides = _window_numbers(window, "stride") or ones
    dilations = _window_numbers(window, "lhs_dilate") or ones
    apart = _window_numbers(window, "rhs_dilate") or ones
    pads = re.search(r"pad=([\dx_-]+)", window)
    before = [int(pair.split("_")[0]) for pair in pads[1].split("x")] if pads else [0] * len(sizes)
    share = 1.0
    for axis, size in enumerate(sizes):
        inside = lhs.shape[labels[1].index(str(axis))]
        outside = result.shape[labels[2].index(str(axis))]
        meet = _solutions(
            before[axis], (outside, strides[axis]), (size, apart[axis]), (inside, -dilations[axis])
        )
        share *= meet / (outside * size)
    return share


def _solutions(total: int, *terms: tuple[int, int]) -> int:
    """Counts the ways in which numbers below bounds, times factors, add up to a total.

    The loop tries the two numbers with the lowest bounds, and the third follows. It is short, since
    an image is as long as its result, or as a window that is itself an image.
    """
    (low, by_low), (middle, by_middle), (high, by_high) = sorted(terms)
    rest = total - np.arange(low)[:, None] * by_low - np.arange(middle) * by_middle
    third = rest // by_high
    return int(np.sum((rest % by_high == 0) & (third >= 0) & (third < high)))


def _window_numbers(window: str, name: str) -> list[int]:
    """Returns one number for each axis of a window, as in ``stride=2x2``."""
    found = re.search(rf"\b{name}=([\dx]+)", window)
    return [int(n) for n in found[1].split("x")] if found else []


def backend_config(instruction: Instruction) -> dict:
    """Returns the backend attributes of an instruction; empty if none can be read."""
    start = instruction.attributes.find("backend_config=")
    if start < 0:
        return {}
    return _json_at(instruction.attributes[start + len("backend_config=") :])


@functools.lru_cache(maxsize=4096)
def _json_at(text: str) -> dict:
    try:
        found, _ = json.JSONDecoder().raw_decode(text)
        if isinstance(found, str):
            found = json.loads(found)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
