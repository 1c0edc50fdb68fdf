"""Checks the values of a policy's fields, and converts each to its normal form.

Every message names the field as the user wrote it, and the values that it accepts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from duotone.errors import PolicyError, PolicyTypeError, shown
from duotone.policy.calibration import Calibration
from duotone.policy.dtypes import canonical
from duotone.policy.environment import REDUCE_DTYPES, folder_problem
from duotone.precision.removable import REMOVABLE
from duotone.text.suggestions import did_you_mean

StatedRanges = tuple[tuple[str, tuple[float, float]], ...]
"""Name patterns and bounds, as a policy stores them."""


class Names(Protocol):
    """Several names: a list, tuple or set of strings. A type checker flags a single string.

    The ``__contains__`` of a string takes only strings, so ``str`` does not fit this protocol.
    """

    def __contains__(self, name: object, /) -> bool:
        """Returns True if this is one of the names."""
        ...

    def __iter__(self) -> Iterator[str]:
        """Yields the names."""
        ...


class Origin(NamedTuple):
    """The source of an entry of a field (``""`` for a scalar field). Only error messages use it."""

    field: str
    entry: str
    source: str


def check_names(names: Iterable[str], fields: Iterable[str]) -> None:
    """Raises if a name is not a field, and suggests the field that was probably meant."""
    known = list(fields)
    for name in names:
        if name not in known:
            meant = did_you_mean(name, known, f"it has {', '.join(known)}.")
            raise PolicyTypeError(f"Policy has no field {name!r}: {meant}")


def check_choice(field: str, value: object, choices: tuple[str, ...], *, none: bool) -> None:
    """Raises unless a field is one of the words that it accepts, or None if it accepts that."""
    if value is None and none:
        return
    # isinstance first: `in` would accept a NumPy array of one string, or raise on a longer one.
    if isinstance(value, str) and value in choices:
        return
    accepted = ", ".join(repr(choice) for choice in choices) + (" or None" if none else "")
    takes = f"it takes {accepted}."
    meant = did_you_mean(value, choices, takes) if isinstance(value, str) else takes
    raise PolicyError(f"Policy({field}={value!r}): {meant}")


def check_boolean(field: str, value: object, *, none: bool = False) -> None:
    """Raises if a field is neither True nor False, nor ``None`` if it may be."""
    if not isinstance(value, bool) and not (none and value is None):
        takes = "True, False or None" if none else "True or False"
        raise PolicyTypeError(f"Policy({field}={value!r}): it takes {takes}.")


HEAL_AFTER = 3
"""The overflows in a row after which ``heal=True`` acts. One bad batch is not a reason to act."""


def heal_after(value: object) -> int:
    """Returns the steps after which to heal, from a switch or a number; 0 for never."""
    if isinstance(value, bool):
        return HEAL_AFTER if value else 0
    if not isinstance(value, int):
        raise PolicyTypeError(f"Policy(heal={value!r}): it takes True, False or a number of steps.")
    if value < 0:
        raise PolicyError(
            f"Policy(heal={value!r}): a number of steps is 0 (off) or more; True is {HEAL_AFTER}."
        )
    return value


def reduce_dtype(value: Any) -> str | None:
    """Returns the dtype in which devices add up gradients; None if the painting decides."""
    if value is None:
        return None
    try:
        name = canonical(value) if isinstance(value, str) else np.dtype(value).name
    except TypeError:
        name = ""
    if name not in REDUCE_DTYPES:
        raise PolicyError(
            f"Policy(reduce_dtype={value!r}): it takes {', '.join(map(repr, REDUCE_DTYPES))} (or "
            "the dtype) or None."
        )
    return name


def strings(field: str, value: object) -> tuple[str, ...]:
    """Returns the entries of a list field, each once, in the same order in every run."""
    if isinstance(value, (str, bytes)):
        text = value if isinstance(value, str) else value.decode(errors="replace")
        raise PolicyTypeError(
            f"Policy({field}={value!r}): a single string is not a list of them. "
            f"Write Policy({field}=[{text!r}])."
        )
    if not isinstance(value, Iterable):
        raise PolicyTypeError(f"Policy({field}={value!r}): it takes a list, tuple or set of str.")
    entries = list(value)
    for entry in entries:
        if not isinstance(entry, str):
            raise PolicyTypeError(
                f"Policy({field}=...) holds {entry!r}, which is not a str: name operations and "
                "patterns by str, a primitive by its .name."
            )
        if not entry.strip():
            raise PolicyError(
                f"Policy({field}=...) holds the empty string {entry!r}: leave it out."
            )
    if isinstance(value, (set, frozenset)):
        entries.sort()
    return tuple(dict.fromkeys(entries))


def removed(field: str, value: object) -> frozenset[str]:
    """Returns the names to switch off; the error for an unknown name suggests the closest one."""
    entries, known = strings(field, value), REMOVABLE[field]
    for entry in entries:
        if entry not in known:
            raise PolicyError(
                f"Policy({field}=...) names {entry!r}: there is no such {field[:-8]} to switch "
                "off; " + did_you_mean(entry, known, f"there are {', '.join(known)}.")
            )
    return frozenset(entries)


def calibrations(value: Any) -> Calibration | tuple[Calibration, ...] | None:
    """Checks one or several results of ``duotone.calibrate``, and makes a tuple of a list."""
    found = tuple(value) if isinstance(value, list) else value
    several = found if isinstance(found, tuple) else () if found is None else (found,)
    if not all(isinstance(measured, Calibration) for measured in several):
        raise PolicyTypeError(
            f"Policy(calibration={shown(value)}): it takes what duotone.calibrate or "
            "Calibration.load returned, a list of such, or None."
        )
    return found


def folder(value: object) -> Path | None:
    """Returns the absolute path of a folder that can be written to; None for none."""
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise PolicyTypeError(
            f"Policy(log_path={value!r}): it takes the path of a folder, or None."
        )
    if not os.fspath(value):  # Path("") is the current folder, which an empty string never meant
        raise PolicyError(
            "Policy(log_path=''): it takes the path of a folder, or None for no files."
        )
    # Absolute, so that a later change of the working folder does not undo this check.
    path = Path(os.fsdecode(value)).expanduser().absolute()
    problem = folder_problem(path)
    if problem is not None:
        raise PolicyError(f"Policy(log_path={os.fspath(value)!r}): {problem}.")
    return path


def stated_ranges(value: object) -> StatedRanges:
    """Returns the entries of ``ranges``, sorted by name."""
    if isinstance(value, tuple) and all(isinstance(p, tuple) and len(p) == 2 for p in value):
        value = dict(value)
    if not isinstance(value, Mapping):
        raise PolicyTypeError(
            f"Policy(ranges={value!r}): it takes a dict of names and bounds, such as "
            "{'images': (-1, 1)}."
        )
    return tuple(sorted((_range_name(name), _bounds(name, b)) for name, b in value.items()))


def _range_name(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise PolicyTypeError(
            f"Policy(ranges=...) holds the name {name!r}: name arguments and operations by str, "
            "such as 'params/*/kernel' or '*/attention/*'."
        )
    return name


def _bounds(name: object, value: Any) -> tuple[float, float]:
    try:
        low, high = (float(bound) for bound in value)
    except (TypeError, ValueError) as error:
        raise PolicyTypeError(
            f"Policy(ranges={{{name!r}: {value!r}}}): bounds are two numbers, (low, high)."
        ) from error
    if math.isnan(low) or math.isnan(high) or low > high:
        raise PolicyError(
            f"Policy(ranges={{{name!r}: {value!r}}}): the first bound is to be no larger than the "
            "second, and neither NaN."
        )
    return low, high


ONE_FORM: Mapping[str, Callable[[Any], Any]] = {
    "heal": heal_after,
    "reduce_dtype": reduce_dtype,
    "ranges": stated_ranges,
    "calibration": calibrations,
    "log_path": folder,
}
"""For each field, the function that checks a value and returns its normal form."""
