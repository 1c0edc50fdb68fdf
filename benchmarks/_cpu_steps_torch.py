# python benchmarks/_cpu_steps_torch.py
"""PyTorch's own gain from ``torch.autocast("cpu", torch.bfloat16)`` on ``gpt2_wide``'s step.

The same transformer and training step as ``gpt2_wide`` of ``cpu_steps.py``, in eager PyTorch:
float32 and autocast in turn, median of the ratios. Imports nothing of duotone or JAX, so that any
interpreter with PyTorch can run it; prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import time

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

BATCH, LENGTH, LAYERS, WIDTH, HEADS, VOCABULARY = 4, 256, 4, 512, 8, 8192
ROUNDS = 11


class Block(nn.Module):
    """Attention and a two-layer perceptron, each after a layer norm and with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_in, self.norm_out = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, length, width) to the same."""
        heads = (*x.shape[:2], 3, HEADS, WIDTH // HEADS)
        q, k, v = self.qkv(self.norm_in(x)).view(heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        hidden = nn.functional.gelu(self.up(self.norm_out(x)), approximate="tanh")
        return x + self.down(hidden)


class GPT2(nn.Module):
    """Token and position embeddings, blocks, a norm, the token embedding again as the head."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Maps (batch, length) tokens to (batch, length, vocabulary) logits."""
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return nn.functional.linear(self.norm(x), self.token.weight)


def main() -> None:
    """Measures and prints."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    model = GPT2()
    optimizer = torch.optim.AdamW(model.parameters(), 6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1))

    def step(half: bool) -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model(tokens[:, :-1])
        flat = logits.float().reshape(-1, VOCABULARY)
        nn.functional.cross_entropy(flat, tokens[:, 1:].reshape(-1)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return time.perf_counter() - start

    for half in (False, True):
        step(half)
        step(half)
    pairs = [(step(False), step(True)) for _ in range(ROUNDS)]
    plain, half = ([pair[i] for pair in pairs] for i in (0, 1))
    found = {
        "version": torch.__version__,
        "float32": statistics.median(plain),
        "autocast": statistics.median(half),
        "speedup": statistics.median(a / b for a, b in pairs),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
