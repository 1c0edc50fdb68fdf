"""Checks of the public functions' arguments before anything is traced.

Every error names the function as the user called it, the argument and the remedy. It shows only the
type of an array.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from duotone.errors import ArgumentError, ArgumentTypeError, shown, way_out
from duotone.graph.graph import HALF_TYPES, HalfType
from duotone.policy.calibration import Calibration
from duotone.policy.dtypes import OFF, canonical
from duotone.policy.policy import Policy
from duotone.text.suggestions import did_you_mean

_HANDS_ON = ("cast_params", "explain")
"""Functions that pass all keyword arguments but their own to the user's function."""


def check_callable(name: str, fn: Any, argument: str = "fn") -> None:
    """Raises unless a function was given."""
    if not callable(fn):
        instead = "the function itself, not what it returns"
        instead = "its apply" if hasattr(fn, "apply") else instead
        raise ArgumentTypeError(
            f"{name}: {argument} is {shown(fn)}, which is not callable; pass {instead}"
        )


def check_policy(name: str, policy: Any) -> None:
    """Raises unless this is a policy, or ``None``."""
    if policy is not None and not isinstance(policy, Policy):
        raise ArgumentTypeError(
            f"{name}: policy is {shown(policy)}; pass a duotone.Policy{_else(name, 'policy')}"
        )


def refuse_heal(name: str, policy: Policy | None) -> None:
    """Raises if a policy asks for healing and no optimizer reports which steps were skipped."""
    if policy is not None and policy.heal:
        raise ArgumentError(
            f"{name}: Policy(heal={policy.heal}) watches the steps of an optimizer, and there is "
            "none here. Wrap the optimizer: duotone.enable_mixed_precision_graph_rewrite(opt, "
            "policy=policy); or leave heal out, here as policy.replace(heal=0), and ask "
            f"duotone.blame what to keep full{_else(name, 'policy')}"
        )


def check_rewrite(name: str, fn: Any, policy: Any, calibration: Any) -> None:
    """Raises unless a function can be rewritten with these arguments."""
    check_callable(name, fn)
    check_policy(name, policy)
    refuse_heal(name, policy)
    check_calibration(name, calibration)


def without_heal(policy: Policy | None) -> Policy | None:
    """Returns a policy without healing, which does not change a painting."""
    return policy.replace(heal=0) if policy is not None and policy.heal else policy


def check_calibration(name: str, calibration: Any) -> None:
    """Raises unless this is a calibration, or ``None``."""
    if calibration is not None and not isinstance(calibration, Calibration):
        raise ArgumentTypeError(
            f"{name}: calibration is {shown(calibration)}; pass what duotone.calibrate or "
            f"Calibration.load returned{_else(name, 'calibration')}"
        )


def half_named(name: str, dtype: Any) -> HalfType | None:
    """Returns the half type that ``dtype`` names, or ``None`` for float32: mixed precision is off.

    Raises:
        ArgumentTypeError: it is not a dtype.
        ArgumentError: it is neither a half type nor float32.
    """
    try:
        found = _name_of(dtype)
    except TypeError as error:
        takes = "pass jnp.float16 or jnp.bfloat16"
        meant = did_you_mean(dtype, HALF_TYPES, takes) if isinstance(dtype, str) else takes
        raise ArgumentTypeError(
            f"{name}: dtype is {shown(dtype)}, which is not a dtype; {meant}{_else(name, 'dtype')}"
        ) from error
    if found == OFF:
        return None
    if found not in HALF_TYPES:
        raise ArgumentError(
            f"{name}: dtype is {found}, which is not a half type; pass jnp.float16, jnp.bfloat16, "
            f"None (asks the device) or jnp.float32 (off){_else(name, 'dtype')}"
        )
    return HALF_TYPES[found]


def half_of_model(dtype: Any) -> HalfType:
    """Returns the half type for a saved model, by its name.

    Raises:
        ArgumentError: it is not the name of a half type.
    """
    name = canonical(dtype) if isinstance(dtype, str) else ""
    if name not in HALF_TYPES:
        raise ArgumentError(f"dtype={shown(dtype)}: it takes 'float16' or 'bfloat16'.")
    return HALF_TYPES[name]


def check_painter(painter: str, known: Iterable[str]) -> str:
    """Returns a painter.

    Raises:
        ArgumentError: a front end does not have it.
    """
    if not isinstance(painter, str) or painter not in known:
        raise ArgumentError(f"painter={shown(painter)}: it takes {', '.join(map(repr, known))}.")
    return painter


def _name_of(dtype: Any) -> str:
    """Returns the name of a dtype of NumPy, JAX or TensorFlow; TypeError if it is none."""
    if isinstance(dtype, str):
        dtype = canonical(dtype)
        if dtype in HALF_TYPES or dtype == OFF:
            return dtype
    if hasattr(dtype, "dtype") and not isinstance(dtype, type):
        raise TypeError  # an array, of which NumPy would take the dtype
    return np.dtype(getattr(dtype, "as_numpy_dtype", dtype)).name


def is_off(name: str, dtype: Any) -> bool:
    """Returns True if a dtype switches mixed precision off.

    Raises:
        ArgumentTypeError, ArgumentError: as :func:`half_named` does.
    """
    return dtype is not None and half_named(name, dtype) is None


def _else(name: str, argument: str) -> str:
    return f"; {way_out(argument)}" if name in _HANDS_ON else ""
