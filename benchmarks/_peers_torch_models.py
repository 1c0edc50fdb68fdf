"""The models of ``peers_cpu.py`` in eager PyTorch, of the same shapes and parameters.

Written as a user writes them: attention is ``scaled_dot_product_attention``, images are in the
format ``channels_last``. Each model takes the numbers of the zoo's ``Shape`` as attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # noqa: N812  # pyright: ignore[reportMissingImports]

Tensor = Any


def _heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def _perceptron(width: int, hidden: int, approximate: str) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, hidden), nn.GELU(approximate=approximate), nn.Linear(hidden, width)
    )


class Attention(nn.Module):
    """Attention of a sequence to itself, one linear layer for query, key and value."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, causal: bool = False) -> Tensor:
        """Maps (batch, length, width) to the same."""
        q, k, v = (_heads(part, self.heads) for part in self.joint(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def decode(self, x: Tensor, cache: Tensor, position: int) -> Tensor:
        """One token: (batch, 1, width), with a (2, batch, heads, context, size) cache."""
        q, *new = (_heads(part, self.heads) for part in self.joint(x).chunk(3, -1))
        cache[:, :, :, position : position + 1] = torch.stack(new)
        k, v = cache[:, :, :, : position + 1]
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and with a residual."""

    def __init__(self, width: int, heads: int, approximate: str) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.perceptron = _perceptron(width, 4 * width, approximate)

    def forward(self, x: Tensor, causal: bool = False) -> Tensor:
        """Maps (batch, length, width) to the same."""
        x = x + self.attention(self.first(x), causal)
        return x + self.perceptron(self.second(x))

    def decode(self, x: Tensor, cache: Tensor, position: int) -> Tensor:
        """The same for one token."""
        x = x + self.attention.decode(self.first(x), cache, position)
        return x + self.perceptron(self.second(x))


class GPT2(nn.Module):
    """Embeddings, blocks, a norm, the token embedding again as the head."""

    def __init__(self, s: Any) -> None:
        super().__init__()
        self.token = nn.Embedding(s.vocabulary, s.width)
        self.position = nn.Embedding(s.context, s.width)
        self.blocks = nn.ModuleList(Block(s.width, s.heads, "tanh") for _ in range(s.layers))
        self.norm, self.shape = nn.LayerNorm(s.width), s

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps (batch, length) tokens to (batch, length, vocabulary) logits."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, causal=True)
        return F.linear(self.norm(x), self.token.weight)


class Generator(GPT2):
    """GPT-2 that continues a token greedily, with a cache of keys and values."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps (batch,) first tokens to (count, batch) next ones."""
        s = self.shape
        size = (s.layers, 2, len(tokens), s.heads, s.context, s.width // s.heads)
        half = torch.is_autocast_enabled("cpu")
        kind = torch.bfloat16 if half else self.token.weight.dtype
        cache, found = torch.zeros(size, dtype=kind), []
        for position in range(s.count):
            x = (self.token(tokens) + self.position.weight[position])[:, None]
            for block, kept in zip(self.blocks, cache, strict=True):
                x = block.decode(x, kept, position)
            tokens = F.linear(self.norm(x), self.token.weight)[:, 0].argmax(-1)
            found.append(tokens)
        return torch.stack(found)


class LlamaBlock(nn.Module):
    """Grouped-query attention with rotary positions and a gated perceptron, after RMS norms."""

    def __init__(self, s: Any) -> None:
        super().__init__()
        size = s.width // s.heads
        outs = (s.width, s.groups * size, s.groups * size, s.width, s.hidden, s.hidden)
        names = ("query", "key", "value", "out", "gate", "up")
        for name, out in zip(names, outs, strict=True):
            setattr(self, name, nn.Linear(s.width, out, bias=False))
        self.down = nn.Linear(s.hidden, s.width, bias=False)
        self.first, self.second = nn.RMSNorm(s.width, 1e-5), nn.RMSNorm(s.width, 1e-5)
        self.shape = s

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """Maps (batch, length, width) to the same; ``turn`` is (2, length, size / 2)."""
        y, s = self.first(x), self.shape
        q, k = _rotate(_heads(self.query(y), s.heads), turn), _heads(self.key(y), s.groups)
        v = _heads(self.value(y), s.groups)
        mixed = F.scaled_dot_product_attention(
            q, _rotate(k, turn), v, is_causal=True, enable_gqa=True
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def _rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Turns the two halves of (batch, heads, length, size) by angles, in float32."""
    (first, second), (cosine, sine) = x.float().chunk(2, -1), turn
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return torch.cat(turned, -1).to(x.dtype)


class Llama(nn.Module):
    """Embeddings, blocks, an RMS norm, logits."""

    def __init__(self, s: Any) -> None:
        super().__init__()
        self.token = nn.Embedding(s.vocabulary, s.width)
        self.blocks = nn.ModuleList(LlamaBlock(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.width, 1e-5)
        size = s.width // s.heads
        angle = torch.outer(torch.arange(s.length), 500_000.0 ** (-torch.arange(0, size, 2) / size))
        self.turn = torch.stack([angle.cos(), angle.sin()])

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps (batch, length) tokens to (batch, length, vocabulary) logits."""
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x, self.turn[:, : x.shape[1]])
        return F.linear(self.norm(x), self.token.weight)


class LSTM(nn.Module):
    """Embeddings, LSTM layers, logits; one bias a layer learns, as in the other library."""

    def __init__(self, s: Any) -> None:
        super().__init__()
        self.token = nn.Embedding(s.vocabulary, s.width)
        self.layers = nn.LSTM(s.width, s.width, s.layers, batch_first=True)
        for name, leaf in self.layers.named_parameters():
            leaf.requires_grad_("bias_hh" not in name)
        self.head = nn.Linear(s.width, s.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps (batch, length) tokens to (batch, length, vocabulary) logits."""
        return self.head(self.layers(self.token(tokens))[0])


def _channels(x: Tensor) -> Tensor:
    """(batch, height, width, channels) as (batch, channels, height, width), nothing moved."""
    return x.permute(0, 3, 1, 2)


def _patches(conv: nn.Conv2d, images: Tensor) -> Tensor:
    return conv(_channels(images)).flatten(2).transpose(1, 2)


class ViT(nn.Module):
    """Patches, a class token, positions, blocks, a norm, a linear layer on the class token."""

    def __init__(self, s: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, s.width, s.patch, s.patch)
        self.first = nn.Parameter(torch.zeros(1, 1, s.width))
        self.position = nn.Parameter(torch.randn(1, (s.image // s.patch) ** 2 + 1, s.width))
        self.blocks = nn.Sequential(*[Block(s.width, s.heads, "none") for _ in range(s.layers)])
        self.norm, self.head = nn.LayerNorm(s.width), nn.Linear(s.width, s.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Maps (batch, height, width, 3) images to (batch, classes) logits."""
        x = _patches(self.conv, images)
        x = torch.cat([self.first.expand(len(x), -1, -1).to(x.dtype), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class MixerBlock(nn.Module):
    """A perceptron over patches and one over channels, with residuals."""

    def __init__(self, s: Any) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(s.width), nn.LayerNorm(s.width)
        self.over_patches = _perceptron((s.image // s.patch) ** 2, s.over_patches, "none")
        self.over_channels = _perceptron(s.width, s.over_channels, "none")

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, patches, width) to the same."""
        x = x + self.over_patches(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.second(x))


class Mixer(nn.Module):
    """Patches, blocks, a norm, the mean over the patches, a linear layer."""

    def __init__(self, s: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, s.width, s.patch, s.patch)
        self.blocks = nn.Sequential(*[MixerBlock(s) for _ in range(s.layers)])
        self.norm, self.head = nn.LayerNorm(s.width), nn.Linear(s.width, s.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Maps (batch, height, width, 3) images to (batch, classes) logits."""
        return self.head(self.norm(self.blocks(_patches(self.conv, images))).mean(1))


def _sinusoids(times: Tensor, width: int) -> Tensor:
    half = width // 2
    angle = times.float()[:, None] * torch.exp(-math.log(10_000.0) * torch.arange(half) / half)
    return torch.cat([angle.sin(), angle.cos()], -1)


def _shifted(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


class DiTBlock(nn.Module):
    """A transformer block whose norms and residuals obey time and class."""

    def __init__(self, s: Any) -> None:
        super().__init__()
        self.told = nn.Linear(s.width, 6 * s.width)
        self.attention = Attention(s.width, s.heads)
        self.perceptron = _perceptron(s.width, 4 * s.width, "tanh")

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        """Maps (batch, length, width) to the same; ``told`` is (batch, width)."""
        shift, scale, gate, shift2, scale2, gate2 = self.told(F.silu(told))[:, None].chunk(6, -1)
        x = x + gate * self.attention(_shifted(x, shift, scale))
        return x + gate2 * self.perceptron(_shifted(x, shift2, scale2))


class DiT(nn.Module):
    """Patches and positions, blocks told time and class, patches back to an image."""

    def __init__(self, s: Any) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(256, s.width), nn.SiLU(), nn.Linear(s.width, s.width))
        self.label = nn.Embedding(s.classes, s.width)
        self.conv = nn.Conv2d(4, s.width, s.patch, s.patch)
        self.blocks = nn.ModuleList(DiTBlock(s) for _ in range(s.layers))
        self.told, self.head = nn.Linear(s.width, 2 * s.width), nn.Linear(s.width, 4 * s.patch**2)
        self.shape = s

    def forward(self, x: Tensor, times: Tensor, labels: Tensor) -> Tensor:
        """Maps noised latents (batch, height, width, 4), times and labels to the noise."""
        s, kind = self.shape, self.label.weight.dtype
        told = self.time(_sinusoids(times, 256).to(kind)) + self.label(labels)
        y = _patches(self.conv, x)
        y = y + _sinusoids(torch.arange(y.shape[1]), s.width).to(y.dtype)
        for block in self.blocks:
            y = block(y, told)
        shift, scale = self.told(F.silu(told))[:, None].chunk(2, -1)
        side = s.latent // s.patch
        y = self.head(_shifted(y, shift, scale)).view(len(x), side, side, s.patch, s.patch, 4)
        return y.permute(0, 1, 3, 2, 4, 5).reshape(x.shape)


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of (batch, channels, height, width)."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps an image to the same."""
        return _channels(super().forward(x.permute(0, 2, 3, 1)))


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, a norm, a perceptron and a scale, with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.perceptron = nn.LayerNorm(width), _perceptron(width, 4 * width, "none")
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, channels, height, width) to the same."""
        y = self.perceptron(self.norm(self.conv(x).permute(0, 2, 3, 1)))
        return x + _channels(y * self.scale)


class Pooled(nn.Module):
    """A net of (batch, channels, height, width), the mean over the image, a head."""

    def __init__(self, net: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.net, self.head = net, head

    def forward(self, images: Tensor) -> Tensor:
        """Maps (batch, height, width, 3) images to (batch, classes) logits."""
        return self.head(self.net(_channels(images)).mean((2, 3)))


def _convnext(s: Any) -> nn.Module:
    parts: list[nn.Module] = []
    for stage, (depth, width) in enumerate(zip(s.depths, s.widths, strict=True)):
        before = s.widths[stage - 1]
        if stage == 0:
            parts += [nn.Conv2d(3, width, 4, 4), ChannelNorm(width)]
        else:
            parts += [ChannelNorm(before), nn.Conv2d(before, width, 2, 2)]
        parts += [ConvNeXtBlock(width) for _ in range(depth)]
    head = nn.Sequential(nn.LayerNorm(s.widths[-1]), nn.Linear(s.widths[-1], s.classes))
    return Pooled(nn.Sequential(*parts), head)


def _normed(given: int, out: int, window: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(given, out, window, stride, padding=window // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with a shortcut."""

    def __init__(self, given: int, features: int, stride: int) -> None:
        super().__init__()
        wide = 4 * features
        self.net = nn.Sequential(
            _normed(given, features, 1),
            nn.ReLU(),
            _normed(features, features, 3, stride),
            nn.ReLU(),
            _normed(features, wide, 1),
        )
        same = given == wide and stride == 1
        self.across = nn.Identity() if same else _normed(given, wide, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, channels, height, width) to four times ``features`` channels."""
        return F.relu(self.across(x) + self.net(x))


def _resnet(s: Any) -> nn.Module:
    parts = [_normed(3, s.width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    given = s.width
    for stage, blocks in enumerate(s.stages):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            parts.append(Bottleneck(given, s.width * 2**stage, stride))
            given = 4 * s.width * 2**stage
    return Pooled(nn.Sequential(*parts), nn.Linear(given, s.classes))


MODELS: dict[str, Callable[[Any], nn.Module]] = {
    "resnet": _resnet,
    "convnext": _convnext,
    "vit": ViT,
    "mixer": Mixer,
    "gpt2": GPT2,
    "llama": Llama,
    "lstm": LSTM,
    "dit": DiT,
    "generate": Generator,
}
