"""The environment variables that switch mixed precision on without a change of the source.

TensorFlow's containers had one switch for both parts and one for each::

    TF_ENABLE_AUTO_MIXED_PRECISION                  rewriting and loss scaling
    TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE    rewriting
    TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING     loss scaling

Each has a duotone name that wins over it, and a part's own variable wins over the one for both::

    part = first that is set of:  DUOTONE_ENABLE_<part>, DUOTONE_ENABLE,
                                  TF_ENABLE_AUTO_MIXED_PRECISION_<part>,
                                  TF_ENABLE_AUTO_MIXED_PRECISION

``DUOTONE_DTYPE`` says in which half type. Who calls this: :mod:`duotone.enable` and
``duotone run``. What goes wrong: a value that is not taken, an error that names the variable (as
for all of :mod:`duotone._environment`, which holds the settings of a :class:`~duotone.Policy`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from duotone._environment import environment_error, parse_boolean

TENSORFLOW_SWITCH = "TF_ENABLE_AUTO_MIXED_PRECISION"
SWITCH = "DUOTONE_ENABLE"
DTYPE = "DUOTONE_DTYPE"
_PARTS = ("GRAPH_REWRITE", "LOSS_SCALING")
_DTYPES = ("float16", "bfloat16")
_DTYPE_TAKES = " or ".join(_DTYPES) + " (empty: asks the device)"


class SwitchVariable(NamedTuple):
    """One row of the table in ``docs/environment.md``: the names and what they switch on."""

    original: str | None
    duotone: str
    takes: str
    effect: str
    example: str


SWITCHES: tuple[SwitchVariable, ...] = (
    SwitchVariable(
        TENSORFLOW_SWITCH, SWITCH, "0, 1, true or false", "rewriting and loss scaling", "1"
    ),
    SwitchVariable(
        f"{TENSORFLOW_SWITCH}_GRAPH_REWRITE",
        f"{SWITCH}_GRAPH_REWRITE",
        "0, 1, true or false",
        "rewriting alone",
        "1",
    ),
    SwitchVariable(
        f"{TENSORFLOW_SWITCH}_LOSS_SCALING",
        f"{SWITCH}_LOSS_SCALING",
        "0, 1, true or false",
        "loss scaling alone",
        "1",
    ),
    SwitchVariable(None, DTYPE, _DTYPE_TAKES, "the half type where one is switched on", "float16"),
)
"""Every variable of this file, for the docs."""


class Switches(NamedTuple):
    """What the environment switches on.

    Attributes:
        rewrite: Whether programs are rewritten.
        loss_scaling: Whether losses are scaled.
        dtype: The half type, or None to ask the device.
        found: Whether any of the on/off variables is set at all.
    """

    rewrite: bool
    loss_scaling: bool
    dtype: str | None
    found: bool


def read_switches(environ: Mapping[str, str] = os.environ) -> Switches:
    """What an environment switches on.

    Args:
        environ: Variable names and values.

    Raises:
        EnvironmentVariableError: A variable that is read holds a value it does not take.

    Example:
        >>> read_switches({"TF_ENABLE_AUTO_MIXED_PRECISION": "1", "DUOTONE_DTYPE": "float16"})
        Switches(rewrite=True, loss_scaling=True, dtype='float16', found=True)
        >>> read_switches({"DUOTONE_ENABLE": "1", "DUOTONE_ENABLE_LOSS_SCALING": "0"})
        Switches(rewrite=True, loss_scaling=False, dtype=None, found=True)
    """
    parts: list[bool | None] = []
    for part in _PARTS:
        names = (f"{SWITCH}_{part}", SWITCH, f"{TENSORFLOW_SWITCH}_{part}", TENSORFLOW_SWITCH)
        name = next((name for name in names if name in environ), None)
        parts.append(None if name is None else parse_boolean(name, environ[name]))
    rewrite, loss_scaling = parts
    found = rewrite is not None or loss_scaling is not None
    return Switches(bool(rewrite), bool(loss_scaling), _dtype(environ.get(DTYPE, "")), found)


def _dtype(value: str) -> str | None:
    name = value.strip().lower()
    if not name:
        return None
    if name not in _DTYPES:
        raise environment_error(DTYPE, value, "not a half type", _DTYPE_TAKES)
    return name
