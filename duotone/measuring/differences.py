"""Measures how the values of two runs of a model differ, in the same way for every front end.

The error of a value is its largest difference relative to the largest finite size of the reference.
It is infinite if only one of the two is infinite or NaN, or if the shapes differ.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from duotone.errors import plural
from duotone.text.numbers import json_number

PARTED = 16.0
"""The two runs first differ at the first value whose error exceeds this many steps of float16."""
_STEPS = 2.0**10
_LARGEST = 65504.0
_OVERFLOWS = 65520.0
"""Float16: steps of its mantissa, its largest number, and the size from which one rounds to inf."""


@dataclasses.dataclass(frozen=True, slots=True)
class ValueDifference:
    """The difference of one value between two runs.

    Attributes:
        name: the name of the value.
        operation: the operation that makes it in the second model; ``"input"`` if none does.
        error: the largest difference, relative to the largest finite size in the first run;
            infinite where only one run is infinite or NaN, and if the shapes differ.
        ulp: the error in steps of float16 at that size.
        saturated: elements that are finite in the first run, and infinite, NaN or the largest
            number of float16 in the second.
        plain: the error when the runtime may keep values in float32 that the model stores in half;
            ``None`` if it was not measured.
    """

    name: str
    operation: str
    error: float
    ulp: float
    saturated: int
    plain: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """The result of ``duotone.onnx.compare``, ``duotone.tensorflow.compare`` and ``compare_step``.

    Attributes:
        outputs: the results.
        nodes: the inner values that both models have, in the order of the nodes.
        inputs: the dtype and shape of each input: ``{"x": "float32[1, 3, 64, 64]"}``.
        notes: one line for each choice that the caller left open.
    """

    outputs: tuple[ValueDifference, ...]
    nodes: tuple[ValueDifference, ...]
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def parts(self) -> ValueDifference | None:
        """The first value that differs by more than 16 steps of float16 or is saturated."""
        found = (v for v in (*self.nodes, *self.outputs) if v.ulp > PARTED or v.saturated)
        return next(found, None)

    @property
    def error(self) -> float:
        """The largest error of a result."""
        return max((value.error for value in self.outputs), default=0.0)

    @property
    def plain_error(self) -> float:
        """The largest error of a result when the runtime may keep half values in float32."""
        return max((value.plain or 0.0 for value in self.outputs), default=0.0)

    def to_json(self) -> str:
        """Returns all of it as JSON; an infinite error is the text ``"Infinity"``."""
        return json.dumps(dataclasses.asdict(self, dict_factory=_plain), allow_nan=False)

    def __str__(self) -> str:
        """Returns inputs, results, then the first value that differs."""
        given = [f"input {name}: {text}" for name, text in self.inputs.items()]
        heads = f"{'result':<32} {'error':>10} {'ULP':>8} {'saturated':>10} {'plain error':>12}"
        inside = f"compared {plural(len(self.nodes), 'inner value')} of the same name"
        rows = [_row(value) for value in self.outputs]
        return "\n".join([*given, *self.notes, heads, *rows, inside, _parts_text(self.parts)])


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: json_number(v) if isinstance(v, float) else v for key, v in items}


def _row(value: ValueDifference) -> str:
    plain = "" if value.plain is None else f"{value.plain:.2e}"
    return (
        f"{value.name:<32} {value.error:>10.2e} {value.ulp:>8.1f} {value.saturated:>10} {plain:>12}"
    )


def _parts_text(parts: ValueDifference | None) -> str:
    if parts is None:
        return f"no value differs by more than {PARTED:.0f} steps of float16"
    return (
        f"they first differ at {parts.name} ({parts.operation}): error {parts.error:.2e}, "
        f"{plural(parts.saturated, 'element')} saturated"
    )


def difference(
    name: str, first: Any, second: Any, operation: str = "", plain: Any = None
) -> ValueDifference:
    """Compares one value of two runs.

    Args:
        name: the name of the value.
        first: the reference, an array or a list or mapping of such.
        second: the same value of the second run.
        operation: the operation that makes it.
        plain: the value of a run in which the runtime may keep half values in float32.

    Returns:
        The difference.

    Example:
        >>> import numpy as np
        >>> found = difference("y", np.float32([1e5, 1.0]), np.float16([np.inf, 1.0]))
        >>> found.error, found.saturated
        (inf, 1)
    """
    error = relative_error(first, second)
    lost = sum(saturated(a, b) for a, b in _pairs(first, second))
    kept = None if plain is None else relative_error(first, plain)
    return ValueDifference(name, operation, error, error * _STEPS, lost, kept)


def differences(
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    results: Iterable[str],
    operations: Mapping[str, str],
    plain: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[tuple[ValueDifference, ...], tuple[ValueDifference, ...]]:
    """Compares the values of two runs that have the same name.

    Args:
        first: the values of the reference by name.
        second: those of the second run.
        results: the names of the results.
        operations: by name, the operation that makes a value; without inputs.
        plain: the results of a run in which the runtime may keep half values in float32.

    Returns:
        The differences of the results, and those of the other values.
    """
    found = {
        name: difference(
            name, first[name], second[name], operations.get(name, "input"), plain.get(name)
        )
        for name in second
        if name in first
    }
    ends = {name: found.pop(name) for name in dict.fromkeys(results)}
    return tuple(ends.values()), tuple(found.values())


def relative_error(first: Any, second: Any) -> float:
    """Returns the largest difference of two values, relative to the first's largest finite size.

    Args:
        first: the reference, an array or a list or mapping of such.
        second: the other value.

    Returns:
        The error; infinite if only one is infinite or NaN, or if the two differ in shape, in
        structure or in a text.

    Example:
        >>> import numpy as np
        >>> relative_error(np.float32([1.0, 2.0]), np.float32([1.0, 1.5]))
        0.25
        >>> relative_error(np.float32([1.0, np.nan]), np.float32([1.0, 0.0]))
        inf
    """
    return max((_error(a, b) for a, b in _pairs(first, second)), default=0.0)


def constant_results(results: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns one line for each result of the reference that can show no difference.

    Args:
        results: the results of the first run by name.

    Example:
        >>> import numpy as np
        >>> constant_results({"y": np.zeros(3), "z": np.arange(3.0)})
        ('the result y is 0 everywhere, which hides differences: give other inputs',)
    """
    arrays = {name: one for name, one in results.items() if isinstance(one, np.ndarray)}
    texts = ((name, _constant(array)) for name, array in arrays.items())
    return tuple(
        f"the result {name} {text}, which hides differences: give other inputs"
        for name, text in texts
        if text
    )


def _constant(array: np.ndarray) -> str:
    """Describes an array of floats that has one value everywhere, or none; empty for others."""
    if array.dtype.kind != "f" or array.size < 2:
        return ""
    finite = array[np.isfinite(array)]
    if not finite.size:
        return "has no finite number"
    return f"is {finite[0]:.3g} everywhere" if (finite == finite[0]).all() else ""


def _pairs(first: Any, second: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the pairs of arrays in two values; ``None`` if one has no counterpart."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        if first.keys() != second.keys():
            yield None, list(first)
        first, second = ([one[key] for key in first if key in second] for one in (first, second))
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        if len(first) != len(second):
            yield None, first
        for a, b in zip(first, second, strict=False):
            yield from _pairs(a, b)
    else:
        yield first, second


def _error(first: Any, second: Any) -> float:
    a, b = np.asarray(first), np.asarray(second)
    if a.shape != b.shape or _kind(a) != _kind(b):
        return math.inf
    if not _kind(a):
        return 0.0 if np.array_equal(a, b) else math.inf
    a, b = _floats(a), _floats(b)
    finite = np.isfinite(a) & np.isfinite(b)
    same = finite | (a == b) | (np.isnan(a) & np.isnan(b))
    if not same.all():
        return math.inf
    a, b = a[finite], b[finite]
    scale = float(np.max(np.abs(a), initial=0.0)) or 1.0
    return float(np.max(np.abs(a - b), initial=0.0)) / scale


def _kind(array: np.ndarray) -> str:
    """Returns ``"complex"``, ``"real"``, or ``""`` for anything but numbers."""
    if array.dtype.kind == "c":
        return "complex"
    return "real" if array.dtype.kind in "fiub" or array.dtype.name == "bfloat16" else ""


def _floats(array: np.ndarray) -> np.ndarray:
    """Returns the numbers as float64; a complex number becomes its two components."""
    if _kind(array) == "complex":
        return np.atleast_1d(array.astype(np.complex128)).view(np.float64)
    return array.astype(np.float64)


def saturated(first: Any, second: Any) -> int:
    """Counts the elements that are finite in the first array and lost in the second.

    A lost element is infinite or NaN, or it has the largest size of float16 where the first has a
    larger one.
    """
    a, b = np.asarray(first), np.asarray(second)
    if a.shape != b.shape or not _kind(a) or _kind(a) != _kind(b):
        return 0
    is_half = b.dtype == np.float16
    a, b = np.abs(_floats(a)), np.abs(_floats(b))
    cut = (b >= _LARGEST) & (a > _OVERFLOWS) if is_half else np.zeros(b.shape, bool)
    return int(np.count_nonzero(np.isfinite(a) & (~np.isfinite(b) | cut)))
