"""Plans: whether and how the steps of a model are rewritten.

A model has a plan if it is an ``autocast`` model (``models``), if it holds a wrapped optimizer, or
if every model is rewritten (``everywhere``); asked in this order by ``hooks`` and ``steps``.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras

from duotone.blaming.healing import Healer
from duotone.errors import ArgumentError
from duotone.policy.arguments import without_heal
from duotone.policy.policy import Policy

PLAN = "_duotone_plan"
"""Attribute of the class of an ``autocast`` model: makes its plan."""


class Wrapped(abc.ABC):
    """Base of the wrapped optimizer: how the models that hold it are rewritten."""

    last_finite: Any
    """Keras variable, ``bool[]``: whether the last step was taken."""

    @property
    @abc.abstractmethod
    def half(self) -> str | None:
        """``"float16"``, ``"bfloat16"``, or ``None`` where programs stay as they are."""

    @property
    @abc.abstractmethod
    def asks_device(self) -> bool:
        """True if the half type is the device's choice, not the user's."""

    healer: Healer
    """Watches the steps."""

    @property
    @abc.abstractmethod
    def policy(self) -> Policy | None:
        """The policy that was passed, with what was healed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """How the steps of one model are treated.

    Attributes:
        half: ``"float16"``, ``"bfloat16"``, or ``None`` to leave programs as they are.
        policy: what may be painted.
        skips: the wrapped optimizer that says whether a step was skipped, if the model was
            compiled with one.
        asks_device: whether ``half`` is the device's choice: what does not gain there then stays
            full.
    """

    half: str | None
    policy: Policy | None = None
    skips: Wrapped | None = None
    asks_device: bool = False


def no_plan(model: Any) -> Plan | None:
    """The plan of a model that asks for none, unless ``everywhere`` is on."""
    del model
    return None


_default: Callable[[Any], Plan | None] = no_plan


def set_default(default: Callable[[Any], Plan | None]) -> None:
    """Sets what gives a plan to models that do not ask for one themselves."""
    global _default
    _default = default


def plan_of(model: Any) -> Plan | None:
    """The plan of a model, or ``None`` where it is left alone.

    Raises:
        ArgumentError: it holds wrapped optimizers that ask for different plans.
    """
    optimizers = list(wrapped_optimizers(model))
    own = getattr(type(model), PLAN, None)
    if own is not None:
        return dataclasses.replace(own(), skips=_skips(model, optimizers))
    if not optimizers:
        return _default(model)
    chosen = {(optimizer.half, optimizer.policy) for optimizer in optimizers}
    if len(chosen) > 1:
        names = ", ".join(repr(optimizer.name) for optimizer in optimizers)
        raise ArgumentError(
            f"model {model.name!r} holds optimizers that were wrapped with different dtypes or "
            f"policies: {names}. Its step is one program: wrap them with the same dtype and policy."
        )
    half, policy = chosen.pop()
    asks_device = all(optimizer.asks_device for optimizer in optimizers)
    skips = _skips(model, optimizers)
    if skips is None and policy is not None and policy.heal:
        raise ArgumentError(
            f"model {model.name!r}: Policy(heal={policy.heal}) watches the one optimizer that a "
            f"model was compiled with, and this model holds {len(optimizers)} and is not compiled "
            "with one alone. Leave heal out; duotone.keras.blame(model, x, y) prints what to keep "
            "full."
        )
    return Plan(half, without_heal(policy), skips, asks_device)


def _skips(model: Any, optimizers: list[Any]) -> Wrapped | None:
    """The optimizer whose skipped step is the model's: the only one, if compiled with it."""
    if len(optimizers) == 1 and optimizers[0] is getattr(model, "optimizer", None):
        return optimizers[0]
    return None


def wrapped_optimizers(model: Any) -> Iterator[Any]:
    """Wrapped optimizers that a model was compiled with or keeps in attributes, each once."""
    found: list[Any] = []
    for optimizer in optimizers_of(model):
        if isinstance(optimizer, Wrapped) and not any(optimizer is other for other in found):
            found.append(optimizer)
            yield optimizer


def optimizers_of(model: Any) -> Iterator[Any]:
    """All Keras optimizers in attributes of a model, also in lists and dicts there."""
    for held in list(vars(model).values()):
        if isinstance(held, keras.optimizers.Optimizer):
            yield held
        elif isinstance(held, (list, tuple, dict)):
            inside = held.values() if isinstance(held, dict) else held
            yield from (one for one in inside if isinstance(one, keras.optimizers.Optimizer))
