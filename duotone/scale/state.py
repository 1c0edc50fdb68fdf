"""The three loss scales: dynamic, fixed and none. Each is frozen and has the same methods in order.

Each is a pytree derived from its dataclass. Static fields are configuration: they are part of the
structure, so another value compiles another program. All other fields are arrays that ``jit``,
``scan``, ``vmap`` and checkpoints carry. No flatten function lists the fields, so none can be
forgotten.

:class:`DynamicLossScale` has the scale s and the count g of good steps in a row. Its rule is::

    finite:      g += 1;  if g == growth_interval: s = min(s * factor, cap), g = 0
    not finite:  s = max(s / factor, floor), g = 0, skipped += 1

This is the rule of TensorFlow's and PyTorch's scalers with two additions. It has bounds: without
the floor, 170 consecutive bad steps bring the scale to 0 and the next good step divides by it;
without the cap, small gradients bring it to infinity. And a large loss lowers the scale further in
the first steps (:meth:`DynamicLossScale.fitted_to`).

To add a rule, subclass :class:`LossScale` with ``value`` and ``adjust``.
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
from duotone.policy.scales import (
    FACTOR,
    GROWTH_INTERVAL,
    INITIAL_SCALE,
    LARGEST_DYNAMIC_SCALE,
    ORDINARY_LOSS,
    SMALLEST_DYNAMIC_SCALE,
    check_factor,
    check_interval,
    check_scale,
    with_names_of_tensorflow,
)
from duotone.scale.leaves import divide, multiply, to_full
from duotone.scale.powers import log2_above, power_of_two, powers_held_by
from duotone.scale.selection import check_predicate

_STATIC = {"static": True}

# Marks a state array that the caller omitted. This is not None, because pytree transformations
# rebuild a loss scale with None, integers (axes), objects and tracers instead of its arrays.
_INITIAL: Any = object()


class LossScale(abc.ABC):
    """A positive scalar by which a loss is multiplied, and the rule that adjusts it.

    A subclass is a frozen dataclass registered with ``jax.tree_util.register_dataclass``. It
    defines :attr:`value` and :meth:`adjust`, and :meth:`limited_to` if its value may exceed the
    range of a half type. Override :meth:`scale` and :meth:`unscale` only together.
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
        have another value, and every gradient would be wrong by the factor.

        Args:
            tree: any pytree; leaves that are neither floating nor complex pass through.

        Returns:
            The unscaled tree; half leaves as float32, because a true gradient may be too small for
            the half type of the scaled one; all others in their own dtype.
        """
        with updating():
            return divide(tree, self.value)

    @abc.abstractmethod
    def adjust(self, grads_finite: Any) -> Self:
        """Returns the loss scale for the next step.

        Args:
            grads_finite: ``bool[]``, whether every gradient of this step was finite. It must be
                the same on all devices (see :func:`duotone.all_finite`).

        Returns:
            A new loss scale of the same structure.
        """

    def fitted_to(self, loss: Any, grads_finite: Any, last_finite: Any = True) -> LossScale:
        """Returns the loss scale to adjust, after a step whose loss is known.

        Args:
            loss: ``floating[]``, unscaled; the same on all devices.
            grads_finite: ``bool[]``, whether every gradient of this step was finite.
            last_finite: ``bool[]``, whether every gradient of the previous step was finite.

        Returns:
            A loss scale, lowered if the loss of one of the first steps is large. Only a dynamic
            loss scale does so; others return themselves.
        """
        return self

    def limited_to(self, dtype: Any) -> LossScale:
        """Returns the loss scale that scales a loss of this dtype.

        The gradient of a loss has the dtype of the loss, so the scale itself must fit into it: the
        largest float16 is 65504, so 2**16 would overflow.

        Args:
            dtype: the floating dtype of the loss.

        Returns:
            A loss scale whose value `dtype` represents exactly, from its smallest normal number to
            its largest power of two (2**-14 to 2**15 for float16); itself for float32 and float64.
        """
        return self


@with_names_of_tensorflow(
    initial_loss_scale="initial", increment_period="growth_interval", multiplier="factor"
)
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DynamicLossScale(LossScale):
    """A loss scale that adjusts itself: divided on overflow, multiplied after good steps.

    Args:
        initial: the first scale. The default, 2**15, is TensorFlow's.
        growth_interval: finite steps in a row after which the scale grows (the default is that of
            Micikevicius et al. and TensorFlow).
        factor: multiplies and divides the scale. A power of two, such as TensorFlow's 2, does not
            change the mantissas of the gradients.
        floor: the smallest scale; at least 2**-126. The default is TensorFlow's. A floor below 1
            helps if gradients overflow even unscaled, but small gradients are then lost.
        cap: the largest scale; at most 2**126. The default, 2**24, is Apex's.
        value: the scale, ``float32[]``; `initial` if omitted.
        good_steps: finite steps since the scale last changed or a step was skipped, ``int32[]``.
        skipped: the total number of steps that were not finite, ``int32[]``.

    The first three arguments also have their TensorFlow names: ``initial_loss_scale``,
    ``increment_period`` and ``multiplier``.

    Raises:
        ArgumentTypeError: a configuration value is not a number.
        ArgumentError: a configuration value is out of range, `initial` is outside [floor, cap], or
            one value is passed under both of its names.

    Example:
        >>> import duotone
        >>> state = duotone.DynamicLossScale(1024, growth_interval=2)
        >>> float(state.adjust(False).value)
        512.0
        >>> float(state.adjust(True).value), float(state.adjust(True).adjust(True).value)
        (1024.0, 2048.0)

    References:
        Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2.
    """

    initial: float = dataclasses.field(default=INITIAL_SCALE, metadata=_STATIC)
    growth_interval: int = dataclasses.field(default=GROWTH_INTERVAL, metadata=_STATIC)
    factor: float = dataclasses.field(default=FACTOR, metadata=_STATIC)
    floor: float = dataclasses.field(default=SMALLEST_DYNAMIC_SCALE, metadata=_STATIC)
    cap: float = dataclasses.field(default=LARGEST_DYNAMIC_SCALE, metadata=_STATIC)
    # Only pytree fields below this line. pyright reports that an attribute overrides the abstract
    # property; a frozen dataclass is as read-only as the property.
    value: jax.Array = dataclasses.field(default=_INITIAL, kw_only=True)  # pyright: ignore
    good_steps: jax.Array = dataclasses.field(default=_INITIAL, kw_only=True)
    skipped: jax.Array = dataclasses.field(default=_INITIAL, kw_only=True)

    def __post_init__(self) -> None:
        # Always checks the configuration (dataclasses.replace also runs this), and never the state,
        # which a pytree transformation may replace with any object.
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
        """Divides the scale after a step that was not finite; multiplies it after good steps."""
        finite = check_predicate(grads_finite, "grads_finite")
        with updating():
            scale = jnp.asarray(self.value, jnp.float32)
            counts = _counted(self, finite)
            good = counts["good_steps"]
            grow = good >= self.growth_interval
            scale = jnp.where(finite, scale, scale / self.factor)
            scale = jnp.where(grow, scale * self.factor, scale)
            # This comparison turns NaN (a damaged checkpoint) into the floor: a compiled step
            # cannot raise, and NaN would skip every later step.
            scale = jnp.where(scale >= self.floor, scale, self.floor)
            scale = jnp.minimum(scale, self.cap)
            counts["good_steps"] = jnp.where(grow, 0, good)
            return dataclasses.replace(self, value=scale, **counts)

    def fitted_to(self, loss: Any, grads_finite: Any, last_finite: Any = True) -> DynamicLossScale:
        """Lowers the first scale in one step if it was too large for a large loss.

        If the first step overflows, and its loss l is above 16, :meth:`adjust` then returns
        ``2**15 / sqrt(l / 16)``. If the second step overflows too, it returns ``2**15 / (l / 16)``.
        Both are rounded down to a power of two, and are at most half the scale. Most losses start
        below 16: a cross entropy of 50,000 classes starts at 10.8.

        Args:
            loss: ``floating[]``, unscaled; the same on all devices.
            grads_finite: ``bool[]``, whether every gradient of this step was finite.
            last_finite: ``bool[]``, whether every gradient of the previous step was finite.

        Returns:
            The loss scale to adjust; unchanged except in these two cases.

        Example:
            >>> import duotone
            >>> float(duotone.DynamicLossScale().fitted_to(1e4, False).adjust(False).value)
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
        """Returns the same scale, rounded to `dtype` and within its powers of two."""
        kind = jnp.finfo(dtype)
        if _holds_any_scale(kind):
            return self
        with updating():
            value = jnp.clip(self.value, *powers_held_by(kind))
            # XLA may remove a pair of casts. Then the gradients would be divided by another number
            # than the one that multiplied the loss.
            value = lax.reduce_precision(value, int(kind.nexp), int(kind.nmant))
            return dataclasses.replace(self, value=value)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FixedLossScale(LossScale):
    """A constant loss scale; steps that are not finite are still skipped and counted.

    Args:
        constant: the scale, from 2**-126 to 2**126. It is part of the compiled program. A scale
            below 1 makes large gradients fit, but loses small ones.
        good_steps: finite steps since a step was skipped, ``int32[]``.
        skipped: the total number of steps that were not finite, ``int32[]``.

    Raises:
        ArgumentTypeError: `constant` is not a number.
        ArgumentError: `constant` is out of range.

    Example:
        >>> import duotone
        >>> state = duotone.FixedLossScale(128).adjust(False)
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
        """Returns the same scale, rounded to `dtype` and within its powers of two."""
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

    Use it where a loss scale is expected, so that one training step works in every precision. Half
    leaves become float32 as with the other loss scales; the program has no multiplication.

    Args:
        good_steps: finite steps since a step was skipped, ``int32[]``.
        skipped: the total number of steps that were not finite, ``int32[]``.

    Example:
        >>> import duotone
        >>> float(duotone.NoLossScale().value), float(duotone.NoLossScale().scale(3.0))
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
    """Sets the omitted counts of a loss scale under construction to 0."""
    for name in ("good_steps", "skipped"):
        if getattr(loss_scale, name) is _INITIAL:
            _normalise(loss_scale, **{name: jnp.zeros((), jnp.int32)})


def _counted(loss_scale: Any, finite: jax.Array) -> dict[str, jax.Array]:
    """Returns the counts of a loss scale after a step."""
    return {
        "good_steps": jnp.where(finite, loss_scale.good_steps + 1, 0),
        "skipped": loss_scale.skipped + jnp.logical_not(finite).astype(jnp.int32),
    }


def _holds_any_scale(kind: Any) -> bool:
    """Returns True if a floating type represents every float32 scale exactly."""
    single = jnp.finfo(jnp.float32)
    return kind.maxexp >= single.maxexp and kind.nmant >= single.nmant


def _normalise(state: LossScale, **fields: Any) -> None:
    """Sets fields of a frozen dataclass under construction."""
    for name, content in fields.items():
        object.__setattr__(state, name, content)
