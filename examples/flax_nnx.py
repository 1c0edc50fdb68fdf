"""Train a Flax NNX model in mixed precision: a convolutional network on handwritten digits.

It shows ``duotone.nnx.Optimizer`` in the place of ``nnx.Optimizer``, batch norm, dropout, metrics
of NNX, and a checkpoint of the split objects. The digits come with scikit-learn.

    python examples/flax_nnx.py --precision float16 --epochs 15
    python examples/flax_nnx.py --logs runs/nnx --checkpoints runs/nnx/saved
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import typer
from flax import nnx
from rich.progress import track
from tensorboardX import SummaryWriter

import duotone
import duotone.nnx
from duotone.samples.digits import load_digits

Precision = Literal["float32", "tf32", "float16", "bfloat16", "mixed"]
# The dtype for duotone (None: the device decides), and how a GPU or TPU computes float32 dots.
HALF = {"mixed": None, "tf32": "float32"}
MATH = {"float32": "float32", "tf32": "tensorfloat32"}


class BadInput(Exception):  # noqa: N818
    """Something that the user can mend; shown as one line."""


class Model(nnx.Module):
    """Scores of ten digits for images ``[n, 8, 8, 1]``."""

    def __init__(self, rngs):
        self.conv1 = nnx.Conv(1, 32, (3, 3), use_bias=False, rngs=rngs)
        self.norm1 = nnx.BatchNorm(32, momentum=0.9, rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, (3, 3), strides=2, use_bias=False, rngs=rngs)
        self.norm2 = nnx.BatchNorm(64, momentum=0.9, rngs=rngs)
        self.dense = nnx.Linear(4 * 4 * 64, 128, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, images):
        """Scores ``[n, 10]``."""
        x = nnx.relu(self.norm1(self.conv1(images)))
        x = nnx.relu(self.norm2(self.conv2(x)))
        x = nnx.relu(self.dense(x.reshape(len(x), -1)))
        return self.head(self.dropout(x))


def loss_fn(model, images, labels):
    """Mean cross entropy, and the scores."""
    scores = model(images)
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean(), scores


@nnx.jit
def train_step(model, optimizer, metrics, images, labels):
    """One step; it changes nothing but the loss scale where a gradient is not finite."""
    loss, scores = optimizer.minimize(loss_fn, model, images, labels, has_aux=True)
    metrics.update(loss=loss, logits=scores, labels=labels)


@nnx.jit(static_argnames="half")
def predict(model, images, half):
    """Scores, in the precision of the training."""
    return duotone.nnx.autocast(lambda model, images: model(images), dtype=half)(model, images)


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
    model = Model(nnx.Rngs(seed))
    # float32 would be: nnx.Optimizer(model, tx, wrt=nnx.Param)
    optimizer = duotone.nnx.Optimizer(
        model, tx, loss_scale=read_loss_scale(loss_scale), dtype=half, policy=policy
    )
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"), accuracy=nnx.metrics.Accuracy())
    evaluated = nnx.view(model, deterministic=True, use_running_average=True)

    def mistaken():
        scores = np.asarray(predict(evaluated, data.test_images, half))
        return scores.argmax(axis=1) != data.test_labels

    run = Run(logs, checkpoints, ["flax_nnx", precision, loss_scale])
    state, first = run.resume(nnx.to_pure_dict(nnx.state((model, optimizer))))
    nnx.update((model, optimizer), state)
    with jax.default_matmul_precision(MATH.get(precision)):
        for epoch in track(range(first, epochs), f"training in {precision}"):
            order = np.random.default_rng((seed, epoch)).permutation(len(data.train_images))
            metrics.reset()
            for step in range(steps):
                chosen = order[step * batch : (step + 1) * batch]
                images, labels = data.train_images[chosen], data.train_labels[chosen]
                train_step(model, optimizer, metrics, images, labels)
            wrong = mistaken()
            numbers = {f"train/{name}": value for name, value in metrics.compute().items()}
            numbers["accuracy"] = 1 - wrong.mean()
            numbers |= optimizer.metrics()
            run.write(epoch + 1, nnx.to_pure_dict(nnx.state((model, optimizer))), numbers)
            if wrong.any():
                images = data.test_images[wrong][:16]
                run.writer.add_images("mistaken", images, epoch + 1, dataformats="NHWC")
        reached = float(1 - mistaken().mean())
    run.writer.close()
    print(f"accuracy {reached:.2%} on {jax.devices()[0].device_kind}, {optimizer.metrics()}")
    return reached


if __name__ == "__main__":
    try:
        typer.run(train)
    except (BadInput, OSError, duotone.DuotoneError) as error:
        print("flax_nnx.py:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
