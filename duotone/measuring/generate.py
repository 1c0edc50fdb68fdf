"""Generates random inputs with which a model runs.

::

    for each side:   shapes with this side where the model leaves it open, 1 for a batch
                     random numbers in these shapes; the model runs with them, or the next side
    while inner sides collapse:  twice the side, if fewer collapse with it

An inner side *collapses* if it is open in the model and 1 in the run. For example, a network of
stride 32 turns an image of 32 pixels into one pixel, which tests nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from duotone._checks import check_mapping, check_whole
from duotone.errors import ArgumentError, DuotoneError, shown
from duotone.measuring.inputs import Asked, Generated, Shapes, Side, fits, is_size

SIDES = (32, 64, 48, 320, 16, 128, 512, 224, 1)
"""The sizes to try for an open side, in order, until the model runs with one."""
SIGNAL = 16000
"""The first size to try if the open side counts the samples of a signal: a second of speech."""
LARGEST_SIDE = 256
"""The largest size to which an open side is doubled."""
_CHANNELS = ((), (1,), (2,))
_INTEGERS = ((True, 8), (False, 8), (False, 2))
"""The ways to make integers, in order: whether one integer for each element of a batch is a length
(the last side of a float input), and the upper limit of random integers."""


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

    Raises:
        ArgumentTypeError: ``shapes`` is not a mapping, or ``seed`` not a whole number.
        ArgumentError: ``shapes`` names an unknown input or contradicts the model, the seed is
            negative, or the model runs with none of the sizes that were tried.
    """
    check_mapping("compare", "shapes", shapes)
    seed = check_whole("compare", "seed", seed, 0)
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
    """Returns the sides of each input, those that ``shapes`` sets included.

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
    sizes = isinstance(shape, Iterable) and all(isinstance(size, Integral) for size in shape)
    if not sizes or not fits(asked, shape) or any(size < 1 for size in shape):
        given = ",".join(map(str, shape)) if sizes else shown(shape)
        raise ArgumentError(f"shapes: {asked.name}={given} does not fit the input, {asked.text}.")


@dataclasses.dataclass(frozen=True, slots=True)
class _Attempt:
    """One way to make inputs: ``side`` on open axes, integers below ``most`` or lengths."""

    asked: Sequence[Asked]
    sides: Mapping[str, tuple[Side, ...]]
    side: int
    last_only: bool
    lengths: bool
    most: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [self.shape(one) for one in self.asked]

    @property
    def is_open(self) -> bool:
        """True if the chosen side occurs in a shape; a batch may be open too."""
        return self.shapes != dataclasses.replace(self, side=self.side + 1).shapes

    def shape(self, one: Asked) -> tuple[int, ...]:
        sides = self.sides[one.name]
        rank = len(sides)
        free = {rank - 1} if self.last_only or (rank == 1 and _is_float(one)) else range(1, rank)
        return tuple(
            int(s) if isinstance(s, int) and s > 0 else self.side if axis in free else 1
            for axis, s in enumerate(sides)
        )

    @property
    def length(self) -> int:
        """The longest last side of a float input with a batch; 0 if there is none."""
        shapes = [self.shape(one) for one in self.asked if _is_float(one)]
        return max((shape[-1] for shape in shapes if len(shape) > 1), default=0)

    def feed(self, seed: int) -> dict[str, Any]:
        return {
            one.name: self._array(one, np.random.default_rng([seed, index]))
            for index, one in enumerate(self.asked)
        }

    def _array(self, one: Asked, generator: np.random.Generator) -> np.ndarray:
        shape = self.shape(one)
        if self.lengths and self.length and _is_integer(one) and len(shape) == 1:
            return np.full(shape, self.length, one.dtype)
        return _random(one, shape, self.most, generator)


def _attempts(asked: Sequence[Asked], sides: Mapping[str, tuple[Side, ...]]) -> Iterator[_Attempt]:
    """Yields the attempts in order, each combination of shapes once, with integers in each way."""
    seen = set()
    ways = _INTEGERS if any(map(_is_integer, asked)) else _INTEGERS[:1]
    sizes = (SIGNAL, *SIDES) if _are_signals(asked, sides) else SIDES
    for side, last_only, way in itertools.product(sizes, (False, True), ways):
        attempt = _Attempt(asked, sides, side, last_only, *way)
        key = (*attempt.shapes, way)
        if key not in seen:
            seen.add(key)
            yield attempt


def _are_signals(asked: Sequence[Asked], sides: Mapping[str, tuple[Side, ...]]) -> bool:
    """Checks if all open sides but a batch are the last of float inputs of one or two channels."""
    is_open = [one for one in asked if not all(map(is_size, sides[one.name][1:]))]
    found = [_is_float(one) and sides[one.name][1:-1] in _CHANNELS for one in is_open]
    return bool(found) and all(found)


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
    asked: Sequence[Asked], sides: Mapping[str, tuple[Side, ...]], error: DuotoneError | None
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
    """Returns a shape of an input in the syntax of ``--shapes``."""
    sizes = [s if is_size(s) else 1 if axis == 0 else 320 for axis, s in enumerate(asked.sides)]
    return f"{asked.name}={','.join(map(str, sizes))}"


def _is_float(asked: Asked) -> bool:
    return asked.dtype is not None and np.dtype(asked.dtype).kind not in "iub"


def _is_integer(asked: Asked) -> bool:
    return asked.dtype is not None and np.dtype(asked.dtype).kind in "iu"


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
        return np.asarray(SIGNAL if rate else 1, dtype)
    return generator.integers(0, most, shape).astype(dtype)


def collapsed_sides(sides: Sequence[Side], shape: Sequence[int]) -> int:
    """Counts the open sides of an inner value, except its first, that are 1 in a run."""
    pairs = zip(sides[1:], shape[1:], strict=False)
    return sum(size == 1 and not is_size(side) for side, size in pairs)
