"""Train an Equinox model in mixed precision: a small vision transformer on handwritten digits.

It shows a model divided into what is trained and what is not, dropout with a key for each image,
and the one line around the Optax optimizer. The digits come with scikit-learn.

    python examples/equinox_train.py --precision float16 --epochs 20
    python examples/equinox_train.py --logs runs/vit --checkpoints runs/vit/saved
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import typer
from rich.progress import track
from tensorboardX import SummaryWriter

import duotone
from duotone.samples.digits import load_digits

Precision = Literal["float32", "tf32", "float16", "bfloat16", "mixed"]
# The dtype for duotone (None: the device decides), and how a GPU or TPU computes float32 dots.
HALF = {"mixed": None, "tf32": "float32"}
MATH = {"float32": "float32", "tf32": "tensorfloat32"}
WIDTH, HEADS, PATCH, SIDE = 32, 4, 2, 4  # SIDE × SIDE patches of PATCH × PATCH pixels


class BadInput(Exception):  # noqa: N818
    """Something that the user can mend; shown as one line."""


class Block(eqx.Module):
    """Attention and two linear layers, each behind a norm and added to what came in."""

    norms: list[eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout

    def __init__(self, key):
        keys = jax.random.split(key)
        self.norms = [eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)]
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=keys[0])
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 2 * WIDTH, 1, jax.nn.gelu, key=keys[1])
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, x, key):
        """Tokens ``[n, width]`` to tokens; without a key nothing is dropped."""
        keys = (None, None) if key is None else jax.random.split(key)
        h = jax.vmap(self.norms[0])(x)
        x = x + self.dropout(self.attention(h, h, h), key=keys[0], inference=key is None)
        h = jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))
        return x + self.dropout(h, key=keys[1], inference=key is None)


class Transformer(eqx.Module):
    """Scores of ten digits for one image ``[8, 8, 1]``."""

    embed: eqx.nn.Linear
    places: jax.Array
    blocks: list[Block]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 5)
        self.embed = eqx.nn.Linear(PATCH * PATCH, WIDTH, key=keys[0])
        self.places = 0.02 * jax.random.normal(keys[1], (SIDE * SIDE, WIDTH))
        self.blocks = [Block(keys[2]), Block(keys[3])]
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.head = eqx.nn.Linear(WIDTH, 10, key=keys[4])

    def __call__(self, image, key=None):
        """Scores ``[10]``."""
        patches = image.reshape(SIDE, PATCH, SIDE, PATCH).swapaxes(1, 2).reshape(SIDE * SIDE, -1)
        x = jax.vmap(self.embed)(patches) + self.places
        for number, block in enumerate(self.blocks):
            x = block(x, None if key is None else jax.random.fold_in(key, number))
        return self.head(jnp.mean(jax.vmap(self.norm)(x), axis=0))


@eqx.filter_jit
def train_step(optimizer, model, state, images, labels, key):
    """One step; it changes nothing but the loss scale where a gradient is not finite."""
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss_fn(params):
        keys = jax.random.split(key, len(images))
        scores = jax.vmap(eqx.combine(params, static))(images, keys)
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    done = optimizer.minimize(loss_fn, params, state)
    return eqx.combine(done.params, static), done.state, done.loss


@eqx.filter_jit
def accuracy(model, half, images, labels):
    """The share of images that are recognised, in the precision of the training."""
    scores = duotone.autocast(lambda model: jax.vmap(model)(images), dtype=half)(model)
    return jnp.mean(jnp.argmax(scores, axis=1) == labels)


def read_loss_scale(text):
    try:
        return {"dynamic": "dynamic", "none": None}[text] if text.isalpha() else float(text)
    except (KeyError, ValueError):
        raise BadInput(f"--loss-scale {text}: say dynamic, none or a number.") from None


class Run:
    """Where a training writes its curves (TensorBoard) and its state (Orbax), if anywhere."""

    def __init__(self, logs, checkpoints, about):
        self.writer = SummaryWriter(str(logs or ""), write_to_disk=bool(logs))
        self.saved, self.about = None, about
        if checkpoints:
            checkpoints.mkdir(parents=True, exist_ok=True)
            options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
            self.saved = ocp.CheckpointManager(checkpoints.resolve(), options=options)

    def resume(self, state):
        """State and step of the last whole checkpoint, or what was given and 0."""
        if self.saved is None or (last := self.saved.latest_step()) is None:
            return state, 0
        try:
            items = ocp.args.Composite(about=ocp.args.JsonRestore())
            about = self.saved.restore(last, args=items)["about"]
            if about == self.about:
                items = ocp.args.Composite(state=ocp.args.StandardRestore(state))
                return self.saved.restore(last, args=items)["state"], last
        except Exception as error:  # Orbax has no error of its own for what is damaged
            about = f"nothing that can be read ({error})"
        self.writer.close()
        raise BadInput(f"{self.saved.directory} is of {about}, this run of {self.about}")

    def write(self, step, state, numbers):
        """Adds numbers to the curves, and a checkpoint of the state."""
        for name in numbers.keys() - {"dtype"}:
            self.writer.add_scalar(name, float(numbers[name]), step)
        self.writer.flush()
        if self.saved:
            items = {"state": ocp.args.StandardSave(state), "about": ocp.args.JsonSave(self.about)}
            self.saved.save(step, args=ocp.args.Composite(**items))


def train(
    precision: Precision = "mixed",
    loss_scale: str = "dynamic",
    epochs: Annotated[int, typer.Option(min=1)] = 20,
    batch: Annotated[int, typer.Option(min=1)] = 64,
    seed: int = 0,
    logs: Path | None = None,
    checkpoints: Path | None = None,
) -> float:
    """Trains a small vision transformer on handwritten digits; gives the test accuracy."""
    data, half = load_digits(), HALF.get(precision, precision)
    steps = len(data.train_images) // batch
    if steps == 0:
        raise BadInput(f"--batch {batch}: there are {len(data.train_images)} images to train on.")
    tx = optax.adamw(optax.cosine_decay_schedule(6e-3, epochs * steps), weight_decay=1e-2)
    policy = duotone.Policy(ignore_performance=precision != "mixed")  # as asked, on CPUs too
    optimizer = duotone.enable_mixed_precision_graph_rewrite(  # the one line
        tx, read_loss_scale(loss_scale), dtype=half, policy=policy
    )

    params, static = eqx.partition(Transformer(jax.random.key(seed)), eqx.is_array)
    run = Run(logs, checkpoints, ["equinox_train", precision, loss_scale])
    (params, state), first = run.resume((params, optimizer.init(params)))
    model = eqx.combine(params, static)
    with jax.default_matmul_precision(MATH.get(precision)):
        for epoch in track(range(first, epochs), f"training in {precision}"):
            order = np.random.default_rng((seed, epoch)).permutation(len(data.train_images))
            losses = []
            for step in range(steps):
                chosen = order[step * batch : (step + 1) * batch]
                key = jax.random.fold_in(jax.random.key(seed), epoch * steps + step)
                given = data.train_images[chosen], data.train_labels[chosen], key
                model, state, loss = train_step(optimizer, model, state, *given)
                losses.append(loss)
            right = accuracy(model, half, data.test_images, data.test_labels)
            numbers = optimizer.metrics(state) | {"loss": np.mean(losses), "accuracy": right}
            run.write(epoch + 1, (eqx.filter(model, eqx.is_array), state), numbers)
        reached = float(accuracy(model, half, data.test_images, data.test_labels))
    run.writer.close()
    print(f"accuracy {reached:.2%} on {jax.devices()[0].device_kind}, {optimizer.metrics(state)}")
    return reached


if __name__ == "__main__":
    try:
        typer.run(train)
    except (BadInput, OSError, duotone.DuotoneError) as error:
        print("equinox_train.py:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
