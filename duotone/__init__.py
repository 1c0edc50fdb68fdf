"""duotone: automatic mixed precision for JAX, as a graph rewrite.

One line changes: ``step = duotone.autocast(step)``. duotone decides which operations and stored
values are float16 or bfloat16, inserts the casts, scales the loss and can say why.
"""

from duotone._version import __version__ as __version__
from duotone.api import Explanation, autocast, explain
from duotone.errors import DuotoneError
from duotone.policy import Policy
from duotone.regions import keep_full, keep_half
from duotone.scale import (
    DynamicLossScale,
    FixedLossScale,
    LossScale,
    NoLossScale,
    ScaledGrad,
    all_finite,
    select,
    value_and_grad,
)

__all__ = [
    "DuotoneError",
    "DynamicLossScale",
    "Explanation",
    "FixedLossScale",
    "LossScale",
    "NoLossScale",
    "Policy",
    "ScaledGrad",
    "all_finite",
    "autocast",
    "explain",
    "keep_full",
    "keep_half",
    "select",
    "value_and_grad",
]
