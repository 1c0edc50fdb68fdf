"""Background: one thread that compiles what calls can do without for now.

A call that has a form to run in meanwhile hands the better one over, and takes it between two calls
once it is ready. There is one thread for the whole process, so that compiling takes no more than
one processor from the steps that run.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("duotone")

_THREAD = concurrent.futures.ThreadPoolExecutor(1, "duotone_background")
"""Compiles what all functions ask for, in the order in which they ask."""


class Pending:
    """A program that is compiled in the background.

    Args:
        name: of the program, for errors and the log.
        compile: makes it. The end of the process awaits it.
    """

    def __init__(self, name: str, compile: Callable[[], Any]) -> None:
        self._name, self._lock = name, threading.Lock()
        self._future: concurrent.futures.Future[Any] | None = _THREAD.submit(compile)

    def taken(self) -> Any | None:
        """The program if it is ready, to one caller only; else ``None``.

        Raises:
            Exception: what the compilation raised, once.
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
    """A program that is ready, and a better one that takes over once it is compiled.

    Args:
        name: of the better one.
        ready: called until then.
        compile: makes the better one, in the background.
    """

    def __init__(
        self, name: str, ready: Callable[..., Any], compile: Callable[[], Callable[..., Any]]
    ) -> None:
        self._program, self._pending = ready, Pending(name, compile)

    def __call__(self, *leaves: Any) -> Any:
        """Calls whichever program is ready.

        Raises:
            Exception: what the compilation in the background raised, once.
        """
        self._program = self._pending.taken() or self._program
        return self._program(*leaves)
