"""The names of dtypes that duotone accepts: half types, and float32 for "off".

This module sees names only. :mod:`duotone.policy.arguments` converts dtype objects of NumPy and JAX
to names.
"""

from __future__ import annotations

HALF_NAMES = {
    "float16": "float16",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
}
"""The half type that each name means."""

OFF_NAMES = frozenset({"float32", "fp32", "f32", "single"})
"""Names of the dtype that switches mixed precision off."""

OFF = "float32"


def canonical(name: str) -> str:
    """Returns the dtype that a name means, or the name itself if it is unknown.

    Example:
        >>> canonical("bf16"), canonical(" Half "), canonical("fp32"), canonical("int8")
        ('bfloat16', 'float16', 'float32', 'int8')
    """
    plain = name.strip().lower()
    return OFF if plain in OFF_NAMES else HALF_NAMES.get(plain, name)
