"""The arguments of a bucketed function, by name and position."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from duotone.errors import ArgumentError, ArgumentTypeError, shown
from duotone.jaxpr.reading.signature import describe_callable
from duotone.text.suggestions import did_you_mean

Argument = int | str


def parameters_of(fn: Callable[..., Any]) -> tuple[list[str], frozenset[Argument]]:
    """Returns the names of the positional parameters, and the parameters that a call may omit.

    The latter are both names and positions. Both are empty if Python knows no signature.

    Example:
        >>> names, optional = parameters_of(lambda x, y=None, *, z=1: x)
        >>> names, sorted(optional, key=str)
        (['x', 'y'], [1, 'y', 'z'])
    """
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return [], frozenset()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in kinds]
    optional: set[Argument] = {p.name for p in parameters if p.default is not p.empty}
    return names, frozenset(optional | {names.index(n) for n in names if n in optional})


def checked_axes(fn: Callable[..., Any], axis: Any) -> Mapping[Argument, int]:
    """Checks the padded axis of each argument.

    Raises:
        ArgumentTypeError: an axis is not a number, or an argument is not a name or position.
        ArgumentError: no argument is named, or one is named twice.
    """
    axes: Mapping[Argument, int] = axis if isinstance(axis, Mapping) else {0: axis}
    for argument, number in axes.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise ArgumentTypeError(
                f"bucketed: axis is {shown(number)}; pass a number: axis={{{argument!r}: 1}}"
            )
        if isinstance(argument, bool) or not isinstance(argument, int | str):
            raise ArgumentTypeError(
                f"bucketed: axis names {shown(argument)}; pass names or positions"
            )
    if not axes:
        raise ArgumentError("bucketed: axis names no argument; nothing would be padded")
    names, _ = parameters_of(fn)
    positions = [names.index(a) if isinstance(a, str) and a in names else a for a in axes]
    twice = [a for a, at in zip(axes, positions, strict=True) if positions.count(at) > 1]
    if twice:
        raise ArgumentError(f"bucketed: {' and '.join(map(repr, twice))} are the same argument")
    return axes


def check_neutral(neutral: Any, axes: Mapping[Argument, int]) -> None:
    """Raises an ``ArgumentError`` if ``neutral`` names an argument that is not padded."""
    others = [a for a in neutral if a not in axes] if isinstance(neutral, Mapping) else []
    if others:
        raise ArgumentError(
            f"bucketed: neutral names {others[0]!r}, which axis does not; name "
            f"{', '.join(map(repr, axes))}"
        )


def check_names(fn: Callable[..., Any], names: Sequence[str]) -> None:
    """Raises an ``ArgumentError`` unless a function has arguments of these names."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in names:
        if name not in parameters:
            meant = did_you_mean(name, parameters, f"it takes {', '.join(parameters)}")
            raise ArgumentError(
                f"{describe_callable(fn, 'bucketed')} has no argument {name!r}; {meant}"
            )
