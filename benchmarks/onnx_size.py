# python -m benchmarks.onnx_size
"""How long does a large ONNX model take to rewrite, and how much memory?

Models are made here: blocks of a transformer whose norms, activations and masks are written out by
hand, so that every rule and the choice by a minimum cut have work; and one matrix product after
another whose weights are external data (a sparse file of zeros, 4 GB). Seconds are of reading,
rewriting and writing, by the clock and of the processor, which others cannot slow down; memory is
the largest that a process of its own used.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import duotone.onnx
from benchmarks._common import Bar, Result, in_a_process, table, write

QUESTION = "How long does a large ONNX model take to rewrite, and how much memory?"
COMMAND = "python -m benchmarks.onnx_size"
LIMITS = {1_000: 0.3, 10_000: 5.0, 120_000: 20.0}
"""Seconds of the processor that a model of so many nodes may take."""
PAINTERS = ("duotone", "mincut", "tensorflow")
FOR_ALL = 10_000
"""The size up to which all painters are measured; above it only the first one is."""
WIDTH = 64
LARGE = 4 * 2**30
SIDE = 8192
_BLOCK = """
    MatMul {x} w : q        Add q b : p             MatMul p w : k        Transpose k : t
    MatMul p t : s          Mul s scale : m         Softmax m : a         MatMul a p : v
    Add v {x} : r           ReduceMean r : u        Sub r u : d           Mul d d : e
    ReduceMean e : g        Add g eps : h           Sqrt h : i            Div d i : n
    MatMul n w : f          Sigmoid f : o           Mul f o : y           Exp n : z
    Log z : l               Add y l : out
"""
"""Operation, operands and result; letters are names within a block."""


def blocks(count: int) -> Any:
    """A model of at least ``count`` nodes."""
    lines = [part.split(":") for line in _BLOCK.splitlines() for part in line.split("  ") if part]
    rows = [(left.split(), right.strip()) for left, right in lines]
    draw = np.random.default_rng(0)
    shared = {"scale": np.asarray(0.125, "f"), "eps": np.asarray(1e-5, "f")}
    tensors = [numpy_helper.from_array(array, name) for name, array in shared.items()]
    nodes, x = [], "x"
    for number in range(-(-count // len(rows))):
        for name, shape in (("w", (WIDTH, WIDTH)), ("b", (WIDTH,))):
            array = (draw.standard_normal(shape) / 8).astype(np.float32)
            tensors.append(numpy_helper.from_array(array, f"{name}{number}"))
        for (op, *operands), result in rows:
            names = [
                x if name == "{x}" else name if name in shared else f"{name}{number}"
                for name in operands
            ]
            more: dict[str, Any] = {"axes": [-1]} if op == "ReduceMean" else {}
            nodes.append(helper.make_node(op, names, [f"{result}{number}"], **more))
        x = f"out{number}"
    sides = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [WIDTH, WIDTH]) for n in ("x", x)]
    graph = helper.make_graph(nodes, "blocks", sides[:1], sides[1:], tensors)
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def write_large(folder: Path, size: int) -> Path:
    """A model whose weights are ``size`` bytes of zeros in a sparse file next to it."""
    each = 4 * SIDE * SIDE
    nodes, tensors, x = [], [], "x"
    for number in range(size // each):
        tensor = TensorProto(name=f"w{number}", dims=[SIDE, SIDE], data_type=TensorProto.FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        places = (("location", "w.bin"), ("offset", number * each), ("length", each))
        for key, value in places:
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
        nodes.append(helper.make_node("MatMul", [x, tensor.name], [f"y{number}"]))
        x = f"y{number}"
    sides = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, SIDE]) for n in ("x", x)]
    graph = helper.make_graph(nodes, "large", sides[:1], sides[1:], tensors)
    with (folder / "w.bin").open("wb") as file:
        file.truncate(size)
    path = folder / "large.onnx"
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def rewrite_file(path: Path, painter: str = "duotone") -> tuple[float, float, int]:
    """Seconds by the clock and of the processor to rewrite a file, and the casts in it then."""
    out = path.with_name(f"{path.stem}_{painter}.onnx")
    start, worked = time.perf_counter(), time.process_time()
    done = duotone.onnx.rewrite(path, out, painter=painter)
    spent, worked = time.perf_counter() - start, time.process_time() - worked
    return spent, worked, sum(node.op_type == "Cast" for node in done.model.graph.node)


def peak() -> float:
    """The most memory that this process used, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="write no result")
    parser.add_argument("--alone", type=Path, help="rewrite one file and print seconds and MB")
    asked = parser.parse_args()
    if asked.alone:
        before = peak()
        print([rewrite_file(asked.alone)[0], before, peak()])
        return
    rows, bars = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # First, since a child's most memory counts from that of this process.
        path = write_large(folder, LARGE)
        call = (sys.executable, "-m", "benchmarks.onnx_size", "--alone", str(path))
        large, before, most = in_a_process(*call)
        duotone.onnx.rewrite(blocks(1))  # imports what a rewrite needs
        for size, limit in LIMITS.items():
            path = folder / f"{size}.onnx"
            onnx.save(blocks(size), path)
            for painter in PAINTERS if size <= FOR_ALL else PAINTERS[:1]:
                spent, worked, casts = rewrite_file(path, painter)
                rows.append([size, painter, spent, worked, casts])
                name = f"processor seconds, {size:,} nodes, painter {painter}"
                bars.append(Bar(name, worked, limit, "s"))
    bars.append(Bar("memory of a model with 4 GB of external data", most / 1e3, 1.0, "GB"))
    text = table(["nodes", "painter", "s by the clock", "processor s", "casts"], rows)
    text += "\n\n" + table(
        ["s, 4 GB of external data", "MB before", "MB at most"], [[large, before, most]]
    )
    print(text)
    if not asked.print:
        figures = {"sizes": rows, "external": {"s": large, "before": before, "most": most}}
        write(Result("onnx_size", QUESTION, COMMAND, bars, text, figures))


if __name__ == "__main__":
    main()
