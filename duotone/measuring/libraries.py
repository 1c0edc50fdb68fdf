"""Libraries that run models, which are imported only when a model runs."""

from __future__ import annotations

import importlib
from typing import Any

from duotone.errors import MissingExtraError


def library(name: str, what: str, extra: str) -> Any:
    """Imports a library of an extra.

    Raises:
        MissingExtraError: the library is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(what, name, extra) from error
