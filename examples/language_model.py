"""Train a language model of words, an LSTM or a transformer: the example that needs loss scaling.

A mean over 16,384 words has gradients too small for float16; ``--picture`` trains in float32 and in
float16 with loss scales none, 128 and dynamic, and draws the perplexity of held-out text. The text
is eighteen chapters of the reference that Python carries for ``help()``, or ``--data``.

    python examples/language_model.py --precision float16 --model lstm --logs runs/words
    python examples/language_model.py --picture scaling.png
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import typer
from jax.nn import sigmoid
from matplotlib.figure import Figure
from rich.progress import track
from tensorboardX import SummaryWriter

import duotone
from duotone.errors import ArgumentError
from duotone.samples.datasets import python_reference, read_words

Precision = Literal["float32", "tf32", "float16", "bfloat16", "mixed"]
# The dtype for duotone (None: the device decides), and how a GPU or TPU computes float32 dots.
HALF = {"mixed": None, "tf32": "float32"}
MATH = {"float32": "float32", "tf32": "tensorfloat32"}
WIDTH, HEADS, LENGTH, VOCABULARY = 64, 4, 64, 1500
COMPARED = [("float32", "none"), *(("float16", scale) for scale in ("none", "128", "dynamic"))]


def load_blocks(file):
    """Blocks of text ``int32[n, LENGTH + 1]``, numbers of words: to train on, and every tenth."""
    text = read_words(file) if file else python_reference()
    known = Counter(text).most_common(VOCABULARY - 1)  # all others are word 0
    numbers = {word: number for number, (word, _) in enumerate(known, 1)}
    if (count := len(text) // (LENGTH + 1)) < 10:
        raise ArgumentError(
            f"{file} has {len(text)} words, too few to train on: {10 * (LENGTH + 1)}"
        )
    blocks = np.array([numbers.get(word, 0) for word in text[: count * (LENGTH + 1)]], np.int32)
    blocks, held_out = blocks.reshape(count, -1), np.arange(count) % 10 == 9
    return blocks[~held_out], blocks[held_out]


def init_params(key, model):
    """Parameters: an embedding, which is the output as well, and two layers."""
    lstm = {"wx": (WIDTH, 4 * WIDTH), "wh": (WIDTH, 4 * WIDTH)}
    attention = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH)}
    attention |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    shapes, normal = lstm if model == "lstm" else attention, jax.random.normal
    keys, layers = list(jax.random.split(key, 9)), []
    for _ in range(2):
        layers.append({name: normal(keys.pop(), s) * s[0] ** -0.5 for name, s in shapes.items()})
    table, place = (0.05 * normal(keys[0], (count, WIDTH)) for count in (VOCABULARY, LENGTH))
    return {"embedding": table, "position": place, "layers": layers, "bias": jnp.zeros(VOCABULARY)}


def lstm_layer(p, x):
    """A layer with three gates."""

    def cell(carry, x):
        i, f, g, o = jnp.split(x + carry[0] @ p["wh"], 4, axis=-1)
        c = sigmoid(f + 1) * carry[1] + sigmoid(i) * jnp.tanh(g)
        h = sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((len(x), WIDTH))
    return jax.lax.scan(cell, (start, start), (x @ p["wx"]).swapaxes(0, 1))[1].swapaxes(0, 1)


def transformer_layer(p, x):
    """Causal attention and two dense layers, each beside its residual."""
    q, k, v = jnp.split(jax.nn.standardize(x) @ p["qkv"], 3, axis=-1)
    heads = [each.reshape(*each.shape[:-1], HEADS, -1) for each in (q, k, v)]
    mixed = jax.nn.dot_product_attention(*heads, is_causal=True)
    x = x + mixed.reshape(x.shape) @ p["out"]
    return x + jax.nn.gelu(jax.nn.standardize(x) @ p["up"]) @ p["down"]


def loss_fn(params, blocks, model):
    """Mean cross entropy of each word after those before it."""
    x = params["embedding"][blocks[:, :-1]] + (0 if model == "lstm" else params["position"])
    for p in params["layers"]:
        x = lstm_layer(p, x) if model == "lstm" else transformer_layer(p, x)
    scores = x @ params["embedding"].T + params["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, blocks[:, 1:]).mean()


def read_loss_scale(text):
    """What --loss-scale means to duotone."""
    try:
        return {"dynamic": "dynamic", "none": None}[text] if text.isalpha() else float(text)
    except (KeyError, ValueError):
        raise ArgumentError(f"--loss-scale {text}: say dynamic, none or a number.") from None


def resume(saved, about, state):
    """State, step and curve of the last whole checkpoint, or what was given and none."""
    last = saved.latest_step() if saved else None
    if last is None:
        return state, 0, []
    try:
        items = ocp.args.Composite(about=ocp.args.JsonRestore())
        if (of := saved.restore(last, args=items)["about"]) == about:
            items = {"state": ocp.args.StandardRestore(state), "curve": ocp.args.JsonRestore()}
            kept = saved.restore(last, args=ocp.args.Composite(**items))
            return kept["state"], last, kept["curve"]["points"]
    except Exception as error:  # Orbax has no error of its own for what is damaged
        raise ArgumentError(f"{saved.directory}/{last} cannot be read: {error}") from error
    raise ArgumentError(f"{saved.directory} is of {of}, this run of {about}")


def fit(about, blocks, logs=None, checkpoints=None, every=10):
    """Trains; gives the perplexity of the held-out text every few steps, and at the end."""
    _, model, precision, loss_scale, steps, batch, seed = about
    scale, half = read_loss_scale(loss_scale), HALF.get(precision, precision)
    rates = optax.cosine_decay_schedule(6e-3, steps)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rates))
    optimizer = duotone.enable_mixed_precision_graph_rewrite(tx, scale, dtype=half)

    @jax.jit
    def train_step(params, state, blocks):
        return optimizer.minimize(lambda p, b: loss_fn(p, b, model), params, state, blocks)

    perplexity = jax.jit(lambda params: jnp.exp(loss_fn(params, blocks[1], model)))
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    saved = checkpoints and ocp.CheckpointManager(checkpoints.resolve(), options=options)
    params = init_params(jax.random.key(seed), model)
    (params, state), first, curve = resume(saved, about, (params, optimizer.init(params)))
    print(f"{precision} here: {optimizer.metrics(state)['dtype']}, {jax.devices()[0].device_kind}")
    writer = SummaryWriter(str(logs), flush_secs=1) if logs else None
    if writer:  # in TensorBoard: Graphs, Color by Device
        duotone.explain(train_step, params, state, blocks[0][:batch]).to_tensorboard(str(logs))
    for step in track(range(first, steps), f"{precision}, loss scale {loss_scale}"):
        chosen = np.random.default_rng((seed, step)).integers(len(blocks[0]), size=batch)
        done = train_step(params, state, blocks[0][chosen])
        params, state = done.params, done.state
        if (step + 1) % every and step + 1 != steps:
            continue
        curve.append((step + 1, float(perplexity(params))))
        numbers = {"loss": done.loss, "perplexity": curve[-1][1], **optimizer.metrics(state)}
        if writer:
            for name in ("loss", "perplexity", "loss_scale", "skipped_steps"):
                writer.add_scalar(name, float(numbers[name]), step + 1)
        if saved:
            notes = [ocp.args.JsonSave(each) for each in (about, {"points": curve})]
            kept = params, state
            items = {"state": ocp.args.StandardSave(kept), "about": notes[0], "curve": notes[1]}
            saved.save(step + 1, args=ocp.args.Composite(**items))
    [each.close() for each in (writer, saved) if each]
    print(f"perplexity {perplexity(params):.2f}, {optimizer.metrics(state)}")
    return curve, float(perplexity(params))


def draw(curves, file):
    """The held-out perplexities, ``{name: [(step, perplexity), ...]}``, as a picture."""
    axes = (figure := Figure(figsize=(7, 4), layout="constrained")).subplots()
    for name, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), label=name, linestyle="-" if "32" in name else "--")
    axes.set(xlabel="step", ylabel="perplexity of held-out text", yscale="log")
    axes.legend()
    figure.savefig(file, dpi=120)


def train(
    model: Literal["lstm", "transformer"] = "lstm",
    precision: Precision = "mixed",
    loss_scale: str = "dynamic",
    steps: Annotated[int, typer.Option(min=1)] = 120,
    batch: Annotated[int, typer.Option(min=1)] = 256,
    seed: int = 0,
    data: Annotated[Path | None, typer.Option(help="a text file")] = None,
    logs: Path | None = None,
    checkpoints: Path | None = None,
    picture: Annotated[Path | None, typer.Option(help="compare loss scales, draw")] = None,
) -> float:
    """Trains a language model of words; gives the perplexity of held-out text."""
    blocks, rest = load_blocks(data), (steps, batch, seed)
    with jax.default_matmul_precision(MATH.get(precision)):
        if not picture:
            return fit(["words", model, precision, loss_scale, *rest], blocks, logs, checkpoints)[1]
        runs = {f"{p}, loss scale {s}": fit(["", model, p, s, *rest], blocks) for p, s in COMPARED}
    draw({name: curve for name, (curve, _) in runs.items()}, picture)
    return runs["float16, loss scale dynamic"][1]


if __name__ == "__main__":
    try:
        typer.run(train)
    except (OSError, duotone.DuotoneError) as error:
        print("language_model.py:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
