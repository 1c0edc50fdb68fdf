"""Wraps an optimizer, unless the user has wrapped it; for ``linen`` and ``nnx_optimizer``."""

from __future__ import annotations

from typing import Any

from duotone.adapters.optax import MixedPrecisionOptimizer, wrap
from duotone.errors import ArgumentError
from duotone.policy.policy import Policy


def wrapped_once(
    tx: Any, loss_scale: Any, dtype: Any, policy: Policy | None, who: str
) -> MixedPrecisionOptimizer:
    """Returns a mixed-precision optimizer.

    Raises:
        ArgumentTypeError: ``tx`` is not an optimizer.
        ArgumentError: ``tx`` is wrapped already, and settings other than the defaults are given.
    """
    if not isinstance(tx, MixedPrecisionOptimizer):
        return wrap(tx, loss_scale, dtype=dtype, policy=policy)
    given = {"loss_scale": loss_scale != "dynamic", "dtype": dtype is not None}
    given["policy"] = policy is not None
    names = [name for name, is_given in given.items() if is_given]
    if names:
        raise ArgumentError(
            f"{who}: the optimizer is wrapped already and has its own {', '.join(names)}. Give "
            "them there, to duotone.enable_mixed_precision_graph_rewrite(...), or pass the bare "
            "Optax optimizer here."
        )
    return tx
