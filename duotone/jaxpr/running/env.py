"""The environment of a rewritten program: its arrays, by value and precision."""

from __future__ import annotations

import weakref
from typing import Any

from duotone.graph.graph import Paint

_HALF = Paint.HALF  # bound once: Python 3.11 takes long to look up a member


class Env:
    """Arrays by value and precision.

    An environment inside a loop also sees its parents. Inside any other nested program it has only
    the operands of that program. An environment that shadows contains recomputed values: for a
    recomputed value, it never looks up the first computation in a parent.

    Attributes:
        shadows: whether it contains recomputed values.
    """

    def __init__(self, parent: Env | None = None, *, shadows: bool = False) -> None:
        self._full: dict[int, Any] = {}
        self._half: dict[int, Any] = {}
        self._parent = parent
        self._recomputed: dict[int, Env] = {}
        self.shadows = shadows

    def find(self, value: int, paint: Paint) -> Any:
        """Returns the array, or ``None``."""
        env: Env | None = self
        while env is not None:
            array = (env._half if paint is _HALF else env._full).get(value)
            if array is not None or (env.shadows and env.holds(value)):
                return array
            env = env._parent
        return None

    def write(self, value: int, paint: Paint, array: Any) -> None:
        """Keeps an array."""
        (self._half if paint is _HALF else self._full)[value] = array

    def holds(self, value: int) -> bool:
        """Checks if a value was written to this environment, not to a parent, in any precision."""
        return value in self._full or value in self._half

    def recomputed_at(self, site: int) -> Env:
        """Returns the environment of the values recomputed at a site, a child of this one."""
        if site not in self._recomputed:
            # A cycle would keep every array of the program until the next garbage collection.
            self._recomputed[site] = Env(weakref.proxy(self), shadows=True)
        return self._recomputed[site]
