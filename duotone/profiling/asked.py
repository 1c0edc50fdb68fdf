"""The user's choices for a profile: the key operation, and which iterations count."""

from __future__ import annotations

import dataclasses

from duotone._checks import check_string, check_whole
from duotone.errors import ArgumentError


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileChoices:
    """The checked choices of :func:`duotone.profile`."""

    key_node: str | None = None
    iter_start: int | None = None
    iter_stop: int | None = None

    def __post_init__(self) -> None:
        if self.key_node is not None:
            check_string("profile", "key_node", self.key_node)
        for name in ("iter_start", "iter_stop"):
            value = getattr(self, name)
            if value is not None:
                check_whole("profile", name, value, 0)
        if self.iter_stop is not None and self.iter_stop < (self.iter_start or 0):
            raise ArgumentError(
                f"iter_stop is {self.iter_stop}, before iter_start, which is {self.iter_start}"
            )
