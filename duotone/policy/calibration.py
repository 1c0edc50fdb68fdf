"""Calibration: the ranges of a function's values on sample data, as a record to save.

:func:`duotone.calibrate` measures the ranges and returns a :class:`Calibration`, which can be saved
to a JSON file. Pass it to ``autocast(fn, calibration=...)`` or ``Policy(calibration=...)``. The
same rules read it that read ranges which are proved or stated (``docs/ranges.md``).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duotone._checks import path_of
from duotone._files import explained, write_atomically
from duotone.errors import CalibrationError
from duotone.policy import ranges_view as ranges
from duotone.precision.ranges.find import Measured

_FORMAT = "duotone calibration"
_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class ValueRange:
    """The range of one value of a function over all batches.

    Attributes:
        value: its index in the function's graph.
        name: the path of an argument (``params/dense/kernel``); else the name scope and
            operation of its maker.
        low: the least element.
        high: the greatest element.
        small: share of the nonzero elements that lie below float16's normal numbers (6.1e-5), where
            float16 loses digits.
        lost: share of the nonzero elements that float16 rounds to zero.
        shape: on the first batch.
        smallest: the smallest magnitude that is not zero; 0 if all elements are zero.
        over: share of the nonzero elements beyond 65504, the largest float16.
    """

    value: int
    name: str
    low: float
    high: float
    small: float
    lost: float
    shape: tuple[int, ...] = ()
    smallest: float = 0.0
    over: float = 0.0

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Measured ranges of a function's values. Two records are equal if their contents are.

    ``print`` shows a table with a row for each value: the smallest and the largest magnitude, the
    shares that float16 cannot represent well, and whether it overflows or underflows there.

    Attributes:
        function: its name, for people.
        fingerprint: a digest that distinguishes its graph from those of other functions, at any
            batch size.
        batches: how many batches were measured.
        values: the measurements of each value that has elements and was never infinite or NaN.

    Example:
        >>> import jax.numpy as jnp, duotone
        >>> measured = duotone.calibrate(lambda x: x * x, [(jnp.asarray([1.0, 300.0]),)])
        >>> [(v.name, v.high) for v in measured.values]
        [('x', 300.0), ('mul', 90000.0)]
    """

    function: str
    fingerprint: str
    batches: int
    values: tuple[ValueRange, ...]

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def title(self) -> str:
        """One line that names the function and counts the measurements."""
        count = "1 batch" if self.batches == 1 else f"{self.batches} batches"
        return f"calibration of {self.function} ({len(self.values)} values, {count})"

    def __str__(self) -> str:
        return ranges.render(self.title, self.values)

    def __rich__(self) -> Any:
        return ranges.table(self.title, self.values)

    def __repr__(self) -> str:
        return f"<{self.title}>"

    @functools.cached_property
    def measured(self) -> Mapping[int, Measured]:
        """The measurements by value, for the analysis of ranges."""
        return {v.value: Measured(v.low, v.high, v.small) for v in self.values}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the record to a JSON file, atomically.

        Args:
            path: the file, in an existing folder. An existing file is replaced.

        Raises:
            ArgumentTypeError: ``path`` is not a path.
            CalibrationError: the folder does not exist, or ``path`` is a folder.
            WriteError: the file system refuses the file (a full disk, a name that is too long).
        """
        file = path_of("Calibration.save", "path", path)
        with explained(file):  # of a name that is too long not even this can be asked
            is_folder = file.is_dir()
        if is_folder:
            raise CalibrationError(
                f"cannot save the calibration to {file}, which is a folder; name a file, such as "
                f"{file / 'calibration.json'}"
            )
        if not file.parent.is_dir():
            raise CalibrationError(
                f"cannot save the calibration to {file}: there is no folder {file.parent}"
            )
        data = {
            "format": _FORMAT,
            "version": _VERSION,
            "function": self.function,
            "fingerprint": self.fingerprint,
            "batches": self.batches,
            "values": [dataclasses.asdict(value) for value in self.values],
        }
        write_atomically(file, json.dumps(data, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Reads a record that :meth:`save` wrote.

        Args:
            path: the file.

        Returns:
            An equal record.

        Raises:
            ArgumentTypeError: ``path`` is not a path.
            CalibrationError: there is no such file, or it contains something else.
        """
        file = path_of("Calibration.load", "path", path)
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise CalibrationError(
                f"cannot load a calibration from {file}: {error.strerror}"
            ) from error
        except (ValueError, RecursionError) as error:
            raise CalibrationError(
                f"{file} is not a calibration: it is not JSON ({error}). Save one with "
                "duotone.calibrate(fn, batches).save(path)."
            ) from error
        return _read(file, data)


def _read(file: Path, data: Any) -> Calibration:
    """Returns the record in the data of a file."""
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise CalibrationError(
            f"{file} is not a calibration: it does not say that it holds a {_FORMAT}. Save one "
            "with duotone.calibrate(fn, batches).save(path)."
        )
    if data.get("version") != _VERSION:
        raise CalibrationError(
            f"{file} is a calibration of version {data.get('version')!r}; this duotone reads "
            f"version {_VERSION}. Measure again with duotone.calibrate."
        )
    try:
        values = tuple(_read_value(value) for value in data["values"])
        batches = _read_count(data, "batches")
        return Calibration(str(data["function"]), str(data["fingerprint"]), batches, values)
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise CalibrationError(
            f"{file} is a damaged calibration ({type(error).__name__}: {error}). Measure again "
            "with duotone.calibrate."
        ) from error


def _read_value(data: Any) -> ValueRange:
    value = _read_count(data, "value")
    numbers = {name: float(data[name]) for name in ("low", "high", "small", "lost")}
    numbers |= {
        name: float(data.get(name, 0.0)) for name in ("smallest", "over")
    }  # not in older files
    if not all(map(math.isfinite, numbers.values())):
        raise ValueError(f"value {value} has a number that is not finite")
    if numbers["low"] > numbers["high"]:
        raise ValueError(f"value {value} has a least element above its greatest")
    for name in ("small", "lost", "over"):
        if not 0.0 <= numbers[name] <= 1.0:
            raise ValueError(f"value {value} has {name} {numbers[name]:g}, which is not a share")
    shape = tuple(int(size) for size in data.get("shape", ()))
    return ValueRange(value=value, name=str(data["name"]), shape=shape, **numbers)


def _read_count(data: Any, name: str) -> int:
    """Returns a whole number that is not negative."""
    number = data[name]
    if type(number) is not int or number < 0:
        raise ValueError(f"{name} is {number!r}, which is not a whole number from 0 on")
    return number
