"""Inputs of models that run in their own runtime: the declared inputs, and the user's data."""

from __future__ import annotations

import dataclasses
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from duotone.errors import ArgumentError, shown

Side = int | str | None
Shapes = Mapping[str, Sequence[int]]


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """An input that a model asks for.

    Attributes:
        name: its name.
        dtype: its NumPy dtype; ``None`` if random numbers of it cannot be made.
        sides: the size of each side; a name or ``None`` where the model leaves it open.
        type_text: its type for messages: ``"tensor(float)"``.
    """

    name: str
    dtype: Any
    sides: tuple[Side, ...]
    type_text: str

    @property
    def text(self) -> str:
        """Its type and sides: ``"tensor(float)[1, 3, ?, ?]"``."""
        sides = ", ".join("?" if side is None else str(side) for side in self.sides)
        return f"{self.type_text}[{sides}]" if self.sides else self.type_text


def is_size(side: Side) -> bool:
    """Returns True if a side is not open."""
    return isinstance(side, int) and side > 0


@dataclasses.dataclass(frozen=True, slots=True)
class Generated:
    """Random inputs with which a model runs.

    Attributes:
        feed: the array of each input.
        side: the size that was chosen for open sides; ``None`` if none was open.
    """

    feed: dict[str, Any]
    side: int | None

    @property
    def notes(self) -> tuple[str, ...]:
        """One line about the chosen size; none if no side was open."""
        if self.side is None:
            return ()
        return (
            f"open sides: {self.side}, a size that the model runs with, and 1 for a batch; "
            "--shapes or --data set others",
        )


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Parses the option ``--shapes`` of a model.

    Raises:
        ArgumentError: the text is not a list of names and sizes.

    Example:
        >>> parse_shapes("x=1,3,320,640 ids=1,16")
        {'x': (1, 3, 320, 640), 'ids': (1, 16)}
    """
    found = {}
    for word in text.split():
        name, equals, sizes = word.rpartition("=")
        numbers = [size.strip() for size in sizes.split(",") if size.strip()]
        if not (name and equals and all(number.isdigit() for number in numbers)):
            raise ArgumentError(
                f"--shapes is {text!r}; for a model, give names and sizes: "
                "--shapes 'x=1,3,320,640 ids=1,16'"
            )
        found[name] = tuple(map(int, numbers))
    return found


def given(data: Any, shapes: Shapes | None, generated: Callable[[], Generated]) -> Generated:
    """Returns the user's inputs, or generated ones if there is no data.

    Raises:
        ArgumentError: there are both data and shapes, or the data has no inputs.
    """
    if data is None:
        return generated()
    if shapes:
        raise ArgumentError("give shapes of random inputs, or data, which has its own shapes.")
    return Generated(read_inputs(data)[0], None)


def read_inputs(data: Any) -> list[dict[str, Any]]:
    """Returns the user's inputs: from a mapping, a list of mappings, or an ``.npz`` file.

    Raises:
        ArgumentError: the data is none of these.
    """
    if isinstance(data, str | Path):
        return [_read_file(Path(data))]
    if isinstance(data, Mapping):
        return [dict(data)]
    if isinstance(data, Sequence) and data and all(isinstance(one, Mapping) for one in data):
        return [dict(one) for one in data]
    raise ArgumentError("give inputs as a mapping from names to arrays, a list of such, or .npz.")


def fitted(asked: Sequence[Asked], feed: Mapping[str, Any]) -> dict[str, Any]:
    """Converts inputs to the dtypes that a model asks for.

    Raises:
        ArgumentError: one is missing, or of another shape or kind than the model takes.
    """
    for one in asked:
        if one.name not in feed:
            given = ", ".join(map(repr, feed)) or "none"
            raise ArgumentError(f"the model asks for the input {one.name!r}; given are {given}.")
    return {one.name: _fitted(one, np.asarray(feed[one.name])) for one in asked}


def _fitted(asked: Asked, array: np.ndarray) -> np.ndarray:
    is_number = array.dtype.kind in "biuf" or array.dtype.name == "bfloat16"
    if not fits(asked, array.shape) or (asked.dtype is not None and not is_number):
        raise ArgumentError(
            f"the model takes {asked.text} as input {asked.name!r}; given is {shown(array)}."
        )
    return array if asked.dtype is None else array.astype(asked.dtype)


def fits(asked: Asked, shape: Sequence[int]) -> bool:
    """Checks that rank and sides agree; a model without sides may not know them, and fits."""
    if not asked.sides:
        return True
    pairs = zip(asked.sides, shape, strict=False)
    return len(asked.sides) == len(shape) and all(
        size == side or not is_size(side) for side, size in pairs
    )


def _read_file(path: Path) -> dict[str, Any]:
    """Returns the arrays of an ``.npz`` file by name.

    Raises:
        ArgumentError: the file is not one.
    """
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            if not isinstance(found, np.ndarray):
                return {name: found[name] for name in found.files}
        problem, cause = "it has one array without a name", None
    except FileNotFoundError as error:
        problem, cause = "there is no such file", error
    except IsADirectoryError as error:
        problem, cause = "it is a folder", error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        problem, cause = "it is damaged, or its contents are not numbers", error
    raise ArgumentError(
        f"{path} is not an .npz file of arrays by input name: {problem}. numpy.savez writes one: "
        "numpy.savez('inputs.npz', x=array)."
    ) from cause


def described(feed: Mapping[str, Any]) -> dict[str, str]:
    """Returns the dtype and shape of each input: ``{"x": "float32[1, 3, 64, 64]"}``."""
    arrays = {name: np.asarray(array) for name, array in feed.items()}
    return {name: f"{array.dtype}{list(array.shape)}" for name, array in arrays.items()}
