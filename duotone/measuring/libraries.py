"""Libraries that run or convert models, which are imported only when they are needed."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Iterator
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


@contextlib.contextmanager
def quiet(logger: logging.Logger) -> Iterator[None]:
    """Silences the warnings of a library, about its own internals, inside a block."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
