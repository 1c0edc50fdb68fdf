"""Train a Haiku model in mixed precision: a convolutional network on handwritten digits.

It shows ``hk.transform_with_state``, batch statistics that a skipped step leaves as they were, and
the one line around the Optax optimizer. The digits come with scikit-learn.

    python examples/haiku_train.py --precision float16 --epochs 15
    python examples/haiku_train.py --logs runs/haiku --checkpoints runs/haiku/saved
"""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import haiku as hk
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


class BadInput(Exception):  # noqa: N818
    """Something that the user can mend; shown as one line."""


class State(NamedTuple):
    """All that a training step changes; the loss scale is in ``optimizer``."""

    params: Any
    statistics: Any
    optimizer: Any


def network(images, is_training):
    """Scores of ten digits, ``[n, 10]``, for images ``[n, 8, 8, 1]``."""
    x = images
    for channels, stride in ((32, 1), (64, 2)):
        x = hk.Conv2D(channels, 3, stride=stride, with_bias=False)(x)
        x = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(x, is_training))
    x = jax.nn.relu(hk.Linear(128)(hk.Flatten()(x)))
    if is_training:
        x = hk.dropout(hk.next_rng_key(), 0.2, x)
    return hk.Linear(10)(x)


model = hk.transform_with_state(network)


def loss_fn(params, statistics, key, images, labels):
    """Mean cross entropy, and the new batch statistics."""
    scores, statistics = model.apply(params, statistics, key, images, is_training=True)
    loss = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
    return jnp.mean(loss), statistics


def make_train_step(optimizer):
    """A compiled step; it changes nothing but the loss scale where a gradient is not finite."""

    @jax.jit
    def train_step(state, key, images, labels):
        batch = state.statistics, key, images, labels
        out = optimizer.compute_gradients(
            loss_fn, state.params, state.optimizer, *batch, has_aux=True
        )
        params, opt_state = optimizer.apply_gradients(out, state.params, state.optimizer)
        statistics = duotone.select_tree(out.finite, out.aux, state.statistics)
        return State(params, statistics, opt_state), out.value

    return train_step


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
    epochs: Annotated[int, typer.Option(min=1)] = 15,
    batch: Annotated[int, typer.Option(min=1)] = 64,
    seed: int = 0,
    logs: Path | None = None,
    checkpoints: Path | None = None,
) -> float:
    """Trains a convolutional network on handwritten digits; gives the test accuracy."""
    data, half = load_digits(), HALF.get(precision, precision)
    steps = len(data.train_images) // batch
    if steps == 0:
        raise BadInput(f"--batch {batch}: there are {len(data.train_images)} images to train on.")
    tx = optax.adamw(optax.cosine_decay_schedule(3e-3, epochs * steps), weight_decay=1e-3)
    policy = duotone.Policy(ignore_performance=precision != "mixed")  # as asked, on CPUs too
    optimizer = duotone.enable_mixed_precision_graph_rewrite(  # the one line
        tx, read_loss_scale(loss_scale), dtype=half, policy=policy
    )
    train_step = make_train_step(optimizer)

    @jax.jit
    @duotone.autocast(dtype=half, policy=policy)
    def predict(state, images):
        return model.apply(state.params, state.statistics, None, images, is_training=False)[0]

    def accuracy(state):
        scores = np.asarray(predict(state, data.test_images))
        return float(np.mean(scores.argmax(axis=1) == data.test_labels))

    init_key, key = jax.random.split(jax.random.key(seed))
    params, statistics = model.init(init_key, data.train_images[:1], is_training=True)
    run = Run(logs, checkpoints, ["haiku_train", precision, loss_scale])
    state, first = run.resume(State(params, statistics, optimizer.init(params)))
    with jax.default_matmul_precision(MATH.get(precision)):
        for epoch in track(range(first, epochs), f"training in {precision}"):
            order = np.random.default_rng((seed, epoch)).permutation(len(data.train_images))
            losses = []
            for step in range(steps):
                chosen = order[step * batch : (step + 1) * batch]
                images, labels = data.train_images[chosen], data.train_labels[chosen]
                step_key = jax.random.fold_in(key, epoch * steps + step)
                state, loss = train_step(state, step_key, images, labels)
                losses.append(loss)
            numbers = {"loss": np.mean(losses), "accuracy": accuracy(state)}
            numbers |= optimizer.metrics(state.optimizer)
            run.write(epoch + 1, state, numbers)
        reached = accuracy(state)
    run.writer.close()
    metrics = optimizer.metrics(state.optimizer)
    print(f"accuracy {reached:.2%} on {jax.devices()[0].device_kind}, {metrics}")
    return reached


if __name__ == "__main__":
    try:
        typer.run(train)
    except (BadInput, OSError, duotone.DuotoneError) as error:
        print("haiku_train.py:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
