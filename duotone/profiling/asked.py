"""The user's choices for a profile: the key operation, and which iterations count."""

from __future__ import annotations

import dataclasses

from duotone.errors import ArgumentError, ArgumentTypeError, shown


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileChoices:
    """The checked choices of :func:`duotone.profile`."""

    key_node: str | None = None
    iter_start: int | None = None
    iter_stop: int | None = None

    def __post_init__(self) -> None:
        if self.key_node is not None and not isinstance(self.key_node, str):
            raise ArgumentTypeError(
                f"key_node is {shown(self.key_node)}: it takes the name of an operation"
            )
        for name in ("iter_start", "iter_stop"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise ArgumentTypeError(
                    f"{name} is {shown(value)}: it takes a whole number, from 0"
                )
            if value < 0:
                raise ArgumentError(f"{name} is {value}: iterations are counted from 0")
        if self.iter_stop is not None and self.iter_stop < (self.iter_start or 0):
            raise ArgumentError(
                f"iter_stop is {self.iter_stop}, before iter_start, which is {self.iter_start}"
            )
