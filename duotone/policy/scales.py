"""Checks the numbers of a loss scale. Each error names a remedy.

This module does not import JAX, since TensorFlow's optimizers use it too.
"""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from duotone.errors import ArgumentError, ArgumentTypeError

DYNAMIC = "dynamic"
"""The word for a loss scale that adjusts itself."""

GROWTH_INTERVAL = 2000
"""Finite steps in a row after which a loss scale grows by default, as in TensorFlow."""

INITIAL_SCALE = 2.0**15
"""The first value of a loss scale by default, as in TensorFlow."""

FACTOR = 2.0
"""The factor by which a loss scale grows and shrinks by default, as in TensorFlow."""

SMALLEST_DYNAMIC_SCALE = 1.0
"""The value at which a loss scale stops shrinking by default."""

LARGEST_DYNAMIC_SCALE = 2.0**24
"""The value at which a loss scale stops growing by default."""

ORDINARY_LOSS = 16.0
"""A mean loss over examples starts below this: a cross entropy of 50,000 classes at 10.8."""

MAX_SCALE = 2.0**126
"""The largest power of two whose reciprocal is still a normal float32."""

MIN_SCALE = 1 / MAX_SCALE
"""The smallest normal float32."""

Made = TypeVar("Made", bound=type)


def with_names_of_tensorflow(**names: str) -> Callable[[Made], Made]:
    """Lets a class accept arguments by their TensorFlow 1.15 names.

    Args:
        **names: our name of each argument, by TensorFlow's name.

    Returns:
        A decorator. Passing one argument under both names is an ``ArgumentError``.
    """

    def decorate(made: Made) -> Made:
        original: Callable[..., None] = made.__init__
        positions = list(inspect.signature(original).parameters)

        @functools.wraps(original)
        def init(*args: Any, **kwargs: Any) -> None:
            for theirs, ours in names.items():
                if theirs not in kwargs:
                    continue
                if ours in kwargs or ours in positions[: len(args)]:
                    raise ArgumentError(
                        f"{theirs} is TensorFlow's name for {ours}, and both were given: leave one "
                        "of them out."
                    )
                kwargs[ours] = kwargs.pop(theirs)
            original(*args, **kwargs)

        made.__init__ = init
        return made

    return decorate


def _check_number(name: str, number: Any) -> float:
    if type(number) is float:  # the fast path: JAX rebuilds a loss scale after every step
        return number
    if isinstance(number, numbers.Real) and not isinstance(number, bool):
        return float(number)
    raise ArgumentTypeError(
        f"{name} must be a number that is known when the loss scale is made, such as 2.0**15; got "
        f"{number!r} of type {type(number).__name__}. Convert an array with float(x); to go on "
        "from a saved loss scale, restore its arrays into a new one."
    )


def word_or_number(loss_scale: Any) -> str | float | None:
    """Returns the argument ``loss_scale`` if it is a word or a number, else None.

    Returns:
        ``"dynamic"`` or a float from 2**-126 to 2**126; None if it is neither word nor number.

    Raises:
        ArgumentError: another word, or a number that is out of range.
    """
    if isinstance(loss_scale, str):
        if loss_scale.lower() == DYNAMIC:
            return DYNAMIC
        raise ArgumentError(
            f'loss_scale={loss_scale!r}: the only string accepted is "dynamic". Pass it, a '
            "positive number, a loss-scale object, or None for no scaling."
        )
    if isinstance(loss_scale, numbers.Real) and not isinstance(loss_scale, bool):
        return check_scale("loss_scale", loss_scale)
    return None


def check_scale(name: str, number: Any) -> float:
    """Returns a scale, as a float from 2**-126 to 2**126."""
    scale = _check_number(name, number)
    if not MIN_SCALE <= scale <= MAX_SCALE:  # true for NaN as well
        raise ArgumentError(
            f"{name} must be from 2**-126 to 2**126, which float32 divides by without loss; got "
            f"{name}={scale:g}. Use NoLossScale() to switch scaling off."
        )
    return scale


def check_factor(number: Any) -> float:
    """Returns the factor of growth and decrease, as a float above 1."""
    factor = _check_number("factor", number)
    if not (1.0 < factor <= MAX_SCALE and np.float32(factor) > 1.0):  # true for NaN as well
        raise ArgumentError(
            "factor must be above 1 (in float32) and finite, since the scale is multiplied by it "
            f"to grow and divided by it to shrink; got factor={factor!r}. Use 2.0, or "
            "FixedLossScale for a scale that stays."
        )
    return factor


def check_interval(number: Any) -> int:
    """Returns a number of steps that an ``int32`` can count."""
    if type(number) is not int and (
        not isinstance(number, numbers.Integral) or isinstance(number, bool)
    ):
        raise ArgumentTypeError(
            f"growth_interval must be a whole number of steps; got {number!r} of type "
            f"{type(number).__name__}."
        )
    interval = int(number)
    if not 1 <= interval < 2**31:
        raise ArgumentError(
            f"growth_interval must be from 1 to 2**31 - 1 steps; got {interval}. "
            "Use FixedLossScale for a scale that never grows."
        )
    return interval
