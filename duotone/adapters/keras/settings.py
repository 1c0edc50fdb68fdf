"""The user's settings, checked once, and as plain data for a model's config.

A Keras model is saved with the config of its optimizer, so the loss scale, the half type and the
policy must turn into strings and numbers and back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from duotone.adapters import ENABLE
from duotone.errors import ArgumentTypeError, kind_of
from duotone.policy.plain_data import policy_of
from duotone.policy.policy import Policy
from duotone.policy.scales import DYNAMIC
from duotone.scale import DynamicLossScale, FixedLossScale, LossScale, NoLossScale, choice
from duotone.transforms import autocast as api

KerasLossScale = DynamicLossScale | FixedLossScale | NoLossScale

_LOSS_SCALES: dict[str, type[Any]] = {
    "dynamic": DynamicLossScale,
    "fixed": FixedLossScale,
    "none": NoLossScale,
}


def check_loss_scale(loss_scale: Any) -> KerasLossScale | None:
    """Returns the loss scale that a user named; ``None`` for ``"dynamic"``.

    Args:
        loss_scale: ``"dynamic"``, a positive number, a loss-scale object, ``None`` (no scaling),
            or the data that :func:`loss_scale_data` made of one of them.

    Raises:
        ArgumentTypeError: something else.
        ArgumentError: another string, or a number that is not positive, infinite or NaN.
    """
    if isinstance(loss_scale, Mapping) and "rule" in loss_scale:
        data = dict(loss_scale)
        return _LOSS_SCALES[data.pop("rule")](**data)
    checked = choice.check_loss_scale(loss_scale)
    if checked == DYNAMIC:
        return None
    if isinstance(checked, LossScale) and type(checked) not in _LOSS_SCALES.values():
        raise ArgumentTypeError(
            f"loss_scale is {kind_of(checked)}; a Keras optimizer keeps its state in Keras "
            "variables and its settings in the model's config, which it can do for "
            "DynamicLossScale, FixedLossScale and NoLossScale only. Use one of these, or train "
            "with duotone.value_and_grad(..., scale=...) and a loop of your own."
        )
    made: Any = choice.make_loss_scale(checked, None)
    return made


def loss_scale_data(chosen: KerasLossScale | None) -> Any:
    """Returns a checked loss scale as plain data: its configuration, without its state."""
    if chosen is None:
        return "dynamic"
    (word,) = (name for name, kind in _LOSS_SCALES.items() if kind is type(chosen))
    return {"rule": word} | {
        field.name: getattr(chosen, field.name)
        for field in dataclasses.fields(chosen)
        if field.metadata.get("static")
    }


def loss_scale_of(chosen: KerasLossScale | None, half: str | None) -> KerasLossScale:
    """Returns the loss scale of an optimizer, with its first state.

    ``"dynamic"`` scales for float16 only: bfloat16 has the range of float32.
    """
    made: Any = choice.make_loss_scale("dynamic" if chosen is None else chosen, half)
    return made


def check_dtype(dtype: Any, who: str = ENABLE) -> str | None:
    """Returns the name of a half type, or ``None``; ``who`` is the user's call, for errors."""
    return None if dtype is None else api.half_name(who, dtype, None)


def check_policy(policy: Any, who: str = ENABLE) -> Policy | None:
    """Returns a policy, also from the plain data of one; ``who`` is the user's call, for errors."""
    policy = policy_of(policy)
    api.check_settings(who, None, policy)
    return policy


def half_of(dtype: str | None, policy: Policy | None, what: str) -> str | None:
    """Returns the half type to rewrite to: the one named, or the one that is fast here; or None."""
    if dtype is not None:
        return dtype
    merged = (policy or Policy()).merged_with_environment()
    half = api.half_of_device(merged, what)
    return None if half is None else half.name
