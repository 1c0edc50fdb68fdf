"""The rewriters of ONNX models that ``benchmarks.onnx_models`` compares, each with its defaults.

Two are libraries next to duotone. NVIDIA's AutoCast (ModelOpt) wants other versions of onnx and
ONNX Runtime, so it runs in a Python of its own, which also ends it when its time is over. It runs
the model to see which values are too large for half: on the inputs that all are measured with,
since with those that it makes itself (1 for an unknown side) some models do not run.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import duotone.onnx

PEERS = {
    "common": "onnxconverter_common.float16",
    "onnxruntime": "onnxruntime.transformers.float16",
}
"""Libraries by their short names."""
AUTOCAST = "autocast"
Feed = Mapping[str, np.ndarray]
Rewriter = Callable[[Any, Feed], tuple[Any, float]]
"""Takes a model and its inputs; returns it rewritten, with the seconds that it took."""

_PROGRAM = """
import sys, time, onnx
from modelopt.onnx.autocast import convert_to_mixed_precision
start = time.perf_counter()
model = convert_to_mixed_precision(
    sys.argv[1], "fp16", keep_io_types=True, providers=["cpu"], calibration_data=sys.argv[3]
)
spent = time.perf_counter() - start
onnx.save(model, sys.argv[2])
print(f"\\n{spent}")
"""


class PeerError(Exception):
    """A rewriter failed; its text is what the table shows."""


def rewriters(python: Path | None, limit: float) -> dict[str, Rewriter]:
    """The rewriters that are installed, by name; AutoCast has so many seconds for a model."""
    found = {"duotone": _timed(lambda model: duotone.onnx.rewrite(model).model)}
    for name, module in PEERS.items():
        with contextlib.suppress(ImportError):
            convert = importlib.import_module(module).convert_float_to_float16
            found[name] = _timed(lambda model, convert=convert: convert(model, keep_io_types=True))
    if python is not None:
        found[AUTOCAST] = lambda model, feed: _autocast(python, limit, model, feed)
    return found


def modelopt_version(python: Path) -> str:
    """The version of ModelOpt in an environment.

    Raises:
        OSError: there is no such Python.
        subprocess.CalledProcessError: ModelOpt is not installed there.
    """
    code = "import importlib.metadata as m; print(m.version('nvidia-modelopt'))"
    return subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def _timed(rewrite: Callable[[Any], Any]) -> Rewriter:
    def timed(model: Any, feed: Feed) -> tuple[Any, float]:
        del feed
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            made = rewrite(model)
        return made, time.perf_counter() - start

    return timed


def _autocast(python: Path, limit: float, model: Any, feed: Feed) -> tuple[Any, float]:
    """AutoCast's model, and the seconds without those of its imports.

    Raises:
        PeerError: it failed or took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder, "given.onnx"), Path(folder, "made.onnx")
        onnx.save(model, given)
        inputs = Path(folder, "inputs")
        inputs.mkdir()
        np.savez(inputs / "0.npz", allow_pickle=False, **feed)
        command = [python, "-c", _PROGRAM, given, made, inputs]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=limit, cwd=folder, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise PeerError(f"over {limit:g} s") from error
        if done.returncode:
            raise PeerError(_kind_of(done.stderr))
        return onnx.load(made), float(done.stdout.splitlines()[-1])


def _kind_of(said: str) -> str:
    """The class of the exception that ended a process, by its last line."""
    last = said.strip().splitlines()[-1] if said.strip() else ""
    return last.split(":")[0].split(".")[-1].strip() or "fails"
