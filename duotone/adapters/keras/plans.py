"""Plans: whether and how the steps of a model are rewritten.

A model has a plan if it is an ``autocast`` model (``models``), else if it has a wrapped optimizer,
else if every model is rewritten (``everywhere``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from duotone.adapters.keras_checks import optimizers_of
from duotone.errors import ArgumentError
from duotone.policy.arguments import without_heal
from duotone.policy.policy import Policy

PLAN = "_duotone_plan"
"""The class attribute of an ``autocast`` model that makes its plan."""


class WrappedBase:
    """The base of the wrapped optimizer, by which plans recognize it; they do not import it."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepPlan:
    """How the steps of one model are treated.

    Attributes:
        half: ``"float16"``, ``"bfloat16"``, or ``None`` to rewrite nothing.
        policy: which operations may be painted.
        skips: the wrapped optimizer that knows whether a step was skipped, if the model was
            compiled with one.
        asks_device: whether ``half`` is the device's choice; operations that do not gain on the
            device then stay full.
    """

    half: str | None
    policy: Policy | None = None
    skips: WrappedBase | None = None
    asks_device: bool = False


everywhere: list[Any] = []
"""Empty, or the switches of the process, which have ``plan_of`` and ``wrap_optimizer``."""


def plan_of(model: Any) -> StepPlan | None:
    """Returns the plan of a model, or ``None`` if it is not rewritten.

    Raises:
        ArgumentError: it has wrapped optimizers that ask for different plans.
    """
    optimizers = list(wrapped_optimizers(model))
    own = getattr(type(model), PLAN, None)
    if own is not None:
        return dataclasses.replace(own(), skips=_skips(model, optimizers))
    if not optimizers:
        return everywhere[0].plan_of(model) if everywhere else None
    chosen = {(optimizer.half, optimizer.policy) for optimizer in optimizers}
    if len(chosen) > 1:
        names = ", ".join(repr(optimizer.name) for optimizer in optimizers)
        raise ArgumentError(
            f"model {model.name!r} has optimizers that were wrapped with different dtypes or "
            f"policies: {names}. Its step is one program: wrap them with the same dtype and policy."
        )
    half, policy = chosen.pop()
    asks_device = all(optimizer.asks_device for optimizer in optimizers)
    skips = _skips(model, optimizers)
    if skips is None and policy is not None and policy.heal:
        raise ArgumentError(
            f"model {model.name!r}: Policy(heal={policy.heal}) needs exactly one wrapped "
            f"optimizer, with which the model was compiled; this model has {len(optimizers)}. "
            "Leave heal out; duotone.keras.blame(model, x, y) prints what to keep full."
        )
    return StepPlan(half, without_heal(policy), skips, asks_device)


def _skips(model: Any, optimizers: list[Any]) -> WrappedBase | None:
    """Returns the optimizer that the model is compiled with, if it is the only one."""
    if len(optimizers) == 1 and optimizers[0] is getattr(model, "optimizer", None):
        return optimizers[0]
    return None


def wrapped_optimizers(model: Any) -> Iterator[Any]:
    """Returns the wrapped optimizers in a model's ``optimizer`` and attributes, each once."""
    found: list[Any] = []
    for optimizer in optimizers_of(model):
        if isinstance(optimizer, WrappedBase) and not any(optimizer is other for other in found):
            found.append(optimizer)
            yield optimizer
