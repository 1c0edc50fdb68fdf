"""The three loss scales: dynamic, fixed and none. Frozen values with the same methods in one order.

Each is a pytree derived from its dataclass: fields marked static are configuration (part of the
structure: another value compiles another program), all others are arrays that ``jit``, ``scan``,
``vmap`` and checkpoints carry. No flatten function lists the fields, so none can be forgotten.

The rule of :class:`DynamicLossScale`, with the scale s and the count g of good steps in a row::

    finite:      g += 1;  if g == growth_interval: s = min(s * factor, cap), g = 0
    not finite:  s = max(s / factor, floor), g = 0, skipped += 1

It is the rule of TensorFlow's and PyTorch's scalers, with two bounds that they lack, and a first
step that falls further where its loss is large (:meth:`DynamicLossScale.fitted_to`). Without the
floor, 170 bad steps in a row bring the scale to 0 and the next good step divides by it; without the
cap, easy gradients bring it to infinity.

Who extends this: a rule of your own is a subclass of :class:`LossScale` with ``value`` and
``adjust``.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from duotone.errors import ArgumentError
from duotone.policy.regions import scaling_loss, updating
from duotone.scale.configuration import (
    check_factor,
    check_interval,
    check_scale,
    with_names_of_tensorflow,
)
from duotone.scale.leaves import divide, multiply, to_full
from duotone.scale.powers import log2_above, power_of_two, powers_held_by
from duotone.scale.selection import check_predicate

_STATIC = {"static": True}

ORDINARY_LOSS = 16.0
"""Losses that are means over examples begin below it: a cross entropy of 50,000 classes at 10.8."""

# Marks a state array that the caller left out. Not None: pytree transformations rebuild a loss
# scale with None, integers (axes), bare objects and tracers in place of its arrays, and these must
# come through untouched.
_INITIAL: Any = object()


class LossScale(abc.ABC):
    """A positive scalar by which a loss is multiplied, and the rule that adjusts it.

    A subclass is a frozen dataclass registered with ``jax.tree_util.register_dataclass`` that gives
    :attr:`value` and :meth:`adjust`, and :meth:`limited_to` where its value may exceed what a half
    type holds. Do not override :meth:`scale` without :meth:`unscale`.
    """

    @property
    @abc.abstractmethod
    def value(self) -> jax.Array:
        """The scale, ``float32[]``, positive."""

    def scale(self, tree: Any) -> Any:
        """Multiplies the floating leaves of a tree (usually one loss) by the scale.

        Half leaves become float32 first: a float16 loss times 2**15 would be infinite.

        Args:
            tree: any pytree; leaves that are neither floating nor complex pass through.

        Returns:
            The scaled tree; half leaves as float32, all others in their own dtype.
        """
        with scaling_loss():
            return multiply(tree, self.value)

    def unscale(self, tree: Any) -> Any:
        """Divides the floating leaves of a tree (usually the gradients) by the scale.

        Call it on the loss scale that scaled the loss, before :meth:`adjust`: the adjusted one may
        hold another scale, and every gradient would be off by the factor.

        Args:
            tree: any pytree; leaves that are neither floating nor complex pass through.

        Returns:
            The unscaled tree; half leaves as float32, because a true gradient may be too small for
            the half type that held the scaled one; all others in their own dtype.
        """
        with updating():
            return divide(tree, self.value)

    @abc.abstractmethod
    def adjust(self, grads_finite: Any) -> Self:
        """The loss scale for the next step.

        Args:
            grads_finite: ``bool[]``, whether every gradient of this step was finite. It must be
                the same on all devices (see :func:`duotone.scale.all_finite`).

        Returns:
            A new loss scale of the same structure.
        """

    def fitted_to(self, loss: Any, grads_finite: Any, last_finite: Any = True) -> LossScale:
        """The loss scale to adjust, after a step of which the loss is known.

        Args:
            loss: ``floating[]``, unscaled; the same on all devices.
            grads_finite: as for :meth:`adjust`, which is called next.
            last_finite: ``bool[]``, the same of the step before.

        Returns:
            A loss scale that a large loss of a first step may have lowered; itself for those that
            do not look for their own value.
        """
        del loss, grads_finite, last_finite
        return self

    def limited_to(self, dtype: Any) -> LossScale:
        """The loss scale with which a loss of this dtype is scaled.

        The gradient of a loss has the dtype of the loss, so the scale itself must fit into it:
        float16 ends at 65504 and would make infinity of 2**16.

        Args:
            dtype: the floating dtype of the loss.

        Returns:
            A loss scale whose value `dtype` holds exactly, from its smallest normal number to its
            largest power of two (2**-14 to 2**15 for float16); itself for float32 and float64.
        """
        del dtype
        return self


@with_names_of_tensorflow(
    initial_loss_scale="initial", increment_period="growth_interval", multiplier="factor"
)
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DynamicLossScale(LossScale):
    """A loss scale that finds its own value: divided on overflow, multiplied after good steps.

    Args:
        initial: the first scale. The default, 2**15, is TensorFlow's.
        growth_interval: finite steps in a row after which the scale grows (2000, as in
            Micikevicius et al.).
        factor: by which the scale is multiplied and divided. A power of two changes no bits of the
            gradients.
        floor: the scale never falls below it; at least 2**-126. Below 1 it helps where gradients
            overflow even unscaled, which then costs small ones.
        cap: the scale never rises above it; at most 2**126.
        value: the scale, ``float32[]``. Leave it out to begin at `initial`.
        good_steps: finite steps since the scale last changed or a step was skipped, ``int32[]``.
        skipped: steps that were not finite, all together, ``int32[]``.

    TensorFlow's names of the first three, ``initial_loss_scale``, ``increment_period`` and
    ``multiplier``, are taken as well.

    Raises:
        ArgumentTypeError: a configuration value is not a number.
        ArgumentError: a configuration value out of range, `initial` outside [floor, cap], or one
            value given under both of its names.

    Example:
        >>> from duotone.scale import DynamicLossScale
        >>> state = DynamicLossScale(1024, growth_interval=2)
        >>> float(state.adjust(False).value)
        512.0
        >>> float(state.adjust(True).value), float(state.adjust(True).adjust(True).value)
        (1024.0, 2048.0)

    References:
        Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2.
    """

    initial: float = dataclasses.field(default=2.0**15, metadata=_STATIC)
    growth_interval: int = dataclasses.field(default=2000, metadata=_STATIC)
    factor: float = dataclasses.field(default=2.0, metadata=_STATIC)
    floor: float = dataclasses.field(default=1.0, metadata=_STATIC)
    cap: float = dataclasses.field(default=2.0**24, metadata=_STATIC)
    # Only pytree fields below this line. pyright sees an attribute in place of the abstract
    # property; instances of a frozen dataclass are as read-only as the property is.
    value: jax.Array = dataclasses.field(default=_INITIAL, kw_only=True)  # pyright: ignore
    good_steps: jax.Array = dataclasses.field(default=_INITIAL, kw_only=True)
    skipped: jax.Array = dataclasses.field(default=_INITIAL, kw_only=True)

    def __post_init__(self) -> None:
        # Configuration is checked always (dataclasses.replace comes through here as well), state
        # never: it may be anything that a pytree transformation puts there.
        _normalise(
            self,
            initial=check_scale("initial", self.initial),
            growth_interval=check_interval(self.growth_interval),
            factor=check_factor(self.factor),
            floor=check_scale("floor", self.floor),
            cap=check_scale("cap", self.cap),
        )
        if not self.floor <= self.initial <= self.cap:
            raise ArgumentError(
                f"initial must lie between floor and cap; got initial={self.initial:g}, "
                f"floor={self.floor:g}, cap={self.cap:g}. Move initial inside, or widen the bounds."
            )
        if self.value is _INITIAL:
            _normalise(self, value=jnp.asarray(self.initial, jnp.float32))
        _begin_counts(self)

    def adjust(self, grads_finite: Any) -> DynamicLossScale:
        """Divides the scale after a step that was not finite; multiplies it when its time came."""
        finite = check_predicate(grads_finite, "grads_finite")
        with updating():
            scale = jnp.asarray(self.value, jnp.float32)
            counts = _counted(self, finite)
            good = counts["good_steps"]
            grow = good >= self.growth_interval
            scale = jnp.where(finite, scale, scale / self.factor)
            scale = jnp.where(grow, scale * self.factor, scale)
            # Written so that NaN (a damaged checkpoint) ends at the floor: a compiled step cannot
            # raise, and NaN would otherwise skip every step to come.
            scale = jnp.where(scale >= self.floor, scale, self.floor)
            scale = jnp.minimum(scale, self.cap)
            counts["good_steps"] = jnp.where(grow, 0, good)
            return dataclasses.replace(self, value=scale, **counts)

    def fitted_to(self, loss: Any, grads_finite: Any, last_finite: Any = True) -> DynamicLossScale:
        """Lowers the first scale in one go where it was too large for a large loss.

        If the very first step overflows, and its loss l is above 16, :meth:`adjust` then gives
        ``2**15 / sqrt(l / 16)``; if the next one overflows too, ``2**15 / (l / 16)``; both rounded
        down to a power of two, and half the scale at most.

        Args:
            loss: as in :class:`LossScale`.
            grads_finite: likewise.
            last_finite: likewise.

        Returns:
            A loss scale to adjust; the same but in these cases.

        Example:
            >>> from duotone.scale import DynamicLossScale
            >>> float(DynamicLossScale().fitted_to(1e4, False).adjust(False).value)
            1024.0
        """
        finite = check_predicate(grads_finite, "grads_finite")
        with updating():
            size = jnp.abs(jnp.asarray(loss, jnp.float32)) / ORDINARY_LOSS
            above = jnp.maximum(log2_above(size), 0)
            first = (self.good_steps == 0) & (self.skipped == 0) & (self.value == self.initial)
            second = (self.skipped == 1) & ~check_predicate(last_finite, "last_finite")
            lowered = power_of_two(15 - jnp.where(first, (above + 1) >> 1, above))
            value = jnp.minimum(self.value, lowered * self.factor)
            large = jnp.isfinite(size) & (above > 0)
            value = jnp.where((first | second) & ~finite & large, value, self.value)
            return dataclasses.replace(self, value=value)

    def limited_to(self, dtype: Any) -> DynamicLossScale:
        """The same scale, rounded to `dtype` and within its powers of two."""
        kind = jnp.finfo(dtype)
        if _holds_any_scale(kind):
            return self
        with updating():
            value = jnp.clip(self.value, *powers_held_by(kind))
            # Not a pair of casts: XLA may remove those, and the gradients would then be unscaled
            # with another number than the one that scaled the loss.
            value = lax.reduce_precision(value, int(kind.nexp), int(kind.nmant))
            return dataclasses.replace(self, value=value)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FixedLossScale(LossScale):
    """A loss scale that stays as it is; steps that are not finite are still skipped and counted.

    Args:
        constant: the scale, from 2**-126 to 2**126. Part of the compiled program. Below 1 it makes
            large gradients fit, and loses small ones.
        good_steps: finite steps since a step was skipped, ``int32[]``.
        skipped: steps that were not finite, all together, ``int32[]``.

    Raises:
        ArgumentTypeError: `constant` is not a number.
        ArgumentError: `constant` is out of range.

    Example:
        >>> from duotone.scale import FixedLossScale
        >>> state = FixedLossScale(128).adjust(False)
        >>> float(state.value), int(state.skipped)
        (128.0, 1)
    """

    constant: float = dataclasses.field(metadata=_STATIC)
    good_steps: jax.Array = dataclasses.field(default=_INITIAL, kw_only=True)
    skipped: jax.Array = dataclasses.field(default=_INITIAL, kw_only=True)

    def __post_init__(self) -> None:
        _normalise(self, constant=check_scale("constant", self.constant))
        _begin_counts(self)

    @property
    def value(self) -> jax.Array:
        """The scale, ``float32[]``."""
        return jnp.asarray(self.constant, jnp.float32)

    def adjust(self, grads_finite: Any) -> FixedLossScale:
        """Counts the step as good or as skipped."""
        finite = check_predicate(grads_finite, "grads_finite")
        return dataclasses.replace(self, **_counted(self, finite))

    def limited_to(self, dtype: Any) -> FixedLossScale:
        """The same scale, rounded to `dtype` and within its powers of two."""
        kind = jnp.finfo(dtype)
        if _holds_any_scale(kind):
            return self
        smallest, largest = powers_held_by(kind)
        limited = max(smallest, min(self.constant, largest))
        return dataclasses.replace(self, constant=float(np.asarray(limited).astype(kind.dtype)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NoLossScale(LossScale):
    """No scaling, for float32 and bfloat16; steps that are not finite are still counted.

    It stands where a loss scale is expected, so one training step serves every precision. Half
    leaves become float32 as with the other loss scales; no multiplication enters the program.

    Args:
        good_steps: finite steps since a step was skipped, ``int32[]``.
        skipped: steps that were not finite, all together, ``int32[]``.

    Example:
        >>> from duotone.scale import NoLossScale
        >>> float(NoLossScale().value), float(NoLossScale().scale(3.0))
        (1.0, 3.0)
    """

    good_steps: jax.Array = dataclasses.field(default=_INITIAL, kw_only=True)
    skipped: jax.Array = dataclasses.field(default=_INITIAL, kw_only=True)

    def __post_init__(self) -> None:
        _begin_counts(self)

    @property
    def value(self) -> jax.Array:
        """One, ``float32[]``."""
        return jnp.ones((), jnp.float32)

    def scale(self, tree: Any) -> Any:
        """Casts half leaves to float32, like the other loss scales, and changes nothing else."""
        with updating():
            return to_full(tree)

    def unscale(self, tree: Any) -> Any:
        """Casts half leaves to float32, like the other loss scales, and changes nothing else."""
        with updating():
            return to_full(tree)

    def adjust(self, grads_finite: Any) -> NoLossScale:
        """Counts the step as good or as skipped."""
        finite = check_predicate(grads_finite, "grads_finite")
        return dataclasses.replace(self, **_counted(self, finite))


def _begin_counts(loss_scale: Any) -> None:
    """Sets the counts of a loss scale that is being made to 0 unless they were given."""
    for name in ("good_steps", "skipped"):
        if getattr(loss_scale, name) is _INITIAL:
            _normalise(loss_scale, **{name: jnp.zeros((), jnp.int32)})


def _counted(loss_scale: Any, finite: jax.Array) -> dict[str, jax.Array]:
    """The counts of a loss scale after a step."""
    return {
        "good_steps": jnp.where(finite, loss_scale.good_steps + 1, 0),
        "skipped": loss_scale.skipped + jnp.logical_not(finite).astype(jnp.int32),
    }


def _holds_any_scale(kind: Any) -> bool:
    """True if a floating type holds every float32 scale exactly."""
    single = jnp.finfo(jnp.float32)
    return kind.maxexp >= single.maxexp and kind.nmant >= single.nmant


def _normalise(state: LossScale, **fields: Any) -> None:
    """Sets fields of a frozen dataclass that is still being made."""
    for name, content in fields.items():
        object.__setattr__(state, name, content)
