"""Runs a function on sample batches and records the ranges of its values.

::

    for each batch
        trace the function and build its graph, which must equal the graph of the first batch
        run it in float32, equation by equation; record for each float32 value the least and the
            greatest element, and how many elements float16 would round to subnormals or to zero
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from duotone.errors import ArgumentTypeError, CalibrationError, kind_of, shown
from duotone.graph.graph import HALF_TYPES, Graph
from duotone.jaxpr.reading.build import build
from duotone.jaxpr.reading.signature import (
    describe_callable,
    flatten_call,
    for_another_run,
    name_of,
)
from duotone.jaxpr.reading.trace import trace
from duotone.jaxpr.running.observe import observe
from duotone.policy.arguments import check_callable
from duotone.policy.calibration import Calibration, ValueRange
from duotone.policy.policy import Policy
from duotone.precision.ranges import fingerprint, path_of
from duotone.transforms import autocast as api

_FLOAT16 = HALF_TYPES["float16"]


def calibrate(fn: Callable[..., Any], batches: Iterable[Any]) -> Calibration:
    """Measures the values of a function on sample data.

    The function runs in float32, equation by equation, with loops in Python: expect some thousand
    operations a second on small arrays. It does not measure values inside ``shard_map``. Measure
    the function that is rewritten: for ``autocast(jax.value_and_grad(loss))``, measure
    ``jax.value_and_grad(loss)``. For a result of :func:`duotone.autocast`, it measures the function
    inside.

    Args:
        fn: the function.
        batches: arguments of ``fn``, one element for each call: a tuple of positional arguments, or
            a single argument, which may be a named tuple.

    Returns:
        For each float32 value the least and greatest element over all batches, and the shares that
        float16 would round to subnormals or to zero. Values that were infinite or NaN in a batch
        are left out.

    Raises:
        CalibrationError: there is no batch, an argument contains NaN, or the program of ``fn``
            differs between batches (another structure or Python number; other sizes are fine).
        ArgumentTypeError: ``fn`` is not callable, or ``batches`` is one batch (a dictionary, an
            array) or cannot be iterated over.

    Example:
        >>> import jax.numpy as jnp, duotone
        >>> measured = duotone.calibrate(jnp.square, [jnp.asarray([1e-3, 20.0])])
        >>> square = measured.values[-1]
        >>> square.high, square.small
        (400.0, 0.5)
        >>> fast = duotone.autocast(jnp.square, dtype=jnp.float16, calibration=measured)
    """
    check_callable("calibrate", fn)
    fn = api.function_inside(fn)
    tally: _Tally | None = None
    for batch in _elements(batches):
        tally = tally or _Tally(name_of(fn))
        tally.add(fn, batch if type(batch) is tuple else (batch,), {})
    if tally is None:
        raise CalibrationError(
            f"calibrate({name_of(fn)}): there is no batch to measure; pass at least one, such as "
            "[(params, images)]"
        )
    return tally.calibration()


class Calibrations:
    """Calibrations of all programs of one optimizer or model, updated by each call."""

    def __init__(self) -> None:
        self._tallies: dict[str, _Tally] = {}

    def measure(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Calibration:
        """Measures one call, as :func:`calibrate` does.

        Args:
            fn: the function; for a result of :func:`duotone.autocast`, measures the one inside.
            args: its positional arguments.
            kwargs: its keyword arguments.

        Returns:
            The calibration of this program over all its calls so far.

        Raises:
            ArgumentTypeError, CalibrationError: as :func:`calibrate` does.
        """
        fn = api.function_inside(fn)
        new = _Tally(name_of(fn))
        new.add(fn, args, kwargs)
        tally = self._tallies.setdefault(new.fingerprint, new)
        if tally is not new:
            tally.join(new)
        return tally.calibration()

    @property
    def calibrations(self) -> tuple[Calibration, ...]:
        """One calibration for each program."""
        return tuple(tally.calibration() for tally in self._tallies.values())

    def added_to(self, policy: Policy | None) -> Policy:
        """Returns a policy with these calibrations in addition to its own."""
        policy = policy or Policy()
        own = self.calibrations
        measured = {new.fingerprint for new in own}
        others = [old for old in policy.calibrations if old.fingerprint not in measured]
        return policy.replace(calibration=(*own, *others))


def _elements(batches: Iterable[Any]) -> Iterator[Any]:
    if isinstance(batches, Mapping | str | np.ndarray | jax.Array):  # keys, letters, rows
        raise ArgumentTypeError(
            f"calibrate: batches is {shown(batches)}; pass a list of batches, such as [batch]"
        )
    try:
        return iter(batches)
    except TypeError as error:
        raise ArgumentTypeError(
            f"calibrate: batches is {kind_of(batches)}, which cannot be iterated over; "
            "pass a list of arguments, such as [(params, images)]"
        ) from error


class _Tally:
    """The statistics of each value so far."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.fingerprint = ""
        self._names: dict[int, str] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._seen: dict[int, np.ndarray] = {}
        self._batches = 0

    def add(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Runs the function on one batch."""
        arrays, signature = flatten_call(describe_callable(fn), args, kwargs)
        traced = trace(fn, signature, arrays)
        names = traced.arguments()
        self._check_data(names, arrays)
        built = build(traced.jaxpr)
        self._check(built.graph, names)
        values, new = built.graph.values, dict[int, list[Any]]()

        def show(value: int, array: Any) -> None:
            if values[value].paintable and values[value].size:
                self._shapes.setdefault(value, array.shape)
                new.setdefault(value, []).append(_statistics(array))

        for value, array in zip(built.graph.inputs, arrays, strict=True):
            show(value, array)
        observe(built, for_another_run(arrays), show)
        for value, found in new.items():
            self._add_rows(value, [*np.asarray(jax.device_get(found), np.float64)])
        self._batches += 1

    def join(self, other: _Tally) -> None:
        """Adds another tally of the same program."""
        for value, row in other._seen.items():
            self._add_rows(value, [row])
        self._batches += other._batches

    def _add_rows(self, value: int, rows: list[np.ndarray]) -> None:
        if value in self._seen:
            rows.append(self._seen[value])
        self._seen[value] = _joined(np.stack(rows))

    def _check_data(self, names: tuple[str, ...], arrays: list[Any]) -> None:
        for name, array in zip(names, arrays, strict=True):
            if isinstance(array, (jax.ShapeDtypeStruct, Tracer)):
                raise ArgumentTypeError(
                    f"calibrate({self._name}): {name} of batch {self._batches} is a "
                    f"{type(array).__name__}, which has no data; call calibrate on real arrays, "
                    "outside of jax.jit and other transformations"
                )
        for name, array in zip(names, arrays, strict=True):
            if isinstance(array, jax.Ref) or not hasattr(array, "dtype"):
                continue
            if jnp.issubdtype(array.dtype, jnp.inexact) and bool(jnp.isnan(array).any()):
                raise CalibrationError(
                    f"calibrate({self._name}): {name} of batch {self._batches} holds NaN, which "
                    "has no range; take such batches out"
                )

    def _check(self, graph: Graph, names: tuple[str, ...]) -> None:
        """Raises if a batch gives another graph than the first."""
        found = fingerprint(graph)
        if not self.fingerprint:
            self.fingerprint = found
            self._names = {v: path_of(node) for node in graph.nodes for v in node.outputs}
            self._names |= dict(zip(graph.inputs, names, strict=True))
        elif found != self.fingerprint:
            raise CalibrationError(
                f"calibrate({self._name}): batch {self._batches} gives another program than "
                "batch 0; pass batches of one structure, with the same non-array arguments"
            )

    def calibration(self) -> Calibration:
        """Returns the record."""
        values = []
        for value, row in sorted(self._seen.items()):
            low, smallest, high, nonzero, small, lost, over, bad = map(float, row)
            if not bad:
                small, lost, over = (round(n / max(nonzero, 1.0), 6) for n in (small, lost, over))
                smallest = smallest if nonzero else 0.0
                name, shape = self._names[value], self._shapes[value]
                values.append(
                    ValueRange(value, name, low, high, small, lost, shape, smallest, over)
                )
        return Calibration(self._name, self.fingerprint, self._batches, tuple(values))


@jax.jit
def _statistics(array: jax.Array) -> jax.Array:
    """Returns the least element, the smallest nonzero magnitude, the greatest element, and counts.

    The counts are of nonzero, small, lost, too large (all for float16), and non-finite elements.
    """
    size = jnp.abs(array)
    small = (size > 0) & (size < _FLOAT16.smallest_normal)
    lost = (size > 0) & (size <= _FLOAT16.smallest / 2)
    over = size > _FLOAT16.largest
    counts = [jnp.sum(which, dtype=jnp.float32) for which in (size > 0, small, lost, over)]
    bad = jnp.sum(~jnp.isfinite(array), dtype=jnp.float32)
    smallest = jnp.min(jnp.where(size > 0, size, jnp.inf))
    return jnp.stack([jnp.min(array), smallest, jnp.max(array), *counts, bad])


def _joined(rows: np.ndarray) -> np.ndarray:
    """Merges rows of statistics."""
    return np.concatenate([rows[:, :2].min(0), rows[:, 2:3].max(0), rows[:, 3:].sum(0)])
