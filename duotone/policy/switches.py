"""The environment variables that switch mixed precision on without changes to the source.

TensorFlow's containers had one switch for both parts and one for each::

    TF_ENABLE_AUTO_MIXED_PRECISION                  rewriting and loss scaling
    TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE    rewriting
    TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING     loss scaling

Each has a duotone name, which overrides it, and a part's own variable overrides the one for both::

    part = first that is set of:  DUOTONE_ENABLE_<part>, DUOTONE_ENABLE,
                                  TF_ENABLE_AUTO_MIXED_PRECISION_<part>,
                                  TF_ENABLE_AUTO_MIXED_PRECISION

``DUOTONE_DTYPE`` sets the half type, and ``DUOTONE_LOSS_SCALE`` the loss scale.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import NamedTuple

from duotone.policy.dtypes import HALF_NAMES, OFF, canonical
from duotone.policy.environment import environment_error, parse_boolean, warn_of_unknown
from duotone.policy.scales import MAX_SCALE, MIN_SCALE

TENSORFLOW_SWITCH = "TF_ENABLE_AUTO_MIXED_PRECISION"
SWITCH = "DUOTONE_ENABLE"
DTYPE = "DUOTONE_DTYPE"
LOSS_SCALE = "DUOTONE_LOSS_SCALE"
_PARTS = ("GRAPH_REWRITE", "LOSS_SCALING")
_DTYPE_TAKES = "float16, bfloat16 or float32 (off) (empty: asks the device)"

_LOSS_SCALE_TAKES = "dynamic, none or a number from 2**-126 to 2**126 (empty: dynamic)"


class Switches(NamedTuple):
    """The switches of the environment.

    Attributes:
        rewrite: True if programs are rewritten.
        loss_scaling: True if losses are scaled.
        dtype: The half type, or None to ask the device; float32 switches both parts off.
        found: True if any of the on/off variables is set.
        loss_scale: ``"dynamic"``, a number, or None for no scaling. Used if losses are scaled.
    """

    rewrite: bool
    loss_scaling: bool
    dtype: str | None
    found: bool
    loss_scale: str | float | None = "dynamic"


def read_switches(environ: Mapping[str, str] = os.environ) -> Switches:
    """Reads the switches of an environment.

    Raises:
        EnvironmentVariableError: A variable that is read has a value it does not accept.

    Example:
        >>> read_switches({"TF_ENABLE_AUTO_MIXED_PRECISION": "1", "DUOTONE_DTYPE": "float16"})
        Switches(rewrite=True, loss_scaling=True, dtype='float16', found=True, loss_scale='dynamic')
        >>> read_switches({"DUOTONE_ENABLE": "1", "DUOTONE_LOSS_SCALE": "1024"}).loss_scale
        1024.0
    """
    warn_of_unknown(environ)
    parts: list[bool | None] = []
    for part in _PARTS:
        names = (f"{SWITCH}_{part}", SWITCH, f"{TENSORFLOW_SWITCH}_{part}", TENSORFLOW_SWITCH)
        name = next((name for name in names if name in environ), None)
        parts.append(None if name is None else parse_boolean(name, environ[name]))
    rewrite, loss_scaling = parts
    found = rewrite is not None or loss_scaling is not None
    dtype, scale = _dtype(environ.get(DTYPE, "")), _loss_scale(environ.get(LOSS_SCALE, ""))
    if dtype == OFF:
        return Switches(False, False, None, found, scale)
    return Switches(bool(rewrite), bool(loss_scaling), dtype, found, scale)


def _dtype(value: str) -> str | None:
    if not value.strip():
        return None
    name = canonical(value)
    if name != OFF and name not in HALF_NAMES:
        raise environment_error(DTYPE, value, "not a half type", _DTYPE_TAKES)
    return name


def _loss_scale(value: str) -> str | float | None:
    name = value.strip().lower()
    if name in ("", "dynamic"):
        return "dynamic"
    if name == "none":
        return None
    try:
        number = float(name)
    except ValueError:
        number = math.nan
    if not MIN_SCALE <= number <= MAX_SCALE:
        raise environment_error(LOSS_SCALE, value, "not a loss scale", _LOSS_SCALE_TAKES)
    return number
