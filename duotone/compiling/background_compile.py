"""Background: one thread that compiles better programs while calls run slower ones.

A caller that already has a program submits the better one, and switches to it between two calls
once it is compiled. There is one thread for the whole process, so that compiling takes at most one
processor from the running steps.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("duotone")

_THREAD = concurrent.futures.ThreadPoolExecutor(1, "duotone_background")
"""Compiles the programs of all functions, in the order of their submission."""


class Pending:
    """A program that is compiled in the background; the process waits for it before it exits."""

    def __init__(self, name: str, compile: Callable[[], Any]) -> None:
        self._name, self._lock = name, threading.Lock()
        self._future: concurrent.futures.Future[Any] | None = _THREAD.submit(compile)

    def taken(self) -> Any | None:
        """Returns the program if it is ready, for one caller only; else ``None``.

        Raises:
            Exception: the exception of the compilation, once.
        """
        if self._future is None or not self._future.done():
            return None
        with self._lock:
            future, self._future = self._future, None
        if future is None:
            return None
        try:
            program = future.result()
        except Exception as error:
            error.add_note(f"while compiling {self._name} in the background")
            raise
        logger.info("%s is compiled and takes over", self._name)
        return program


class Swapped:
    """A program that is ready, and a better one that takes over once it is compiled."""

    def __init__(
        self, name: str, ready: Callable[..., Any], compile: Callable[[], Callable[..., Any]]
    ) -> None:
        self._program, self._pending = ready, Pending(name, compile)

    def __call__(self, *leaves: Any) -> Any:
        """Calls whichever program is ready.

        Raises:
            Exception: the exception of the background compilation, once.
        """
        self._program = self._pending.taken() or self._program
        return self._program(*leaves)
