"""Names that were public once, and what they are called now; using one is an error that says so.

Nothing is kept working under an old name. Read by ``duotone.__getattr__``, and put around the
functions of which an argument was renamed. A name is taken out of the tables after one release.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from duotone.errors import ArgumentTypeError

Function = TypeVar("Function", bound=Callable[..., Any])

NAMES = {
    "Monitor": "LossScaleMonitor",
    "optimizer": "optimizer_from_environment",
    "select": "select_tree",
}
"""Names of the package."""

ARGUMENTS = {
    ("autocast", "static"): "weights=",
    ("explain", "static"): "weights=",
    ("value_and_grad", "axis_name"): "axis_name= of duotone.all_finite(grads, axis_name=...)",
}
"""Arguments by name, of public functions."""


def refuses_old_arguments(function: Function) -> Function:
    """A public function that names the new argument where it is given the old one.

    Args:
        function: may hand further keyword arguments on to a function of the user's, its first
            argument; what that takes is not refused.

    Returns:
        A function that raises an :class:`~duotone.errors.ArgumentTypeError` then.

    Example:
        >>> import duotone
        >>> duotone.autocast(abs, static=3)
        Traceback (most recent call last):
        duotone.errors.ArgumentTypeError: autocast: static= is now weights=
    """
    name = function.__name__
    old = {argument: new for (owner, argument), new in ARGUMENTS.items() if owner == name}
    parameters = inspect.signature(function).parameters.values()
    hands_on = any(p.kind is p.VAR_KEYWORD for p in parameters)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for argument in old.keys() & kwargs.keys():
            if not (hands_on and args and _takes(args[0], argument)):
                raise ArgumentTypeError(f"{name}: {argument}= is now {old[argument]}")
        return function(*args, **kwargs)

    return checked  # pyright: ignore[reportReturnType]


def _takes(function: Any, argument: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == argument or p.kind is p.VAR_KEYWORD for p in parameters)
