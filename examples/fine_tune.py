"""Fine-tune a frozen decoder with LoRA adapters, in mixed precision; Flax NNX.

A small decoder of Gemma's shape learns Python's reference. Then its weights are frozen, cast to
half once (``cast_params``, ``autocast(weights=...)``), and adapters learn Python programs; these
alone have gradients and an optimizer's state. Both texts come with Python.

    python examples/fine_tune.py --precision float16 --checkpoints runs/lora
    python examples/fine_tune.py --base runs/lora/base --data letters.txt --logs runs/letters
"""

import os
import sys
import zlib
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import typer
from flax import nnx
from rich.progress import track
from tensorboardX import SummaryWriter

import duotone
from duotone.errors import ArgumentError

Precision = Literal["float32", "tf32", "float16", "bfloat16", "mixed"]
HALF = {"mixed": None, "tf32": "float32"}  # what duotone is told; None: it asks the device
MATH = {"float32": "float32", "tf32": "tensorfloat32"}  # inside float32 dots, on a GPU or TPU
WIDTH, HEADS, GROUPS, HIDDEN, LAYERS, RANK, LENGTH = 64, 4, 2, 192, 2, 8, 128
PROGRAMS = ("argparse", "configparser", "difflib", "doctest", "pdb", "pydoc", "tarfile")


def rotate(x):
    """Rotary positions for ``x [n, t, heads, d]``."""
    turns = 1e4 ** (-jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = jnp.arange(x.shape[1])[:, None, None] * turns
    a, b = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


class Layer(nnx.Module):
    """Attention whose heads share keys in groups, and a gated MLP; an adapter for each weight."""

    def __init__(self, rngs):
        linear = partial(nnx.LoRALinear, use_bias=False, lora_rank=RANK, rngs=rngs)
        self.q, self.out = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.k, self.v = (linear(WIDTH, GROUPS * WIDTH // HEADS) for _ in range(2))
        self.gate, self.up = linear(WIDTH, HIDDEN), linear(WIDTH, HIDDEN)
        self.down = linear(HIDDEN, WIDTH)
        self.before, self.between = nnx.RMSNorm(WIDTH, rngs=rngs), nnx.RMSNorm(WIDTH, rngs=rngs)

    def __call__(self, x):
        """Features ``[n, t, width]`` to features."""
        h, heads = self.before(x), (*x.shape[:2], -1, WIDTH // HEADS)
        q, k, v = (dot(h).reshape(heads) for dot in (self.q, self.k, self.v))
        mixed = jax.nn.dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + self.out(mixed.reshape(x.shape))
        h = self.between(x)
        return x + self.down(nnx.gelu(self.gate(h)) * self.up(h))


class Decoder(nnx.Module):
    """Scores of the next byte; the embedding is the output as well."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(256, WIDTH, rngs=rngs)
        self.layers = nnx.List([Layer(rngs) for _ in range(LAYERS)])
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)

    def __call__(self, tokens):
        """Scores ``[n, t, 256]`` of the byte after each of ``[n, t]``."""
        x = self.embed(tokens) * WIDTH**0.5
        for layer in self.layers:
            x = layer(x)
        return self.embed.attend(self.norm(x))


def cut(text):
    """Blocks of bytes ``[n, LENGTH + 1]``: to train on, and every tenth, held out."""
    if (count := len(text) // (LENGTH + 1)) < 10:
        raise ArgumentError(f"--data: {len(text)} bytes; {10 * (LENGTH + 1)} are needed.")
    blocks = np.frombuffer(text, np.uint8, count * (LENGTH + 1)).astype(int).reshape(count, -1)
    return np.delete(blocks, np.s_[9::10], axis=0), blocks[9::10]


def resume(folder, about, state):
    """A folder's checkpoints, state and step of the last whole one; or what was given and 0."""
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    saved = folder and ocp.CheckpointManager(folder.resolve(), options=options)
    if saved is None or (last := saved.latest_step()) is None:
        return saved, state, 0
    try:
        of = saved.restore(last, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"]
        if about.items() <= of.items():
            items = ocp.args.Composite(state=ocp.args.StandardRestore(state))
            return saved, saved.restore(last, args=items)["state"], last
    except Exception as error:  # Orbax has no error of its own for what is damaged
        raise ArgumentError(f"{saved.directory}/{last} cannot be read: {error}") from error
    raise ArgumentError(f"{saved.directory} is of {of}, this run of {about}")


def keep(saved, about, step, state):
    if saved:
        items = {"state": ocp.args.StandardSave(state), "about": ocp.args.JsonSave(about)}
        saved.save(step, args=ocp.args.Composite(**items))


def train(
    precision: Precision = "mixed",
    loss_scale: str = "dynamic",
    steps: Annotated[int, typer.Option(min=1)] = 200,
    batch: Annotated[int, typer.Option(min=1)] = 16,
    seed: int = 0,
    base: Annotated[Path | None, typer.Option(help="of an earlier run: CHECKPOINTS/base")] = None,
    base_steps: Annotated[int, typer.Option(min=1, help="without --base")] = 400,
    data: Annotated[Path | None, typer.Option(help="a text file to fine-tune on")] = None,
    logs: Path | None = None,
    checkpoints: Path | None = None,
) -> float:
    """Fine-tunes a decoder by adapters; gives the perplexity of a byte of held-out text."""
    if base and not any(base.glob("[0-9]*")):
        raise ArgumentError(f"--base {base} holds no checkpoint.")
    scale = float(loss_scale) if loss_scale.replace(".", "", 1).isdigit() else loss_scale
    half = HALF.get(precision, precision)
    policy = duotone.Policy(ignore_performance=precision != "mixed")  # as asked, on CPUs too
    optimizer = duotone.enable_mixed_precision_graph_rewrite(
        optax.adam(3e-3), None if scale == "none" else scale, dtype=half, policy=policy
    )
    files = [data] if data else [Path(os.__file__).with_name(f"{name}.py") for name in PROGRAMS]
    blocks, held_out = cut(b"".join(file.read_bytes() for file in files))
    prose, _ = cut("\n".join(topics.values()).encode())
    graph, *parts = nnx.split(Decoder(nnx.Rngs(seed)), nnx.LoRAParam, nnx.Param)
    adapters, weights = map(nnx.to_pure_dict, parts)

    def loss_fn(weights, adapters, tokens):
        scores = nnx.merge(graph, adapters, weights)(tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(scores, tokens[:, 1:]).mean()

    scaled = lambda w, a, state, tokens: optimizer.scale_loss(loss_fn(w, a, tokens), state)  # noqa: E731
    gradients = jax.value_and_grad(scaled, argnums=1)  # of the adapters alone
    base_step = jax.jit(lambda *given: optimizer.minimize(loss_fn, *given))

    @jax.jit
    def train_step(adapters, state, tokens, frozen):
        out = duotone.autocast(gradients, weights=frozen)(adapters, state, tokens)
        loss, grads = optimizer.unscale(out, state)
        return *optimizer.apply_gradients(grads, adapters, state), loss

    @jax.jit
    def perplexity(adapters, frozen):
        return jnp.exp(duotone.autocast(loss_fn, weights=frozen)(adapters, held_out))

    def draw(blocks, step):
        return blocks[np.random.default_rng((seed, step)).integers(len(blocks), size=batch)]

    model = {"base": [WIDTH, HEADS, GROUPS, HIDDEN, LAYERS]}
    run = {"run": ["fine_tune", precision, loss_scale, base_steps, batch, seed]}
    writer = SummaryWriter(str(logs or ""), write_to_disk=bool(logs), flush_secs=1)
    with jax.default_matmul_precision(MATH.get(precision)):
        folder = base or (checkpoints and checkpoints / "base")
        saved, weights, found = resume(folder, model if base else model | run, weights)
        if not found:
            state = optimizer.init(weights)
            for step in track(range(base_steps), f"pre-training in {precision}"):
                done = base_step(weights, state, adapters, draw(prose, step))
                weights, state = done.params, done.state
            keep(saved, model | run, base_steps, weights)
        given = adapters, optimizer.init(adapters), blocks[:batch]
        frozen = duotone.cast_params(gradients, weights, *given, dtype=half, policy=policy)
        print(f"perplexity {perplexity(adapters, frozen):.2f} before; frozen: {frozen}")
        of = zlib.crc32(b"".join(leaf.tobytes() for leaf in jax.tree.leaves(weights)))
        about = {"adapters of rank": RANK, "base": of} | run
        saved, (adapters, state), first = resume(checkpoints, about, given[:2])
        for step in track(range(first, steps), f"fine-tuning in {precision}"):
            adapters, state, loss = train_step(adapters, state, draw(blocks, step), frozen)
            if (step + 1) % 50 == 0 or step + 1 == steps:
                numbers = optimizer.metrics(state) | {"loss": loss}
                numbers["perplexity"] = perplexity(adapters, frozen)
                for name in numbers.keys() - {"dtype"}:
                    writer.add_scalar(name, float(numbers[name]), step + 1)
                keep(saved, about, step + 1, (adapters, state))
        reached = float(perplexity(adapters, frozen))
    writer.close()
    print(f"perplexity {reached:.2f} on {jax.devices()[0].device_kind}, {optimizer.metrics(state)}")
    return reached


if __name__ == "__main__":
    try:
        typer.run(train)
    except (OSError, duotone.DuotoneError) as error:
        print("fine_tune.py:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
