"""Rule: the loss scale that a user asked for, as plain numbers without TensorFlow.

One rule has all three kinds of loss scale. A fixed one is a dynamic one whose floor and cap are
equal, and the scale without scaling is fixed at 1. ``scaling`` has the arithmetic.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from duotone.errors import ArgumentTypeError, kind_of
from duotone.policy.scales import (
    DYNAMIC,
    FACTOR,
    GROWTH_INTERVAL,
    INITIAL_SCALE,
    LARGEST_DYNAMIC_SCALE,
    SMALLEST_DYNAMIC_SCALE,
    check_factor,
    check_interval,
    check_scale,
    word_or_number,
)


@dataclasses.dataclass(frozen=True, slots=True)
class ScaleRule:
    """How a loss scale changes.

    Attributes:
        initial: the first scale.
        growth_interval: finite steps in a row after which it grows.
        factor: the factor by which it grows and shrinks.
        floor: the smallest scale.
        cap: the largest scale.
    """

    initial: float = INITIAL_SCALE
    growth_interval: int = GROWTH_INTERVAL
    factor: float = FACTOR
    floor: float = SMALLEST_DYNAMIC_SCALE
    cap: float = LARGEST_DYNAMIC_SCALE

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for name in ("initial", "floor", "cap"):
            check_scale(name, getattr(self, name))
        check_factor(self.factor)
        check_interval(self.growth_interval)

    @property
    def is_fixed(self) -> bool:
        """True if the scale never changes."""
        return self.floor == self.cap

    @property
    def scales(self) -> bool:
        """True if losses are multiplied."""
        return not (self.is_fixed and self.initial == 1.0)


def fixed(value: float) -> ScaleRule:
    """Returns the rule of a scale that stays."""
    return ScaleRule(initial=value, floor=value, cap=value)


NONE = fixed(1.0)
"""No scaling."""


def rule_of(loss_scale: Any) -> ScaleRule | None:
    """Returns the rule that the argument ``loss_scale`` means.

    Args:
        loss_scale: ``"dynamic"``, a number, None, a loss scale of duotone, one of
            ``tf.compat.v1.mixed_precision``, or the result of :func:`data_of`.

    Returns:
        The rule; None for ``"dynamic"``, whose rule depends on the half type.

    Raises:
        ArgumentTypeError: something else.
        ArgumentError: another word, or a number out of range.
    """
    if loss_scale is None:
        return NONE
    found = word_or_number(loss_scale)
    if found is not None:
        return None if found == DYNAMIC else fixed(float(found))
    if isinstance(loss_scale, Mapping):
        data = dict(loss_scale)
    else:
        data = _of_duotone(loss_scale) or _of_tensorflow(loss_scale) or {}
    kind = data.pop("rule", None)
    if kind not in (DYNAMIC, "fixed", "none"):
        raise ArgumentTypeError(
            'loss_scale must be "dynamic", a positive number, a DynamicLossScale, FixedLossScale '
            f"or NoLossScale, or None; got {kind_of(loss_scale)}."
        )
    if kind == DYNAMIC:
        return ScaleRule(**data)
    return fixed(data["constant"]) if kind == "fixed" else NONE


def data_of(rule: ScaleRule | None) -> Any:
    """Returns a rule as plain data, in the format of Keras optimizers on JAX."""
    if rule is None:
        return DYNAMIC
    if not rule.is_fixed:
        return {"rule": DYNAMIC, **dataclasses.asdict(rule)}
    return {"rule": "fixed", "constant": rule.initial} if rule.scales else {"rule": "none"}


def _of_duotone(loss_scale: Any) -> dict[str, Any] | None:
    scales = sys.modules.get("duotone.scale.state")  # a program that has such an object loaded it
    if scales is None:
        return None
    if isinstance(loss_scale, scales.DynamicLossScale):
        names = [field.name for field in dataclasses.fields(ScaleRule)]
        return {"rule": DYNAMIC} | {name: getattr(loss_scale, name) for name in names}
    if isinstance(loss_scale, scales.FixedLossScale):
        return {"rule": "fixed", "constant": loss_scale.constant}
    return {"rule": "none"} if isinstance(loss_scale, scales.NoLossScale) else None


def _of_tensorflow(loss_scale: Any) -> dict[str, Any] | None:
    read = getattr(loss_scale, "get_config", None)
    config = read() if read is not None and not isinstance(loss_scale, type) else {}
    if "loss_scale_value" in config:
        return {"rule": "fixed", "constant": float(config["loss_scale_value"])}
    if "increment_period" not in config:
        return None
    return {
        "rule": DYNAMIC,
        "initial": float(config["initial_loss_scale"]),
        "growth_interval": int(config["increment_period"]),
        "factor": float(config["multiplier"]),
    }
