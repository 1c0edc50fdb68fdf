"""``Policy(float32_math=...)`` on a device: how float32 dots and convolutions compute.

The arrays stay float32. The hardware rounds the operands to TensorFloat-32, float16 or bfloat16 and
sums in float32, or does not round them. In JAX this is a dot algorithm or, if there is none
(convolutions, TPUs), a precision. This table has their names. If a device does not support a
choice, JAX's default stays, with one line in the log.

:mod:`duotone.jaxpr.rules.dots` turns the names into JAX objects.

References:
    ``jax.lax.DotAlgorithmPreset`` and ``jax.lax.Precision``; ``duotone.compile_for`` (H200, v5e)
    and runs on CPUs showed which of them a compiler accepts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

logger = logging.getLogger("duotone")

_DOT, _CONVOLUTION = "dot_general", "conv_general_dilated"
_TENSOR_CORES_8 = {
    "tf32": "TF32_TF32_F32",
    "float16": "F16_F16_F32",
    "bfloat16": "BF16_BF16_F32",
    "exact": "F32_F32_F32",
}
_DOTS: dict[str, Mapping[str, str]] = {
    "cuda 8": _TENSOR_CORES_8,
    "cuda 7": {name: _TENSOR_CORES_8[name] for name in ("float16", "exact")},
    "cuda": {"exact": "F32_F32_F32"},
    "rocm": {"exact": "F32_F32_F32"},
    "tpu": {"tf32": "HIGH", "bfloat16": "DEFAULT", "exact": "HIGHEST"},
    "cpu": {"exact": "HIGHEST"},
}
"""By kind of device. JAX documents ``HIGH`` on TPUs as the counterpart of TensorFloat-32: three
passes of bfloat16."""
_CONVOLUTIONS: dict[str, Mapping[str, str]] = {
    "cuda 8": {"tf32": "DEFAULT", "exact": "HIGHEST"},
    "cuda 7": {"exact": "HIGHEST"},
    "cuda": {"exact": "HIGHEST"},
    "rocm": {"exact": "HIGHEST"},
    "tpu": _DOTS["tpu"],
    "cpu": {"exact": "HIGHEST"},
}


def kind_of(platform: str, compute_capability: str) -> str:
    """Returns the row of a device.

    Args:
        platform: JAX's platform name.
        compute_capability: JAX's compute capability of a GPU.
    """
    if platform not in ("gpu", "cuda", "rocm"):
        return platform
    if platform == "rocm" or compute_capability.startswith("gfx"):
        return "rocm"
    major = compute_capability.split(".")[0]
    if not major.isdigit() or int(major) < 7:
        return "cuda"
    return "cuda 8" if int(major) >= 8 else "cuda 7"


def math_of(
    platform: str, compute_capability: str, dots: str | None, convolutions: str | None
) -> tuple[tuple[str, str], ...]:
    """Returns the algorithm or precision of float32 dots and convolutions.

    Args:
        platform: JAX's platform name.
        compute_capability: the compute capability of a GPU.
        dots: ``Policy.float32_math``; ``None`` does not change dots.
        convolutions: ``Policy.convolution_math``; ``None`` for the same as ``dots``.

    Returns:
        Pairs of an operation's name and the name of its algorithm or precision.

    Example:
        >>> math_of("cuda", "9.0", "tf32", "exact")
        (('dot_general', 'TF32_TF32_F32'), ('conv_general_dilated', 'HIGHEST'))
    """
    kind = kind_of(platform, compute_capability)
    found = []
    for op, rows, asked, field in (
        (_DOT, _DOTS, dots, "float32_math"),
        (_CONVOLUTION, _CONVOLUTIONS, convolutions or dots, "convolution_math"),
    ):
        if asked is None:
            continue
        name = rows.get(kind, {}).get(asked)
        if name is not None:
            found.append((op, name))
        elif op == _DOT or convolutions is not None:
            shown = ", ".join(rows.get(kind, {})) or "none"
            logger.warning("%s=%r has no effect on this %s; it has %s", field, asked, kind, shown)
    return tuple(found)
