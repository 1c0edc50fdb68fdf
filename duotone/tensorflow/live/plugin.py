"""Plugin: registers one function with Grappler that may replace each graph.

A registration is permanent, and a second one for the same device type ends the process. So it
happens once, under a lock. TensorFlow reads the strings and functions of a registration later, so
they live as long as the process.
"""

from __future__ import annotations

import ctypes as c
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from duotone.errors import TensorFlowError
from duotone.tensorflow.live import c_api

Callback = Callable[[bytes, Sequence[str]], bytes | None]
"""Takes a serialized graph and the names of nodes to keep; returns a new graph, or ``None``."""

DEVICE_TYPES = ("CPU", "GPU")
_PATIENCE = 5.0
"""The seconds that a copy of the process may take to register."""
_lock = threading.Lock()
_alive: list[Any] = []
"""The objects that TensorFlow may read at any time: they must never be freed."""
_failed: list[TensorFlowError] = []


def register(tf: Any, callback: Callback, report: Callable[[BaseException], None]) -> None:
    """Registers a callback for all graphs of this process; later calls do nothing.

    Args:
        tf: the module ``tensorflow``.
        callback: is called for each graph, in any thread.
        report: is called with an exception of the callback, whose graph then stays as it is.

    Raises:
        TensorFlowError: this TensorFlow does not fit, now or at the first call.
    """
    with _lock:
        if _failed:
            raise _failed[0]
        if _alive:
            return
        api = c_api.Api(tf)
        optimize = _optimize(api, callback, report)
        if _is_taken(api, optimize):
            types = " or ".join(DEVICE_TYPES)
            raise api.misfit(f"another plug-in is registered for {types}, and each takes one")
        _alive.append(optimize)
        for device_type in DEVICE_TYPES:
            _register(api, device_type.encode(), optimize)


def _is_taken(api: c_api.Api, optimize: Any) -> bool:
    """Registers in a copy of this process, which TensorFlow ends if a device type is taken.

    The copy is made by C's ``fork`` with Python's lock held, and runs none of Python's hooks.
    """
    child = c.PyDLL(None).fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            for device_type in DEVICE_TYPES:
                _register(api, device_type.encode(), optimize)
        finally:
            os._exit(0)
    end = time.monotonic() + _PATIENCE
    while child > 0 and time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT
        time.sleep(0.001)
    if child > 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return False


def _optimize(api: c_api.Api, callback: Callback, report: Callable[[BaseException], None]) -> Any:
    """Returns the function that Grappler calls."""

    def optimize(_: int, graph: Any, item: int, made: Any, status: int) -> None:
        data = c.string_at(graph[0].data, graph[0].length)
        try:
            result = callback(data, api.preserved(item))
        except BaseException as error:  # nothing may pass through C
            report(error)
            result = None
        api.fill(made[0], data if result is None else result)

    return c_api.Optimize(optimize)


def _register(api: c_api.Api, device_type: bytes, optimize: Any) -> None:
    problems: list[TensorFlowError] = []

    def initialize(registration: Any, status: int) -> None:
        given = registration[0]
        if (given.major, given.minor) != c_api.VERSION:
            found = f"{given.major}.{given.minor}"
            problems.append(api.misfit(f"the version of its plug-in API is {found}, not 0.0"))
        given.struct_size = c.sizeof(c_api.Registration)
        given.device_type = device_type
        configs = given.configs[0]
        configs.struct_size = c.sizeof(c_api.Configs)
        for name in c_api.MIXED_PRECISION:
            setattr(configs, name, c_api.OFF)
        given.optimizer[0].struct_size = c.sizeof(c_api.PluginOptimizer)
        given.optimizer[0].optimize = optimize

    function = c_api.Initialize(initialize)
    _alive.extend((device_type, function))
    try:
        api.register(function)
    except TensorFlowError as error:
        problems.append(error)
    if problems:
        _failed.extend(problems)
        raise problems[0]
