"""duotone: automatic mixed precision for JAX, as a graph rewrite.

One line changes: ``step = duotone.autocast(step)``, or around the optimizer,
``opt = duotone.enable_mixed_precision_graph_rewrite(opt)``. duotone decides which operations and
stored values are float16 or bfloat16, inserts the casts, scales the loss and can say why.

``duotone.keras``, ``duotone.nnx`` and ``duotone.linen`` are loaded when they are first used,
because each imports its library.
"""

import importlib
from types import ModuleType

from duotone._version import __version__ as __version__
from duotone.api import Explanation, autocast, explain
from duotone.calibration import Calibration
from duotone.compiled import CompiledRecord, compile_for
from duotone.enable import (
    MixedPrecisionLossScaleOptimizer,
    enable_mixed_precision_graph_rewrite,
    optimizer,
)
from duotone.errors import DuotoneError
from duotone.inference import cast_params
from duotone.measuring import calibrate
from duotone.policy import Policy
from duotone.regions import keep_full, keep_half
from duotone.scale import (
    DynamicLossScale,
    FixedLossScale,
    LossScale,
    NoLossScale,
    ScaledGrad,
    all_finite,
    dynamic_loss_scale,
    fixed_loss_scale,
    select,
    skip_nonfinite,
    value_and_grad,
)
from duotone.scale.monitor import Monitor
from duotone.static import CastParams

__all__ = [
    "Calibration",
    "CastParams",
    "CompiledRecord",
    "DuotoneError",
    "DynamicLossScale",
    "Explanation",
    "FixedLossScale",
    "LossScale",
    "MixedPrecisionLossScaleOptimizer",
    "Monitor",
    "NoLossScale",
    "Policy",
    "ScaledGrad",
    "all_finite",
    "autocast",
    "calibrate",
    "cast_params",
    "compile_for",
    "dynamic_loss_scale",
    "enable_mixed_precision_graph_rewrite",
    "explain",
    "fixed_loss_scale",
    "keep_full",
    "keep_half",
    "optimizer",
    "select",
    "skip_nonfinite",
    "value_and_grad",
]

_LOADED_WHEN_USED = frozenset({"keras", "linen", "nnx"})


def __getattr__(name: str) -> ModuleType:
    if name in _LOADED_WHEN_USED:
        return importlib.import_module(f"duotone.{name}")
    raise AttributeError(f"module 'duotone' has no attribute {name!r}")
