# python -m benchmarks.onnx_models
"""Real ONNX models in half precision: duotone next to its peers.

``python -m benchmarks.onnx_models FOLDER`` measures and writes the result; ``--print`` writes none.

The folder holds ``.onnx`` files, unpacked from PyPI packages that ship models; none is downloaded.
The bar on bytes leaves out models with less than half of their bytes in float32 (quantised, or half
already) and those below 1 MB, whose weights are tables: windows, filter banks, resampling kernels.
Peers are measured where they are installed (``onnxconverter-common``; ``onnxruntime.transformers``
comes with ONNX Runtime; ``--autocast PYTHON`` is the Python of an environment with
``nvidia-modelopt[onnx]``, whose AutoCast has ``--limit`` seconds for a model and is shown the
inputs: ``benchmarks/_onnx_peers.py``). All run in ONNX Runtime on the CPU with its optimizations
off, on the same random inputs; the error is that of the worst result, relative to its largest
element: the median over nine seeds. That provider keeps some half values in float32 (``plain``);
``error`` is that of the same model with every half value rounded, as on a GPU, and the bar is on
it. Where the types of a model are unknown, its values are not rounded (``rounded``), and the bar
takes the plain errors of all. An error up to 5e-3 is that of rounding: there the order of tools
follows from the seed. Casts are those of the rewritten model less those of the given one: fewer
than 0 where the model's own changed nothing any more and are dropped.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import math
import statistics
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.progress import track

from benchmarks._common import Bar, Result, table, write
from benchmarks._onnx_peers import AUTOCAST, PEERS, PeerError, Rewriter, modelopt_version, rewriters
from duotone.errors import OnnxError
from duotone.measuring.differences import relative_error
from duotone.measuring.inputs import described
from duotone.onnx import files, running
from duotone.onnx.exposing import rounded
from duotone.onnx.weights import bytes_in

QUESTION = "Are real ONNX models in half precision as accurate, as small and as clean as by others?"
COMMAND = "python -m benchmarks.onnx_models FOLDER"
BYTES = 0.55
ERROR, NOISE = 5e-3, 1.1
LARGE = 1_000_000
SEEDS = range(9)
SHAPES = {"piper_tts/nakdimon": {"input_1": (1, 64)}}
"""Shapes of inputs whose length duotone takes for that of a signal: these are letters."""
PACKAGES = ("onnx", "onnxruntime", "onnxconverter-common")


def casts_in(graph: Any) -> int:
    """Casts of a graph and of those inside."""
    inner = (a.g for node in graph.node for a in node.attribute if a.type == a.GRAPH)
    return sum(node.op_type == "Cast" for node in graph.node) + sum(map(casts_in, inner))


def error_of(first: list[Any], second: list[Any]) -> float:
    """The largest error of a float result; infinite where only one is infinite or NaN."""
    pairs = [
        (a, b)
        for a, b in zip(first, second, strict=True)
        if isinstance(a, np.ndarray) and a.dtype.kind == "f"
    ]
    return max((relative_error(a, b) for a, b in pairs), default=0.0)


def median_error(model: Any, feeds: list[Any], expected: list[list[Any]]) -> float:
    """The median over the inputs of a model's error, against the given model's results.

    Raises:
        OnnxError: ONNX Runtime cannot run it.
    """
    session = running.session(model)
    found = [running.run(session, None, feed) for feed in feeds]
    return statistics.median(map(error_of, expected, found))


def measure(name: str, path: Path, ways: dict[str, Rewriter]) -> dict[str, Any]:
    """Returns the figures of each rewriter for one model, and the inputs that it ran with.

    ``error`` and ``plain``, ``rounded``, ``casts``, ``bytes``, ``seconds``.
    """
    model = onnx.load(path)
    session = running.session(model)
    source, shapes = files.read(path), SHAPES.get(name)
    feeds = [running.inputs_for(source, seed=seed, shapes=shapes).feed for seed in SEEDS]
    expected = [running.run(session, None, feed) for feed in feeds]
    sizes = [(tensor.data_type, int(bytes_in(tensor))) for tensor in files.tensors(model.graph)]
    size = sum(size for _, size in sizes)
    full = sum(size for kind, size in sizes if kind == onnx.TensorProto.FLOAT)
    found: dict[str, Any] = {
        "nodes": len(model.graph.node),
        "inputs": described(feeds[0]),
        "weights": size,
        "float32 share": float(full / max(size, 1)),
    }
    for way, rewrite in ways.items():
        copied = onnx.ModelProto()
        copied.CopyFrom(model)
        try:
            made, spent = rewrite(copied, feeds[0])
            plain = median_error(made, feeds, expected)
            exposed = rounded(made)
            error = plain if exposed is None else median_error(exposed, feeds, expected)
        except OnnxError:
            found[way] = {"failed": "does not run"}
            continue
        except PeerError as failure:
            found[way] = {"failed": str(failure)}
            continue
        except Exception as failure:  # a peer's own
            found[way] = {"failed": type(failure).__name__}
            continue
        found[way] = {
            "error": error,
            "plain": plain,
            "rounded": exposed is not None,
            "casts": casts_in(made.graph) - casts_in(model.graph),
            "bytes": float(sum(map(bytes_in, files.tensors(made.graph))) / max(size, 1)),
            "seconds": spent,
        }
    return found


def _cells(one: dict[str, Any]) -> list[Any]:
    if "failed" in one:
        return [one["failed"], "", "", "", ""]
    return [
        f"{one['error']:.1e}",
        f"{one['plain']:.1e}",
        one["casts"],
        one["bytes"],
        one["seconds"],
    ]


def bars_of(records: dict[str, dict[str, Any]]) -> list[Bar]:
    """Failures, errors and casts against the peers', bytes, over all models."""
    failed, worse, more, large = 0, 0, 0, 0
    for one in records.values():
        ours = one["duotone"]
        if "failed" in ours:
            failed += 1
            continue
        others = [one[name] for name in (*PEERS, AUTOCAST) if "error" in one.get(name, {})]
        key = "error" if all(each["rounded"] for each in (ours, *others)) else "plain"
        best = min((other[key] for other in others), default=math.inf)
        worse += ours[key] > max(NOISE * best, ERROR)
        as_good = [o["casts"] for o in others if o[key] <= ours[key]]
        more += ours["casts"] > min(as_good, default=ours["casts"])
        counts = one["float32 share"] >= 0.5 and one["weights"] >= LARGE
        large += counts and ours["bytes"] > BYTES
    return [
        Bar("models that do not run rewritten", failed, 0, "models"),
        Bar(f"models with an error above {ERROR:g} and 1.1 of the best peer's", worse, 0, "models"),
        Bar("models with more casts than a peer as accurate", more, 0, "models"),
        Bar(f"models that keep more than {BYTES} of their bytes", large, 0, "models"),
    ]


def text_of(records: dict[str, dict[str, Any]], names: Sequence[str]) -> str:
    """The table: a row for each model, five columns for each rewriter."""
    columns = ("error", "plain", "casts", "bytes", "s")
    heads = [f"{name} {column}" for name in names for column in columns]
    rows = [
        [name, one["nodes"], *(cell for who in names for cell in _cells(one[who]))]
        for name, one in records.items()
    ]
    return table(["model", "nodes", *heads], rows)


def main() -> None:
    """Measures every model of a folder and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--print", action="store_true", help="write no result")
    parser.add_argument("--autocast", type=Path, metavar="PYTHON", help="with ModelOpt installed")
    parser.add_argument("--limit", type=float, default=300, help="seconds of AutoCast for a model")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    installed = {found.name for found in importlib.metadata.distributions()}
    versions = {name: importlib.metadata.version(name) for name in PACKAGES if name in installed}
    if asked.autocast is not None:
        versions["nvidia-modelopt"] = modelopt_version(asked.autocast)
    ways = rewriters(asked.autocast, asked.limit)
    records: dict[str, dict[str, Any]] = {}
    paths = sorted(asked.folder.rglob("*.onnx"))
    if not paths:
        parser.error(f"{asked.folder} holds no .onnx file; unpack wheels that ship models there")
    for path in track(paths, "models"):
        name = f"{path.relative_to(asked.folder).parts[0]}/{path.stem}"
        name = f"{name} ({path.parent.name})" if name in records else name
        records[name] = measure(name, path, ways)
    bars, text = bars_of(records), text_of(records, list(ways))
    print(text)
    if not asked.print:
        write(Result("onnx_models", QUESTION, COMMAND, bars, text, {"models": records, **versions}))


if __name__ == "__main__":
    main()
