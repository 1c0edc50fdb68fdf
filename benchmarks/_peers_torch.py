# python -m benchmarks._peers_torch
"""The process of one way of ``peers_cpu.py`` in eager PyTorch; AdamW is fused.

Imports nothing of duotone or JAX, so that any interpreter with PyTorch and NumPy can run it.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # noqa: N812  # pyright: ignore[reportMissingImports]

from benchmarks._peers import Made, draw, serve
from benchmarks._peers_torch_models import MODELS


def made(case: dict[str, Any], way: str, task: str, batch: int) -> Made:
    """Prepares a prediction or a training step; see ``peers_cpu.Peer`` for ``case``."""
    torch.manual_seed(0)
    model = MODELS[case["name"]](SimpleNamespace(**case["shape"]))
    model = model.to(memory_format=torch.channels_last)
    count = sum(leaf.numel() for leaf in model.parameters() if leaf.requires_grad)
    inputs = [torch.from_numpy(x) for x in draw(case["inputs"], batch)]
    half = way == "torch.autocast"
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    settings = json.loads(sys.argv[1])
    serve(lambda **task: made(settings["case"], settings["way"], **task))
