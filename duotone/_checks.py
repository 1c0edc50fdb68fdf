"""Checks of arguments that several public functions take: a switch, a path, names.

Each error names the function as the user called it, the argument and the remedy.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from duotone.errors import ArgumentError, ArgumentTypeError, shown


def check_switch(who: str, name: str, value: Any) -> None:
    """Raises unless an argument is True or False. The words "no" and "0" would count as true.

    Example:
        >>> check_switch("autocast", "enabled", "no")
        Traceback (most recent call last):
            ...
        duotone.errors.ArgumentTypeError: autocast: enabled is 'no'; pass True or False
    """
    if not isinstance(value, bool | np.bool_):
        raise ArgumentTypeError(f"{who}: {name} is {shown(value)}; pass True or False")


def path_of(who: str, name: str, value: Any) -> Path:
    """Returns the path that an argument names.

    Raises:
        ArgumentTypeError: it is neither a string nor a path.
        ArgumentError: it is the empty string, which ``Path`` takes for the current folder.
    """
    if not isinstance(value, str | os.PathLike):
        raise ArgumentTypeError(f"{who}: {name} is {shown(value)}; pass a path")
    path = os.fspath(value)
    if not isinstance(path, str):
        raise ArgumentTypeError(f"{who}: {name} is a path of bytes; pass os.fsdecode of it")
    if not path:
        raise ArgumentError(f"{who}: {name} has no name; pass a path")
    return Path(path)


def check_whole(who: str, name: str, value: Any, least: int) -> int:
    """Returns a whole number, such as an integer of NumPy or JAX, as an ``int``.

    Raises:
        ArgumentTypeError: it is no whole number.
        ArgumentError: it is smaller than ``least``.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ArgumentTypeError(f"{who}: {name} is {shown(value)}; pass a whole number")
    if number < least:
        raise ArgumentError(f"{who}: {name} is {number}; pass at least {least}")
    return number


def check_mapping(who: str, name: str, value: Any) -> None:
    """Raises unless an argument is a mapping with strings as keys, or ``None``."""
    if value is None:
        return
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ArgumentTypeError(
            f"{who}: {name} is {shown(value)}; pass a dictionary with strings as keys"
        )


def check_string(who: str, name: str, value: Any) -> None:
    """Raises unless an argument is a string."""
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{who}: {name} is {shown(value)}; pass a string")


def check_strings(who: str, name: str, value: Any) -> None:
    """Raises unless an argument is a list or another collection of strings; one is not a list."""
    several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
    if not several or not all(isinstance(entry, str) for entry in value):
        raise ArgumentTypeError(f"{who}: {name} is {shown(value)}; pass a list of strings")
