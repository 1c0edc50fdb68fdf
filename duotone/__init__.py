"""duotone: automatic mixed precision for JAX, as a graph rewrite.

One word changes: ``duotone.grad(loss)`` in place of ``jax.grad(loss)``; or one line, around any
function, ``step = duotone.autocast(step)``, or around the optimizer,
``opt = duotone.enable_mixed_precision_graph_rewrite(opt)``. duotone decides which operations and
stored values are float16 or bfloat16, inserts the casts, scales the loss and can say why.

Each public name is loaded on first use. ``duotone.keras``, ``duotone.nnx`` and ``duotone.linen``
import their libraries, and most other names import JAX, which reads its environment variables
(``JAX_PLATFORMS``, ``JAX_ENABLE_X64``) at that moment. So a script under ``duotone run`` can still
set them, and ``duotone rewrite`` does not need JAX.
"""

import importlib
import importlib.util
from types import ModuleType
from typing import TYPE_CHECKING, Any

from duotone._version import __version__ as __version__
from duotone.adapters.keras_import import name_backend, name_optimizer
from duotone.adapters.on_import import when_imported

if TYPE_CHECKING:
    from duotone.adapters.enable import (
        MixedPrecisionLossScaleOptimizer,
        enable_mixed_precision_graph_rewrite,
        optimizer_from_environment,
    )
    from duotone.adapters.optax import Minimized, MixedPrecisionOptimizer
    from duotone.advising.advise import Advice, advise
    from duotone.blaming.blame import Blame, blame
    from duotone.calibrating.measure import calibrate
    from duotone.comparing.compare import Comparison, compare
    from duotone.compiling.bucketed import bucketed
    from duotone.compiling.cache import use_cache
    from duotone.compiling.cluster_jit import cluster_jit, cluster_scope
    from duotone.compiling.clusters import clusters
    from duotone.compiling.flags import check_xla_flags
    from duotone.compiling.log import log_compilations
    from duotone.compiling.reroll import reroll
    from duotone.devices import Target
    from duotone.devices.options import compiler_options
    from duotone.errors import DuotoneError
    from duotone.exporting.export import export
    from duotone.exporting.exported import (
        Exported,
        ExportedOnnx,
        ExportedSavedModel,
        read_export,
    )
    from duotone.policy.calibration import Calibration
    from duotone.policy.policy import Policy
    from duotone.policy.regions import keep_full, keep_half
    from duotone.profiling.profile import Profile, profile, read_profile
    from duotone.reporting.report import report
    from duotone.scale import (
        DynamicLossScale,
        FixedLossScale,
        LossScale,
        NoLossScale,
        ScaledGrad,
        SkipState,
        all_finite,
        dynamic_loss_scale,
        fixed_loss_scale,
        select_tree,
        skip_nonfinite,
    )
    from duotone.scale.monitor import LossScaleMonitor
    from duotone.transforms.autocast import Explanation, autocast, explain
    from duotone.transforms.compile_for import CompiledRecord, compile_for
    from duotone.transforms.grad import grad, value_and_grad
    from duotone.transforms.inference import cast_params
    from duotone.transforms.static_weights import CastParams

__all__ = [
    "Advice",
    "Blame",
    "Calibration",
    "CastParams",
    "Comparison",
    "CompiledRecord",
    "DuotoneError",
    "DynamicLossScale",
    "Explanation",
    "Exported",
    "ExportedOnnx",
    "ExportedSavedModel",
    "FixedLossScale",
    "LossScale",
    "LossScaleMonitor",
    "Minimized",
    "MixedPrecisionLossScaleOptimizer",
    "MixedPrecisionOptimizer",
    "NoLossScale",
    "Policy",
    "Profile",
    "ScaledGrad",
    "SkipState",
    "Target",
    "advise",
    "all_finite",
    "autocast",
    "blame",
    "bucketed",
    "calibrate",
    "cast_params",
    "check_xla_flags",
    "cluster_jit",
    "cluster_scope",
    "clusters",
    "compare",
    "compile_for",
    "compiler_options",
    "dynamic_loss_scale",
    "enable_mixed_precision_graph_rewrite",
    "explain",
    "export",
    "fixed_loss_scale",
    "grad",
    "keep_full",
    "keep_half",
    "log_compilations",
    "optimizer_from_environment",
    "profile",
    "read_export",
    "read_profile",
    "report",
    "reroll",
    "select_tree",
    "skip_nonfinite",
    "use_cache",
    "value_and_grad",
]

_NAMES_BY_MODULE = {
    "advising.advise": "Advice advise",
    "transforms.static_weights": "CastParams",
    "adapters.optax": "Minimized MixedPrecisionOptimizer",
    "transforms.autocast": "Explanation autocast explain",
    "blaming.blame": "Blame blame",
    "policy.calibration": "Calibration",
    "comparing.compare": "Comparison compare",
    "transforms.compile_for": "CompiledRecord compile_for",
    "compiling.bucketed": "bucketed",
    "compiling.cache": "use_cache",
    "compiling.cluster_jit": "cluster_jit cluster_scope",
    "compiling.clusters": "clusters",
    "compiling.flags": "check_xla_flags",
    "compiling.log": "log_compilations",
    "compiling.reroll": "reroll",
    "adapters.enable": "MixedPrecisionLossScaleOptimizer enable_mixed_precision_graph_rewrite "
    "optimizer_from_environment",
    "errors": "DuotoneError",
    "exporting.export": "export",
    "exporting.exported": "Exported ExportedOnnx ExportedSavedModel read_export",
    "transforms.grad": "grad value_and_grad",
    "transforms.inference": "cast_params",
    "calibrating.measure": "calibrate",
    "policy.policy": "Policy",
    "profiling.profile": "Profile profile read_profile",
    "reporting.report": "report",
    "policy.regions": "keep_full keep_half",
    "scale": "DynamicLossScale FixedLossScale LossScale NoLossScale ScaledGrad SkipState "
    "all_finite dynamic_loss_scale fixed_loss_scale select_tree skip_nonfinite",
    "scale.monitor": "LossScaleMonitor",
    "devices": "Target",
    "devices.options": "compiler_options",
}
_SUBMODULES = ("errors", "keras", "linen", "nnx", "onnx")
"""Modules that a user names in full, as ``duotone.nnx.explain``."""
_MODULE_OF = {name: home for home, names in _NAMES_BY_MODULE.items() for name in names.split()}


def _extend_jax() -> None:
    """Imports duotone's context once JAX is imported.

    JAX keys its caches by the values of its contexts, so a context that first appears inside a
    trace would make JAX trace anew.
    """
    importlib.import_module("duotone._jax")


when_imported("jax", _extend_jax)
when_imported("keras", name_optimizer, failed=name_backend)


def __getattr__(name: str) -> ModuleType:
    value: Any
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"duotone.{_MODULE_OF[name]}"), name)
    elif not name.startswith("_") and importlib.util.find_spec(f"duotone.{name}") is not None:
        value = importlib.import_module(f"duotone.{name}")
    else:
        raise AttributeError(f"module 'duotone' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBMODULES, "__doc__", "__version__"})
