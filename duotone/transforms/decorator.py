"""The decorator that ``autocast`` returns without a function.

As a context manager it raises an error that tells the user what to write. PyTorch has ``with
torch.autocast(...):`` because it runs one operation at a time. JAX traces a whole function, which
duotone then rewrites.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

from duotone.errors import ArgumentTypeError
from duotone.policy.arguments import is_off


class Decorator(functools.partial[Any]):
    """A decorator that applies ``autocast`` with settings."""

    def __enter__(self) -> NoReturn:
        """Tells the user what to write instead of a ``with`` statement.

        Raises:
            ArgumentTypeError: always.
        """
        settings = self.keywords
        if not settings["enabled"] or is_off("autocast", settings["dtype"]):
            raise ArgumentTypeError(
                "autocast: switched off, it is not a context manager. To keep a part of a function "
                "in float32, write `with duotone.keep_full():` around it, or call it through "
                "duotone.autocast(part, enabled=False)."
            )
        raise ArgumentTypeError(
            "autocast: it is not a context manager, since duotone rewrites a whole function when "
            "JAX traces it. Wrap the function, duotone.autocast(fn, dtype=...)(*args), or write "
            "@duotone.autocast(dtype=...) above it. Inside of it `with duotone.keep_full():` keeps "
            "a part in float32, `with duotone.keep_half():` in half."
        )

    def __exit__(self, *raised: object) -> None:
        """Is never called; Python requires the method before it calls ``__enter__``."""
