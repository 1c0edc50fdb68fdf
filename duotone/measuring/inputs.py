"""Inputs for models that run in their own runtime: the user's, or generated ones.

::

    for each side:   shapes with this side where the model leaves it open, 1 for a batch
                     random numbers in these shapes; the model runs with them, or the next side
    while windows collapse:  twice the side, if fewer collapse with it

An inner side *collapses* where it is open in the model and 1 in the run: a network of stride 32 on
a picture of 32 pixels ends with a picture of one pixel, which tests nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from duotone.errors import ArgumentError, DuotoneError, shown

SIDES = (32, 64, 48, 320, 16, 128, 512, 224, 1)
"""The sizes to try for an open side; later ones only where the model does not run with earlier."""
LARGEST_SIDE = 256
"""The largest size to which an open side is doubled."""
_SAMPLE_RATE = 16000
_BOUNDS = (8, 2)
"""Random integers are below the first, or, if the model does not run, below the second."""

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
    """True if a side is not open."""
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


def generate(
    asked: Sequence[Asked],
    run: Callable[[Mapping[str, Any]], int],
    *,
    shapes: Shapes | None = None,
    seed: int = 0,
) -> Generated:
    """Makes random inputs with which a model runs.

    Args:
        asked: the inputs of the model.
        run: runs the model and returns how many inner sides collapsed; it raises a
            :class:`~duotone.errors.DuotoneError` if the model does not run with these inputs.
        shapes: the shapes of some inputs, by name.
        seed: the seed of the random numbers.

    Returns:
        The inputs.

    Raises:
        ArgumentError: ``shapes`` names an unknown input or contradicts the model.
        ArgumentError: the model runs with none of the sizes that were tried.
    """
    sides = bound(asked, shapes or {})
    error: DuotoneError | None = None
    for attempt in _attempts(asked, sides):
        try:
            collapsed = run(feed := attempt.feed(seed))
        except DuotoneError as found:
            error = error or found
            continue
        if not attempt.is_open:
            return Generated(feed, None)
        return _enlarged(attempt, feed, collapsed, run, seed)
    raise ArgumentError(_refusal(asked, sides, error))


def bound(asked: Sequence[Asked], shapes: Shapes) -> dict[str, tuple[Side, ...]]:
    """The sides of each input, those that ``shapes`` sets included.

    A symbolic side has one size wherever it occurs.

    Raises:
        ArgumentError: a shape names an unknown input or contradicts the model.
    """
    sizes: dict[str, int] = {}
    known = {one.name: one for one in asked}
    for name, shape in shapes.items():
        if name not in known:
            inputs = ", ".join(map(repr, known)) or "none"
            raise ArgumentError(f"shapes: the model has no input {name!r}; it has {inputs}.")
        _check(known[name], shape)
        pairs = zip(known[name].sides, shape, strict=False)
        sizes |= {side: size for side, size in pairs if isinstance(side, str)}
    return {
        one.name: tuple(shapes.get(one.name, (sizes.get(str(s), s) for s in one.sides)))
        for one in asked
    }


def _check(asked: Asked, shape: Sequence[int]) -> None:
    if not fits(asked, shape) or any(size < 1 for size in shape):
        given = ",".join(map(str, shape))
        raise ArgumentError(f"shapes: {asked.name}={given} does not fit the input, {asked.text}.")


@dataclasses.dataclass(frozen=True, slots=True)
class _Attempt:
    """One way to fill the open sides: ``side`` on some axes, integers below ``most``."""

    asked: Sequence[Asked]
    sides: Mapping[str, tuple[Side, ...]]
    side: int
    last_only: bool
    most: int

    @property
    def is_open(self) -> bool:
        return any(not is_size(s) for sides in self.sides.values() for s in sides)

    def shape(self, one: Asked) -> tuple[int, ...]:
        sides = self.sides[one.name]
        rank = len(sides)
        free = {rank - 1} if self.last_only or (rank == 1 and _is_float(one)) else range(1, rank)
        return tuple(
            int(s) if isinstance(s, int) and s > 0 else self.side if axis in free else 1
            for axis, s in enumerate(sides)
        )

    def feed(self, seed: int) -> dict[str, Any]:
        generators = (np.random.default_rng([seed, index]) for index in itertools.count())
        return {
            one.name: _random(one, self.shape(one), self.most, generator)
            for one, generator in zip(self.asked, generators, strict=False)
        }


def _attempts(asked: Sequence[Asked], sides: Mapping[str, tuple[Side, ...]]) -> Iterator[_Attempt]:
    """The attempts in order, each combination of shapes and bound once."""
    seen = set()
    for side, last_only, most in itertools.product(SIDES, (False, True), _BOUNDS):
        attempt = _Attempt(asked, sides, side, last_only, most)
        key = (*map(attempt.shape, asked), most)
        if key not in seen:
            seen.add(key)
            yield attempt


def _enlarged(
    attempt: _Attempt,
    feed: dict[str, Any],
    collapsed: int,
    run: Callable[[Mapping[str, Any]], int],
    seed: int,
) -> Generated:
    """Doubles the open sides as long as fewer inner sides collapse."""
    while collapsed and attempt.side * 2 <= LARGEST_SIDE:
        larger = dataclasses.replace(attempt, side=attempt.side * 2)
        try:
            fewer = run(larger_feed := larger.feed(seed))
        except DuotoneError:
            break
        if fewer >= collapsed:
            break
        attempt, feed, collapsed = larger, larger_feed, fewer
    return Generated(feed, attempt.side)


def _refusal(
    asked: Sequence[Asked],
    sides: Mapping[str, tuple[Side, ...]],
    error: DuotoneError | None,
) -> str:
    fixed = all(is_size(side) for shape in sides.values() for side in shape)
    tried = "" if fixed else f", with {', '.join(map(str, sorted(SIDES)))} for open sides"
    inputs = "; ".join(f"{one.name}: {one.text}" for one in asked)
    example = next((one for one in asked if not all(map(is_size, one.sides))), None)
    shapes = "" if example is None else f"name the shapes (--shapes '{_example(example)}'), or "
    return (
        f"the model does not run with random inputs{tried}: {shapes}give inputs as an .npz file "
        f"(--data inputs.npz). Its inputs are {inputs}. {error}"
    )


def _example(asked: Asked) -> str:
    """A shape of an input in the syntax of ``--shapes``."""
    sizes = [s if is_size(s) else 1 if axis == 0 else 320 for axis, s in enumerate(asked.sides)]
    return f"{asked.name}={','.join(map(str, sizes))}"


def _is_float(asked: Asked) -> bool:
    return asked.dtype is not None and np.dtype(asked.dtype).kind not in "iub"


def _random(
    asked: Asked, shape: tuple[int, ...], most: int, generator: np.random.Generator
) -> np.ndarray:
    if asked.dtype is None:
        raise ArgumentError(
            f"the input {asked.name!r} is {asked.type_text}; give it in an .npz file (--data)."
        )
    dtype = np.dtype(asked.dtype)
    if _is_float(asked):
        return generator.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(dtype)
    if not shape:  # a rate or a length
        rate = asked.name in ("sr", "sample_rate")
        return np.asarray(_SAMPLE_RATE if rate else 1, dtype)
    return generator.integers(0, most, shape).astype(dtype)


def collapsed_sides(sides: Sequence[Side], shape: Sequence[int]) -> int:
    """Counts the open sides of an inner value, except its first, that are 1 in a run."""
    pairs = zip(sides[1:], shape[1:], strict=False)
    return sum(size == 1 and not is_size(side) for side, size in pairs)


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
    """The user's inputs, or generated ones if there is no data.

    Raises:
        ArgumentError: there are both data and shapes, or the data has no inputs.
    """
    if data is None:
        return generated()
    if shapes:
        raise ArgumentError("give shapes of random inputs, or data, which has its own shapes.")
    return Generated(read_inputs(data)[0], None)


def read_inputs(data: Any) -> list[dict[str, Any]]:
    """The user's inputs: from a mapping, a list of mappings, or an ``.npz`` file.

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
    """False if a side or the rank differs; a model without sides may not know them, and fits."""
    if not asked.sides:
        return True
    pairs = zip(asked.sides, shape, strict=False)
    return len(asked.sides) == len(shape) and all(
        size == side or not is_size(side) for side, size in pairs
    )


def _read_file(path: Path) -> dict[str, Any]:
    """The arrays of an ``.npz`` file by name.

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
        problem, cause = "it is damaged, or its contents are no numbers", error
    raise ArgumentError(
        f"{path} is not an .npz file of arrays by input name: {problem}. numpy.savez writes one: "
        "numpy.savez('inputs.npz', x=array)."
    ) from cause


def described(feed: Mapping[str, Any]) -> dict[str, str]:
    """The dtype and shape of each input: ``{"x": "float32[1, 3, 64, 64]"}``."""
    arrays = {name: np.asarray(array) for name, array in feed.items()}
    return {name: f"{array.dtype}{list(array.shape)}" for name, array in arrays.items()}
