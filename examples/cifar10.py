"""Train a ResNet on CIFAR-10, each batch spread over all devices: data parallelism as JAX has it.

It shows a mesh and shardings that duotone keeps, batch statistics that a skipped step leaves alone,
curves and checkpoints. ``--data`` is the folder of the data set's binary form (data_batch_1.bin ...
test_batch.bin); without, digits that come with scikit-learn stand in, enlarged to 32 by 32 pixels
in three colours, which is a far easier task. Several devices on a CPU:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/cifar10.py --epochs 1
    python examples/cifar10.py --data cifar-10-batches-bin --precision float16 --logs runs/cifar10
"""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import typer
from flax import linen as nn
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from rich.progress import track
from tensorboardX import SummaryWriter

import duotone
from duotone.errors import ArgumentError
from duotone.samples.datasets import large_digits, load_cifar10

Precision = Literal["float32", "tf32", "float16", "bfloat16", "mixed"]
# The dtype for duotone (None: the device decides), and how a GPU or TPU computes float32 dots.
HALF = {"mixed": None, "tf32": "float32"}
MATH = {"float32": "float32", "tf32": "tensorfloat32"}


class State(NamedTuple):
    """All that a training step changes; the loss scale is in ``optimizer``."""

    params: Any
    statistics: Any
    optimizer: Any


class ResNet(nn.Module):
    """A small ResNet of three groups of residual blocks."""

    width: int
    blocks: int = 1

    @nn.compact
    def __call__(self, x, training):
        """Scores for images ``[n, 32, 32, 3]``."""
        norm = lambda: nn.BatchNorm(not training, momentum=0.9)  # noqa: E731
        x = nn.relu(norm()(nn.Conv(self.width, (3, 3), use_bias=False)(x)))
        for index in range(3 * self.blocks):
            channels = self.width * 2 ** (index // self.blocks)
            strides = 2 if index % self.blocks == 0 and index else 1
            y = nn.relu(norm()(nn.Conv(channels, (3, 3), strides, use_bias=False)(x)))
            y = norm()(nn.Conv(channels, (3, 3), use_bias=False)(y))
            if x.shape != y.shape:
                x = norm()(nn.Conv(channels, (1, 1), strides, use_bias=False)(x))
            x = nn.relu(x + y)
        return nn.Dense(10)(x.mean((1, 2)))


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
        [each.close() for each in (self.writer, self.saved) if each]


def make_steps(model, optimizer, half):
    """The compiled training step and the compiled prediction."""

    def loss_fn(params, statistics, images, labels):
        variables = {"params": params, "batch_stats": statistics}
        scores, new = model.apply(variables, images, True, mutable="batch_stats")
        loss = optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()
        return loss, new["batch_stats"]

    @jax.jit
    def train_step(state, images, labels):
        given = state.params, state.optimizer, state.statistics, images, labels
        out = optimizer.compute_gradients(loss_fn, *given, has_aux=True)
        params, new = optimizer.apply_gradients(out, state.params, state.optimizer)
        statistics = duotone.select_tree(out.finite, out.aux, state.statistics)
        return State(params, statistics, new), out.value

    def scores(params, statistics, images):
        return model.apply({"params": params, "batch_stats": statistics}, images, False)

    return train_step, jax.jit(duotone.autocast(scores, dtype=half))


def train(
    precision: Precision = "mixed",
    loss_scale: str = "dynamic",
    epochs: Annotated[int, typer.Option(min=1)] = 6,
    batch: Annotated[int, typer.Option(min=1)] = 64,
    width: Annotated[int, typer.Option(min=1)] = 16,
    seed: int = 0,
    data: Annotated[Path | None, typer.Option(help="folder of the binary files")] = None,
    logs: Path | None = None,
    checkpoints: Path | None = None,
) -> float:
    """Trains a ResNet on all devices; gives the test accuracy."""
    pictures = load_cifar10(data) if data else large_digits()
    count, half = len(pictures.train_images), HALF.get(precision, precision)
    if (steps := count // batch) == 0:
        raise ArgumentError(f"--batch {batch}: there are {count} images to train on.")
    if batch % jax.device_count():
        raise ArgumentError(f"--batch {batch} cannot be spread over {jax.device_count()} devices")
    mesh = jax.make_mesh((jax.device_count(),), ("data",), (AxisType.Auto,))
    spread, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["data"], []))
    model, scale = ResNet(width), read_loss_scale(loss_scale)
    optimizer = optax.adamw(optax.cosine_decay_schedule(3e-3, epochs * steps))
    optimizer = duotone.enable_mixed_precision_graph_rewrite(optimizer, scale, dtype=half)
    train_step, predict = make_steps(model, optimizer, half)
    made = model.init(jax.random.key(seed), jnp.ones((1, 32, 32, 3)), True)
    state = State(made["params"], made["batch_stats"], optimizer.init(made["params"]))
    run = Run(logs, checkpoints, ["cifar10", precision, loss_scale, width, batch, epochs, seed])
    state, first = run.resume(jax.device_put(state, everywhere))
    if run.writer:  # in TensorBoard: Graphs, Color by Device
        one = pictures.train_images[:batch], pictures.train_labels[:batch]
        duotone.explain(train_step, state, *one).to_tensorboard(str(logs))
    print(f"{optimizer.metrics(state.optimizer)['dtype']} on {jax.device_count()} device(s)")

    def mistaken(state):
        scores = predict(state.params, state.statistics, pictures.test_images)
        return np.argmax(scores, 1) != pictures.test_labels

    with jax.default_matmul_precision(MATH.get(precision)):
        for epoch in track(range(first, epochs), "training"):
            loss, order = np.nan, np.random.default_rng((seed, epoch)).permutation(count)
            for step in range(steps):
                at = order[step * batch : (step + 1) * batch]
                one = pictures.train_images[at], pictures.train_labels[at]
                state, loss = train_step(state, *jax.device_put(one, spread))
            wrong, scaling = mistaken(state), optimizer.metrics(state.optimizer)
            numbers = {name: scaling[name] for name in ("loss_scale", "skipped_steps")}
            numbers |= {"loss": loss, "accuracy": 1 - wrong.mean()}
            run.write(epoch + 1, state, numbers, pictures.test_images[wrong][:16])
        reached = float(1 - mistaken(state).mean())
    run.close()
    print(f"test accuracy {reached:.2%}, {optimizer.metrics(state.optimizer)}")
    return reached


if __name__ == "__main__":
    try:
        typer.run(train)
    except (OSError, duotone.DuotoneError) as error:
        print("cifar10.py:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
