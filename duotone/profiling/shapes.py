"""Converts dots and convolutions to matrix products that Tensor Cores could compute.

Tensor Cores multiply small tiles of 8 or 16 rows, columns and contracted elements. A dot or
convolution is *eligible* if they support its dtype, perhaps after mixed precision, and no side of
its product is smaller than :data:`TILE`. For smaller sides most of a tile would be padding, and
libraries do not use Tensor Cores.

References:
    NVIDIA, *Matrix Multiplication Background User's Guide* (requirements to use Tensor Cores).
"""

from __future__ import annotations

import dataclasses
import math
import re

from duotone.cost.arithmetic import convolution_parts, library_dimensions
from duotone.cost.hlo import Array, Computation, Instruction

TILE = 8
"""The least rows, columns and contracted elements of an eligible product."""
_TAKEN = re.compile(r"f16|bf16|f32|f8\w+|f4\w+|[su][48]")


@dataclasses.dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A dot or convolution as a matrix product, with the dtypes of its operands."""

    rows: int
    columns: int
    contracted: int
    dtypes: tuple[str, str]

    @property
    def eligible(self) -> bool:
        """True if Tensor Cores could compute it, perhaps after mixed precision.

        Example:
            >>> MatrixProduct(128, 64, 256, ("f32", "f32")).eligible
            True
            >>> MatrixProduct(128, 1, 256, ("bf16", "bf16")).eligible
            False
        """
        large = min(self.rows, self.columns, self.contracted) >= TILE
        return large and all(_TAKEN.fullmatch(dtype) for dtype in self.dtypes)

    @property
    def uneven(self) -> bool:
        """True if a side is not a multiple of :data:`TILE`, which leaves tiles partly empty."""
        return any(side % TILE for side in (self.rows, self.columns, self.contracted))


def product_of(instruction: Instruction, computation: Computation) -> MatrixProduct | None:
    """Converts an instruction to a product; ``None`` if it is not a dot or convolution."""
    target = instruction.target if instruction.opcode == "custom-call" else ""
    if instruction.opcode != "dot" and not target.startswith("__cublas$"):
        if instruction.opcode == "convolution" or target.startswith("__cudnn$conv"):
            return _convolution(instruction, computation, target)
        return _attention(instruction, computation) if target.startswith("__cudnn$fmha") else None
    lhs, rhs = _operands(instruction, computation)
    if instruction.opcode == "dot":
        contracted = instruction.numbers("lhs_contracting_dims")
        batch = instruction.numbers("lhs_batch_dims")
    else:
        contracted = library_dimensions(instruction, "lhs_contracting_dimensions")
        batch = library_dimensions(instruction, "lhs_batch_dimensions")
    summed = math.prod(lhs.shape[d] for d in contracted)
    times = math.prod(lhs.shape[d] for d in batch)
    per = max(summed * times, 1)
    return MatrixProduct(lhs.size // per, rhs.size // per, summed, (lhs.dtype, rhs.dtype))


def _operands(instruction: Instruction, computation: Computation) -> tuple[Array, Array]:
    lhs, rhs = (computation.operand(instruction, n).arrays[0] for n in (0, 1))
    return lhs, rhs


def _convolution(instruction: Instruction, computation: Computation, target: str) -> MatrixProduct:
    """Converts a convolution to the implicit product that libraries compute.

    The rows are the pixels of the result and the columns its features. The contraction is over the
    window and the input features of one group.
    """
    lhs, rhs = _operands(instruction, computation)
    kernel, output, features = convolution_parts(instruction, computation, target)
    groups = 1
    for name in ("feature_group_count", "batch_group_count"):
        groups *= max((instruction.numbers(name) or (1,))[0], 1)
    return MatrixProduct(
        rows=output.size // features,
        columns=features // groups,
        contracted=kernel.size // features,
        dtypes=(lhs.dtype, rhs.dtype),
    )


def _attention(instruction: Instruction, computation: Computation) -> MatrixProduct:
    """Represents a fused attention by its first dot, queries by keys; only the dtypes matter."""
    query, key = _operands(instruction, computation)
    return MatrixProduct(query.shape[-1], key.shape[-1], query.shape[-1], (query.dtype, key.dtype))
