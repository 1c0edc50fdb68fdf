"""The ``loss_scale`` argument: checks it, and makes the loss scale that it means.

``check_loss_scale`` checks the argument and touches no device, so that a program can wrap an
optimizer while it is imported. ``make_loss_scale`` makes the arrays when training starts.
:data:`dynamic_loss_scale` and :func:`fixed_loss_scale` are names for users.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from duotone.errors import ArgumentTypeError, kind_of
from duotone.policy.scales import DYNAMIC, check_scale, word_or_number
from duotone.scale.state import DynamicLossScale, FixedLossScale, LossScale, NoLossScale

dynamic_loss_scale = DynamicLossScale
"""Another name of :class:`DynamicLossScale`, which adjusts its own value."""


def fixed_loss_scale(value: float) -> FixedLossScale:
    """Returns a constant loss scale; see :class:`FixedLossScale`.

    Args:
        value: the scale, from 2**-126 to 2**126; see :class:`FixedLossScale`.

    Returns:
        The loss scale. It still skips and counts steps that are not finite.

    Raises:
        ArgumentTypeError: `value` is not a number.
        ArgumentError: `value` is out of range.

    Example:
        >>> import duotone
        >>> float(duotone.fixed_loss_scale(128).value)
        128.0
    """
    return FixedLossScale(check_scale("value", value))


def check_loss_scale(loss_scale: Any) -> str | float | LossScale | None:
    """Returns the argument ``loss_scale``, checked without touching a device.

    Args:
        loss_scale: ``"dynamic"``, a positive number, a loss-scale object, or None for none.

    Returns:
        ``"dynamic"``, a float, the object itself, or None.

    Raises:
        ArgumentTypeError: the argument is none of these.
        ArgumentError: another word, or a number below 2**-126, above 2**126 or NaN.
    """
    if loss_scale is None or isinstance(loss_scale, LossScale):
        return loss_scale
    if (found := word_or_number(loss_scale)) is not None:
        return found
    if isinstance(loss_scale, type) and issubclass(loss_scale, LossScale):
        remedy = f"Make an instance of it: {loss_scale.__name__}(...)."
    elif hasattr(loss_scale, "dtype"):
        remedy = "Convert the array: float(loss_scale)."
    else:
        remedy = "Convert a loss scale of another library: dynamic_loss_scale(initial=...)."
    raise ArgumentTypeError(
        'loss_scale must be "dynamic", a positive number, a loss-scale object '
        "(DynamicLossScale, FixedLossScale, NoLossScale) or None; got "
        f"{_shown(loss_scale)}. {remedy}"
    )


def make_loss_scale(loss_scale: Any, half_name: str | None) -> LossScale:
    """Returns the loss scale that an argument means, with new arrays.

    Args:
        loss_scale: the argument, as for :func:`check_loss_scale`.
        half_name: ``"float16"``, ``"bfloat16"``, or None if nothing is rewritten. ``"dynamic"``
            scales in float16 only: bfloat16 has the range of float32. A number or an object is
            used for every half type.

    Returns:
        A loss scale before its first step. Its arrays are new, so a training step may donate them
        and another training may start from the same object.

    Raises:
        ArgumentTypeError: `loss_scale` has none of the accepted types.
        ArgumentError: another word, or a number out of range.

    Example:
        >>> from duotone.scale.choice import make_loss_scale
        >>> float(make_loss_scale("dynamic", "float16").value)
        32768.0
        >>> float(make_loss_scale("dynamic", "bfloat16").value)
        1.0
    """
    checked = check_loss_scale(loss_scale)
    if isinstance(checked, LossScale):
        return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), checked)
    if checked == DYNAMIC:
        return DynamicLossScale() if half_name == "float16" else NoLossScale()
    return NoLossScale() if checked is None else FixedLossScale(float(checked))


def _shown(loss_scale: Any) -> str:
    if hasattr(loss_scale, "dtype"):
        return f"an array of {loss_scale.dtype}{list(getattr(loss_scale, 'shape', ()))}"
    if isinstance(loss_scale, bool | type):
        return repr(loss_scale)
    return f"{kind_of(loss_scale)}"
