# python -m benchmarks._peers_torch
"""The process of one way of ``peers_cpu.py`` in PyTorch, or of its models in ONNX Runtime.

AdamW is fused. Imports nothing of duotone or JAX, so that any interpreter with PyTorch and NumPy
can run it; ONNX Runtime takes ``onnx``, ``onnxscript`` and ``onnxruntime`` as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # noqa: N812  # pyright: ignore[reportMissingImports]

from benchmarks._peers import COMPILED, INT8, ONNX, Made, draw, serve
from benchmarks._peers_torch_models import MODELS


def made(case: dict[str, Any], way: str, task: str, batch: int) -> Made:
    """Prepares a prediction or a training step; see ``peers_cpu.Peer`` for ``case``."""
    model = _model(case)
    count = sum(leaf.numel() for leaf in model.parameters() if leaf.requires_grad)
    if way in ONNX:
        del model
        return _in_onnx_runtime(case, batch, way == INT8), count
    inputs = [torch.from_numpy(x) for x in draw(case["inputs"], batch)]
    half = way in ("torch.autocast", COMPILED)
    if way == COMPILED:
        model = torch.compile(model)
    if task == "predict":
        if way == "torch in bfloat16":
            model = model.bfloat16()
            inputs = [x.bfloat16() if x.is_floating_point() else x for x in inputs]
        model.eval()

        def predict() -> None:
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=half):
                model(*inputs)

        return predict, count
    (target,) = (torch.from_numpy(x) for x in draw([case["target"]], batch))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            found = model(*inputs)
        if target.is_floating_point():
            loss = F.mse_loss(found.float(), target)
        else:
            loss = F.cross_entropy(found.float().flatten(0, -2), target.long().flatten())
        loss.backward()
        optimizer.step()

    return step, count


def _model(case: dict[str, Any]) -> Any:
    """The model of a case, with the same weights in each process."""
    torch.manual_seed(0)
    model = MODELS[case["name"]](SimpleNamespace(**case["shape"]))
    return model.to(memory_format=torch.channels_last)


def _in_onnx_runtime(case: dict[str, Any], batch: int, quantized: bool) -> Callable[[], Any]:
    """A prediction of ONNX Runtime; quantized, products read weights in int8.

    Another process exports the model, so that this one holds what the prediction needs.
    """
    import onnxruntime  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        settings = {"case": case, "batch": batch, "quantized": quantized, "folder": folder}
        command = [sys.executable, "-m", "benchmarks._peers_torch", json.dumps(settings)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-300:])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = Path(folder) / "model.onnx"
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    fed = dict(zip(names, draw(case["inputs"], batch), strict=True))
    return lambda: session.run(None, fed)


def _export(case: dict[str, Any], batch: int, quantized: bool, folder: str) -> None:
    """Writes a model as ``model.onnx``."""
    from onnxruntime import quantization  # pyright: ignore[reportMissingImports]

    inputs = tuple(torch.from_numpy(x) for x in draw(case["inputs"], batch))
    path = Path(folder) / "model.onnx"
    first = path.with_name("float32.onnx") if quantized else path
    torch.onnx.export(_model(case).eval(), inputs, first, dynamo=True, verbose=False)
    if quantized:
        quantization.quantize_dynamic(first, path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    settings = json.loads(sys.argv[1])
    if "folder" in settings:
        sys.exit(_export(**settings))
    serve(lambda **task: made(settings["case"], settings["way"], **task))
