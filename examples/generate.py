"""Generate text with a KV cache and weights that are cast to half once; count tokens per second.

It trains a small transformer on the help texts that come with Python (or on ``--data``), then
decodes greedily twice, in float32 and in half, and tells the share of tokens that agree.

    python examples/generate.py --precision bfloat16 --steps 300 --tokens 128
    python examples/generate.py --data book.txt --checkpoints runs/text --precision float16
"""

import sys
import time
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
from rich.progress import track
from tensorboardX import SummaryWriter

import duotone

Precision = Literal["float32", "tf32", "float16", "bfloat16", "mixed"]
HALF = {"mixed": None, "tf32": "float32"}  # what duotone is told; None: it asks the device
MATH = {"float32": "float32", "tf32": "tensorfloat32"}  # inside float32 dots, on a GPU or TPU
WIDTH, HEADS, LAYERS, PLACES = 128, 4, 3, 256


class BadInput(Exception):  # noqa: N818
    """Something that the user can mend; shown as one line."""


def init_params(key):
    """Weights of all layers, stacked; tokens are bytes."""
    shapes = {"embed": (256, WIDTH), "qkv": (LAYERS, WIDTH, 3 * WIDTH)}
    shapes |= {"out": (LAYERS, WIDTH, WIDTH), "up": (LAYERS, WIDTH, 4 * WIDTH)}
    shapes |= {"down": (LAYERS, 4 * WIDTH, WIDTH), "head": (WIDTH, 256)}
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(key, shape) * shape[-2] ** -0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def norm(x):
    """Root mean square norm."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def rotate(x, places):
    """Rotary positions for ``x [n, t, heads, d]``."""
    angles = places[:, None, None] * 1e4 ** (-jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
    a, b = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def network(params, tokens, cache, start):
    """Scores ``[n, t, 256]`` of what follows tokens ``[n, t]`` from place `start` on; the cache."""
    n, t = tokens.shape
    places = start + jnp.arange(t)
    seen = places[:, None] >= jnp.arange(cache[0].shape[2])
    x = params["embed"][tokens]
    keys, values = [], []
    for layer in range(LAYERS):
        qkv = norm(x) @ params["qkv"][layer]
        q, k, v = jnp.split(qkv.reshape(n, t, 3 * HEADS, -1), 3, axis=2)
        q, k = rotate(norm(q), places), rotate(norm(k), places)
        keys.append(jax.lax.dynamic_update_slice(cache[0][layer], k, (0, start, 0, 0)))
        values.append(jax.lax.dynamic_update_slice(cache[1][layer], v, (0, start, 0, 0)))
        scores = jnp.einsum("nthd,nshd->nhts", q, keys[-1]) * q.shape[-1] ** -0.5
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)
        mixed = jnp.einsum("nhts,nshd->nthd", weights, values[-1]).reshape(n, t, WIDTH)
        x = x + mixed @ params["out"][layer]
        x = x + jax.nn.gelu(norm(x) @ params["up"][layer]) @ params["down"][layer]
    return norm(x) @ params["head"], (jnp.stack(keys), jnp.stack(values))


def empty_cache(n, places):
    return (jnp.zeros((LAYERS, n, places, HEADS, WIDTH // HEADS)),) * 2


def loss_fn(params, tokens):
    """Mean cross entropy of each next byte."""
    given, wanted = tokens[:, :-1], tokens[:, 1:]
    scores, _ = network(params, given, empty_cache(*given.shape), 0)
    return optax.softmax_cross_entropy_with_integer_labels(scores, wanted).mean()


def prefill(params, prompt):
    """The first new token, and the cache of the prompt ``[n, t]``."""
    scores, cache = network(params, prompt, empty_cache(len(prompt), PLACES), 0)
    return jnp.argmax(scores[:, -1], axis=-1), cache


def decode(params, token, cache, start, count):
    """The `count` tokens after a token, ``[n, count]``, the likeliest each time."""

    def step(carry, place):
        token, cache = carry
        scores, cache = network(params, token[:, None], cache, place)
        token = jnp.argmax(scores[:, -1], axis=-1)
        return (token, cache), token

    return jax.lax.scan(step, (token, cache), start + jnp.arange(count))[1].T


def generate(params, prompts, count, half, policy):
    """New tokens ``[n, count]``, and how many a second; the weights are cast once, before."""
    if half == "float32":  # duotone would leave the functions as they are: not compiled
        first = partial(jax.jit(prefill), params)
        after = partial(jax.jit(decode, static_argnums=4), params)
    else:
        first = duotone.autocast(prefill, dtype=half, policy=policy, weights=params)
        after = duotone.autocast(decode, dtype=half, policy=policy, weights=params)
    made, seconds = np.empty(0), []
    while len(seconds) < 2:  # the first time compiles
        begin = time.perf_counter()
        token, cache = first(prompts)
        rest = after(token, cache, prompts.shape[1], count - 1)
        made = np.concatenate([np.asarray(token)[:, None], np.asarray(rest)], axis=1)
        seconds.append(time.perf_counter() - begin)
    return made, made.size / seconds[1]


def resume(saved, about, state):
    if saved is None or (last := saved.latest_step()) is None:
        return state, 0
    try:
        kept = saved.restore(last, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"]
        if kept == about:
            items = ocp.args.Composite(state=ocp.args.StandardRestore(state))
            return saved.restore(last, args=items)["state"], last
    except Exception as error:  # Orbax has no error of its own for what is damaged
        raise BadInput(f"{saved.directory}/{last} cannot be read: {error}") from error
    raise BadInput(f"{saved.directory} is of {kept}, this run of {about}")


def train(
    precision: Precision = "mixed",
    loss_scale: str = "dynamic",
    steps: Annotated[int, typer.Option(min=1)] = 300,
    batch: Annotated[int, typer.Option(min=1)] = 16,
    tokens: Annotated[int, typer.Option(min=2, max=PLACES - 64)] = 128,
    seed: int = 0,
    data: Annotated[Path | None, typer.Option(help="a text file")] = None,
    logs: Path | None = None,
    checkpoints: Path | None = None,
) -> float:
    """Trains, then generates; gives the share of greedy tokens that are those of float32."""
    text = data.read_bytes() if data else "\n".join(topics.values()).encode()
    text, half = np.frombuffer(text, np.uint8).astype(np.int32), HALF.get(precision, precision)
    if len(text) < 1000 or (checkpoints and checkpoints.is_file()):
        raise BadInput(f"--data: {len(text)} bytes; 1000 are needed. --checkpoints: a folder.")
    scale = float(loss_scale) if loss_scale.replace(".", "", 1).isdigit() else loss_scale
    policy = duotone.Policy(ignore_performance=precision != "mixed")  # as asked, on CPUs too
    optimizer = duotone.enable_mixed_precision_graph_rewrite(
        optax.adam(2e-3), None if scale == "none" else scale, dtype=half, policy=policy
    )
    train_step = jax.jit(lambda *given: optimizer.minimize(loss_fn, *given))
    params, about = init_params(jax.random.key(seed)), {"generate": [precision, loss_scale]}
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    saved = ocp.CheckpointManager(checkpoints.resolve(), options=options) if checkpoints else None
    (params, state), first = resume(saved, about, (params, optimizer.init(params)))
    writer = SummaryWriter(str(logs or ""), write_to_disk=bool(logs))
    with jax.default_matmul_precision(MATH.get(precision)):
        for step in track(range(first, steps), f"training in {precision}"):
            draw = np.random.default_rng((seed, step)).integers
            starts = draw(len(text) - 128, size=(batch, 1))
            done = train_step(params, state, text[starts + np.arange(128)])
            params, state = done.params, done.state
            numbers = optimizer.metrics(state) | {"loss": float(done.loss)}
            for name in ("loss", "loss_scale", "skipped_steps"):
                writer.add_scalar(name, numbers[name], step + 1)
            if saved and ((step + 1) % 100 == 0 or step + 1 == steps):
                kept = ocp.args.StandardSave((params, state))
                items = {"state": kept, "about": ocp.args.JsonSave(about)}
                writer.flush()
                saved.save(step + 1, args=ocp.args.Composite(**items))
        prompts = text[np.arange(batch)[:, None] * (len(text) // batch // 2) + np.arange(64)]
        full, slow = generate(params, prompts, tokens, "float32", None)
        made, fast = generate(params, prompts, tokens, half, policy)
    writer.close()
    agreed = float(np.mean(np.cumprod(made == full, axis=1)))  # up to the first that differs
    print(f"{fast:.0f} tokens a second, {slow:.0f} in float32, on {jax.devices()[0].device_kind}")
    print(f"{agreed:.1%} of the tokens are float32's; {optimizer.metrics(state)}")
    return agreed


if __name__ == "__main__":
    try:
        typer.run(train)
    except (BadInput, OSError, duotone.DuotoneError) as error:
        print("generate.py:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
