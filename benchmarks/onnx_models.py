"""``python -m benchmarks.onnx_models FOLDER``: real ONNX models, duotone beside its peers.

The folder holds ``.onnx`` files, unpacked from PyPI packages that ship models; none is downloaded.
Peers are measured where they are installed (``onnxconverter-common``; ``onnxruntime.transformers``
comes with ONNX Runtime). All run in ONNX Runtime on the CPU with its optimisations off, on the same
random inputs; the error is that of the worst result, relative to its largest element.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import duotone.onnx
from duotone.errors import OnnxError
from duotone.onnx import files, running
from duotone.onnx.weights import bytes_in

Rewriter = Callable[[Any], Any]


def peers() -> dict[str, Rewriter]:
    """The rewriters that are installed, by name."""
    found: dict[str, Rewriter] = {"duotone": lambda model: duotone.onnx.rewrite(model).model}
    for name, module in (
        ("common", "onnxconverter_common.float16"),
        ("onnxruntime", "onnxruntime.transformers.float16"),
    ):
        with contextlib.suppress(ImportError):
            convert = importlib.import_module(module).convert_float_to_float16
            found[name] = lambda model, convert=convert: convert(model, keep_io_types=True)
    return found


def casts_in(graph: Any) -> int:
    """Casts of a graph and of those inside."""
    inner = (a.g for node in graph.node for a in node.attribute if a.type == a.GRAPH)
    return sum(node.op_type == "Cast" for node in graph.node) + sum(map(casts_in, inner))


def error_of(first: list[Any], second: list[Any]) -> float:
    """The largest error of a result; infinite where one is not finite."""
    most = 0.0
    for a, b in zip(first, second, strict=True):
        if not isinstance(a, np.ndarray) or a.dtype.kind != "f" or not a.size:
            continue
        x, y = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(x)
        if not np.isfinite(y[finite]).all():
            return float("inf")
        scale = np.max(np.abs(x), initial=0.0, where=finite) or 1.0
        most = max(most, float(np.max(np.abs(x - y), initial=0.0, where=finite)) / scale)
    return most


def measure(path: Path, rewriters: dict[str, Rewriter]) -> str:
    """One line of the table."""
    model = onnx.load(path)
    session = running.session(model)
    feed = running.inputs_for(session)
    expected = running.run(session, None, feed)
    size = sum(map(bytes_in, files.tensors(model.graph)))
    cells = [f"{path.stem:<32} {len(model.graph.node):>6}"]
    for rewrite in rewriters.values():
        copied = onnx.ModelProto()
        copied.CopyFrom(model)
        start = time.perf_counter()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                made = rewrite(copied)
            seconds = time.perf_counter() - start
            got = running.run(running.session(made), None, feed)
        except OnnxError:
            cells.append(f"{'does not run':>28}")
            continue
        except Exception as error:  # a peer's own
            cells.append(f"{type(error).__name__:>28}")
            continue
        share = sum(map(bytes_in, files.tensors(made.graph))) / max(size, 1)
        casts = casts_in(made.graph) - casts_in(model.graph)
        cells.append(f"{error_of(expected, got):>9.1e} {casts:>4} {share:>5.2f} {seconds:>5.1f} s")
    return " | ".join(cells)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    rewriters = peers()
    heads = [f"{name + ': error casts bytes time':>28}" for name in rewriters]
    print(" | ".join([f"{'model':<32} {'nodes':>6}", *heads]))
    for path in sorted(parser.parse_args().folder.rglob("*.onnx")):
        try:
            print(measure(path, rewriters), flush=True)
        except OnnxError as error:
            print(f"{path.stem:<32} {str(error)[:120]}")


if __name__ == "__main__":
    main()
