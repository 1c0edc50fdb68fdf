"""The C API of TensorFlow's graph optimizers, ``tensorflow/c/experimental/grappler/grappler.h``."""

from __future__ import annotations

import ctypes as c
from pathlib import Path
from typing import Any

from duotone.errors import TensorFlowError

VERSION = (0, 0)
"""The major and minor version of the API that the structures here are for."""

OFF = 1
"""``TF_TriState_Off``."""
_OPTIMIZERS = (
    "disable_model_pruning implementation_selector function_optimization "
    "common_subgraph_elimination arithmetic_optimization debug_stripper constant_folding "
    "shape_optimization auto_mixed_precision auto_mixed_precision_onednn_bfloat16 "
    "auto_mixed_precision_mkl pin_to_host_optimization layout_optimizer remapping "
    "loop_optimization dependency_optimization auto_parallel memory_optimization "
    "scoped_allocator_optimization"
).split()
MIXED_PRECISION = tuple(name for name in _OPTIMIZERS if name.startswith("auto_mixed"))
"""TensorFlow's own passes, which must not run after duotone's."""
_LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2", "libtensorflow_cc.2.dylib")
_REGISTER = (
    "_ZN10tensorflow8grappler15InitGraphPluginEPFvP30TP_OptimizerRegistrationParamsP10TSL_StatusE"
)
"""``tensorflow::grappler::InitGraphPlugin``, which needs no library to be loaded."""
_OK = (None, 0, 1)
"""The representations of an ``absl::Status`` without an error."""


class Configs(c.Structure):
    """``TP_OptimizerConfigs``: which of TensorFlow's optimizers run."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("ext", c.c_void_p),
        *((name, c.c_int) for name in _OPTIMIZERS),
    )


class Buffer(c.Structure):
    """``TF_Buffer``: bytes, and the function that frees them."""

    _fields_ = (("data", c.c_void_p), ("length", c.c_size_t), ("free", c.c_void_p))


Optimize = c.CFUNCTYPE(
    None, c.c_void_p, c.POINTER(Buffer), c.c_void_p, c.POINTER(Buffer), c.c_void_p
)
"""Takes the optimizer, a graph, its item, the buffer of the new graph, and a status."""


class PluginOptimizer(c.Structure):
    """``TP_Optimizer``: the functions of an optimizer."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("ext", c.c_void_p),
        ("create", c.c_void_p),
        ("optimize", Optimize),
        ("destroy", c.c_void_p),
    )


class Registration(c.Structure):
    """``TP_OptimizerRegistrationParams``: what a plug-in fills in."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("ext", c.c_void_p),
        ("major", c.c_int32),
        ("minor", c.c_int32),
        ("patch", c.c_int32),
        ("device_type", c.c_char_p),
        ("configs", c.POINTER(Configs)),
        ("optimizer", c.POINTER(PluginOptimizer)),
    )


Initialize = c.CFUNCTYPE(None, c.POINTER(Registration), c.c_void_p)
"""Takes the registration and a status; ``TF_InitGraph``."""


class _Status(c.Structure):
    """``absl::Status``, which is returned through memory: larger than 16 bytes in every ABI."""

    _fields_ = (("code", c.c_void_p), ("unused", c.c_void_p), ("also_unused", c.c_void_p))


class Api:
    """The functions of the TensorFlow that is imported.

    Args:
        tf: the module ``tensorflow``.

    Raises:
        TensorFlowError: its library has no such functions.
    """

    def __init__(self, tf: Any) -> None:
        self.version: str = tf.__version__
        self._library = _library(Path(tf.__file__).parent, self.version)
        self._libc = c.CDLL(None)
        self._libc.malloc.restype, self._libc.malloc.argtypes = c.c_void_p, [c.c_size_t]
        self._free = c.cast(self._libc.free, c.c_void_p).value
        self._library.TF_NewStatus.restype = c.c_void_p

    def register(self, initialize: Any) -> None:
        """Registers a plug-in by TensorFlow's own function, whose name is not public.

        Raises:
            TensorFlowError: this TensorFlow has no such function, or refuses the plug-in.
        """
        try:
            function = getattr(self._library, _REGISTER)
        except AttributeError as error:
            raise self.misfit("it does not export InitGraphPlugin") from error
        function.restype, function.argtypes = _Status, [Initialize]
        if function(initialize).code not in _OK:
            raise self.misfit("it refuses the plug-in: another one may have its device type")

    def preserved(self, item: int) -> list[str]:
        """Returns the names of the nodes that a graph must keep.

        ``TF_GetFetchNodesList`` gives fewer, and in TensorFlow 2.21 the first one again and again.
        """
        count, size = c.c_int(), c.c_size_t()
        status = c.c_void_p(self._library.TF_NewStatus())
        where = c.c_void_p(item)
        self._library.TF_GetNodesToPreserveListSize(where, c.byref(count), c.byref(size), status)
        room = max(1, count.value)
        store = c.create_string_buffer(max(1, size.value))
        texts, lengths = (c.c_void_p * room)(), (c.c_size_t * room)()
        self._library.TF_GetNodesToPreserveList(where, texts, lengths, count, store, size, status)
        self._library.TF_DeleteStatus(status)
        found = zip(texts[: count.value], lengths[: count.value], strict=True)
        return [c.string_at(text, length).decode() for text, length in found]

    def fill(self, buffer: Any, data: bytes) -> None:
        """Gives a :class:`Buffer` a copy of some bytes, which TensorFlow frees."""
        copy = self._libc.malloc(len(data))
        c.memmove(copy, data, len(data))
        buffer.data, buffer.length, buffer.free = copy, len(data), self._free

    def misfit(self, why: str) -> TensorFlowError:
        """Returns the error for a TensorFlow that does not fit."""
        return TensorFlowError(
            f"TensorFlow {self.version}: {why}, so duotone cannot rewrite its live graphs. It was "
            "tested with TensorFlow 2.21. `duotone rewrite` still rewrites saved graphs."
        )


def _library(folder: Path, version: str) -> c.CDLL:
    for name in _LIBRARIES:
        path = folder / name
        if path.exists():
            library = c.CDLL(str(path))
            if hasattr(library, "TF_GetNodesToPreserveListSize"):
                return library
    raise TensorFlowError(
        f"TensorFlow {version} has no library with the C API of graph optimizers, so "
        "duotone rewrites no live graph of it. It was tested with TensorFlow 2.21 on Linux."
    )
