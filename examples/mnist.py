"""Train on handwritten digits in plain JAX: the first example to copy.

It shows the one line around an Optax optimizer, curves in TensorBoard (with mistaken images and the
painted graph) and checkpoints that hold the loss scale. With ``--data`` it reads MNIST's own files,
packed or not; without, it takes the digits that come with scikit-learn.

    python examples/mnist.py --precision float16 --logs runs/mnist --checkpoints runs/mnist/saved
    python examples/mnist.py --data ~/mnist --epochs 3
"""

import sys
from pathlib import Path
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
from duotone.errors import ArgumentError
from duotone.samples.datasets import load_mnist
from duotone.samples.digits import load_digits

Precision = Literal["float32", "tf32", "float16", "bfloat16", "mixed"]
# The dtype for duotone (None: the device decides), and how a GPU or TPU computes float32 dots.
HALF = {"mixed": None, "tf32": "float32"}
MATH = {"float32": "float32", "tf32": "tensorfloat32"}


def init_params(key, size):
    """Parameters for images of `size` by `size` pixels."""
    keys, he = jax.random.split(key, 4), jax.nn.initializers.he_normal()
    shapes = {"conv1": (3, 3, 1, 32), "conv2": (3, 3, 32, 64)}
    shapes |= {"dense": ((-(-size // 4)) ** 2 * 64, 128), "head": (128, 10)}
    return {
        name: {"w": he(k, shape), "b": jnp.zeros(shape[-1])}
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def network(params, images):
    """Scores ``[n, 10]`` for images ``[n, size, size, 1]``."""
    x = images
    for name in ("conv1", "conv2"):
        p, kinds = params[name], ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, p["w"], (2, 2), "SAME", dimension_numbers=kinds)
        x = jax.nn.relu(x + p["b"])
    x = jax.nn.relu(x.reshape(len(x), -1) @ params["dense"]["w"] + params["dense"]["b"])
    return x @ params["head"]["w"] + params["head"]["b"]


def loss_fn(params, images, labels):
    """Mean cross entropy."""
    scores = network(params, images)
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def read_loss_scale(text):
    """What --loss-scale means to duotone."""
    try:
        return {"dynamic": "dynamic", "none": None}[text] if text.isalpha() else float(text)
    except (KeyError, ValueError):
        raise ArgumentError(f"--loss-scale {text}: say dynamic, none or a number.") from None


class Run:
    """Where a training writes its curves (TensorBoard) and its state (Orbax), if anywhere."""

    def __init__(self, logs, checkpoints, about):
        self.writer = SummaryWriter(str(logs)) if logs else None
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        self.saved = checkpoints and ocp.CheckpointManager(checkpoints.resolve(), options=options)
        self.about = about

    def resume(self, state):
        """State and step of the last whole checkpoint, or what was given and 0."""
        last = self.saved.latest_step() if self.saved else None
        if last is None:
            return state, 0
        try:
            items = ocp.args.Composite(about=ocp.args.JsonRestore())
            about = self.saved.restore(last, args=items)["about"]
            if about == self.about:
                items = ocp.args.Composite(state=ocp.args.StandardRestore(state))
                return self.saved.restore(last, args=items)["state"], last
        except Exception as error:  # Orbax has no error of its own for what is damaged
            raise ArgumentError(f"{self.saved.directory}/{last} cannot be read: {error}") from error
        raise ArgumentError(f"{self.saved.directory} is of {about}, this run of {self.about}")

    def write(self, step, state, numbers, images=()):
        """Adds numbers and images to the curves, and a checkpoint of the state."""
        if self.writer:
            for name, number in numbers.items():
                self.writer.add_scalar(name, float(number), step)
            if len(images):
                self.writer.add_images("mistaken", images, step, dataformats="NHWC")
            self.writer.flush()
        if self.saved:
            items = {"state": ocp.args.StandardSave(state), "about": ocp.args.JsonSave(self.about)}
            self.saved.save(step, args=ocp.args.Composite(**items))

    def close(self):
        """Ends the threads that write."""
        for each in filter(None, (self.writer, self.saved)):
            each.close()


def train(
    precision: Precision = "mixed",
    loss_scale: str = "dynamic",
    epochs: Annotated[int, typer.Option(min=1)] = 15,
    batch: Annotated[int, typer.Option(min=1)] = 64,
    seed: int = 0,
    data: Annotated[Path | None, typer.Option(help="folder of MNIST's IDX files")] = None,
    logs: Path | None = None,
    checkpoints: Path | None = None,
) -> float:
    """Trains a convolutional network on handwritten digits; gives the test accuracy."""
    digits = load_mnist(data) if data else load_digits()
    count, half = len(digits.train_images), HALF.get(precision, precision)
    if (steps := count // batch) == 0:
        raise ArgumentError(f"--batch {batch}: there are {count} images to train on.")
    size, scale = digits.train_images.shape[1], read_loss_scale(loss_scale)
    optimizer = optax.adamw(optax.cosine_decay_schedule(3e-3, epochs * steps))
    optimizer = duotone.enable_mixed_precision_graph_rewrite(optimizer, scale, dtype=half)

    @jax.jit
    def train_step(params, state, images, labels):
        return optimizer.minimize(loss_fn, params, state, images, labels)

    predict = jax.jit(duotone.autocast(network, dtype=half))
    params = init_params(jax.random.key(seed), size)
    run = Run(logs, checkpoints, ["mnist", precision, loss_scale, size, batch, epochs, seed])
    (params, state), first = run.resume((params, optimizer.init(params)))
    if run.writer:  # in TensorBoard: Graphs, Color by Device
        one = params, state, digits.train_images[:batch], digits.train_labels[:batch]
        duotone.explain(train_step, *one).to_tensorboard(str(logs))
    print(f"{precision} here: {optimizer.metrics(state)['dtype']}, {jax.devices()[0].device_kind}")
    with jax.default_matmul_precision(MATH.get(precision)):
        for epoch in track(range(first, epochs), "training"):
            loss, order = np.nan, np.random.default_rng((seed, epoch)).permutation(count)
            for step in range(steps):
                at = order[step * batch : (step + 1) * batch]
                done = train_step(params, state, digits.train_images[at], digits.train_labels[at])
                params, state, loss = done.params, done.state, done.loss
            wrong = np.argmax(predict(params, digits.test_images), 1) != digits.test_labels
            scaling = optimizer.metrics(state)
            numbers = {name: scaling[name] for name in ("loss_scale", "skipped_steps")}
            numbers |= {"loss": loss, "accuracy": 1 - wrong.mean()}
            run.write(epoch + 1, (params, state), numbers, digits.test_images[wrong][:16])
        wrong = np.argmax(predict(params, digits.test_images), 1) != digits.test_labels
    run.close()
    print(f"test accuracy {1 - wrong.mean():.2%}, {optimizer.metrics(state)}")
    return float(1 - wrong.mean())


if __name__ == "__main__":
    try:
        typer.run(train)
    except (OSError, duotone.DuotoneError) as error:
        print("mnist.py:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
