"""Train a GAN on handwritten digits: two optimizers, two losses, and a loss scale for each.

The gradients of the two losses differ in size, so each optimizer is wrapped by itself and finds a
scale of its own. ``--picture`` trains in float16 with and without them and draws both. The metric
is the Frechet distance of drawn and held-out digits, by pixels. The digits are scikit-learn's.

    python examples/gan.py --precision float16 --logs runs/gan --checkpoints runs/gan/saved
    python examples/gan.py --picture gan.png
"""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import typer
from matplotlib.figure import Figure
from rich.progress import track
from tensorboardX import SummaryWriter

import duotone
from duotone.errors import ArgumentError
from duotone.samples.digits import load_digits

Precision = Literal["float32", "tf32", "float16", "bfloat16", "mixed"]
# The dtype for duotone (None: the device decides), and how a GPU or TPU computes float32 dots.
HALF = {"mixed": None, "tf32": "float32"}
MATH = {"float32": "float32", "tf32": "tensorfloat32"}
KINDS = ("NHWC", "HWIO", "NHWC")
LATENT = 32
CURVES = ("discriminator/loss", "generator/loss", "discriminator/scale", "generator/scale")


def init_params(key, shapes):
    """Weights of these shapes, each with a bias of zeros."""
    normal = jax.nn.initializers.he_normal()
    return {
        name: {"w": normal(key, shape), "b": jnp.zeros(shape[-1])}
        for key, (name, shape) in zip(jax.random.split(key, len(shapes)), shapes.items())  # noqa: B905
    }


GENERATOR = {"dense": (LATENT, 1024), "up": (4, 4, 64, 32), "draw": (3, 3, 32, 1)}
DISCRIMINATOR = {"conv1": (3, 3, 1, 32), "conv2": (3, 3, 32, 64), "head": (1024, 1)}


def generate(params, z):
    """Images ``[n, 8, 8, 1]`` from 0 to 1, drawn from ``z[n, LATENT]``."""
    x = jax.nn.relu(z @ params["dense"]["w"] + params["dense"]["b"]).reshape(-1, 4, 4, 64)
    x = jax.lax.conv_transpose(x, params["up"]["w"], (2, 2), "SAME", dimension_numbers=KINDS)
    x = jax.nn.relu(x + params["up"]["b"])
    x = jax.lax.conv_general_dilated(x, params["draw"]["w"], (1, 1), "SAME", None, None, KINDS)
    return jax.nn.sigmoid(x + params["draw"]["b"])


def judge(params, x):
    """Scores ``[n]``: above 0 for images that look real."""
    for name, stride in (("conv1", 1), ("conv2", 2)):
        p, strides = params[name], (stride, stride)
        x = jax.lax.conv_general_dilated(x, p["w"], strides, "SAME", None, None, KINDS)
        x = jax.nn.leaky_relu(x + p["b"], 0.2)
    return (x.reshape(len(x), -1) @ params["head"]["w"] + params["head"]["b"])[:, 0]


def discriminator_loss(discriminator, generator, images, z):
    """Cross entropy of telling images from drawings."""
    real, drawn = judge(discriminator, images), judge(discriminator, generate(generator, z))
    return jnp.mean(jax.nn.softplus(-real) + jax.nn.softplus(drawn))


def generator_loss(generator, discriminator, z):
    """Small where drawings are taken for images."""
    return jnp.mean(jax.nn.softplus(-judge(discriminator, generate(generator, z))))


def distance(drawn, images):
    """The Frechet distance between two sets of images, as normal distributions of pixels."""
    a, b = (np.asarray(x, np.float64).reshape(len(x), -1) for x in (drawn, images))
    covariances = [np.cov(x, rowvar=False) for x in (a, b)]
    middle = np.sqrt(np.linalg.eigvals(covariances[0] @ covariances[1]).real.clip(0)).sum()
    return float(np.sum((a.mean(0) - b.mean(0)) ** 2) + np.trace(sum(covariances)) - 2 * middle)


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


def fit(settings, logs=None, checkpoints=None):
    """Trains; gives losses and scales of each step, and the distance at the end."""
    precision, loss_scale, steps, batch, seed = settings
    data, scale, half = load_digits(), read_loss_scale(loss_scale), HALF.get(precision, precision)
    wrap = partial(duotone.enable_mixed_precision_graph_rewrite, loss_scale=scale, dtype=half)
    opt_g, opt_d = wrap(optax.adam(2e-3, 0.5)), wrap(optax.adam(1e-3, 0.5))

    @jax.jit
    def train_step(state, images, keys):
        z = [jax.random.normal(key, (len(images), LATENT)) for key in keys]
        g, d, g_state, d_state = state
        of_d = opt_d.minimize(discriminator_loss, d, d_state, g, images, z[0])
        of_g = opt_g.minimize(generator_loss, g, g_state, of_d.params, z[1])
        return (of_g.params, of_d.params, of_g.state, of_d.state), (of_d.loss, of_g.loss)

    draw_images = jax.jit(duotone.autocast(generate, dtype=half))
    g = init_params(jax.random.key(2 * seed), GENERATOR)
    d = init_params(jax.random.key(2 * seed + 1), DISCRIMINATOR)
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    saved = checkpoints and ocp.CheckpointManager(checkpoints.resolve(), options=options)
    about = {"example": "gan", "settings": list(settings)}
    state, first, curve = resume(saved, about, (g, d, opt_g.init(g), opt_d.init(d)))
    writer = SummaryWriter(str(logs), flush_secs=1) if logs else None
    if writer:  # in TensorBoard: Graphs, Color by Device
        one = data.train_images[:batch], jax.random.split(jax.random.key(0))
        duotone.explain(train_step, state, *one).to_tensorboard(str(logs))
    print(f"{precision} here: {opt_d.metrics(state[3])['dtype']}, {jax.devices()[0].device_kind}")
    for step in track(range(first, steps), f"{precision}, loss scale {loss_scale}"):
        chosen = np.random.default_rng((seed, step)).integers(len(data.train_images), size=batch)
        keys = jax.random.split(jax.random.key(seed * 1_000_000 + step))
        state, losses = train_step(state, data.train_images[chosen], keys)
        scaling = opt_d.metrics(state[3]), opt_g.metrics(state[2])
        curve.append([*map(float, losses), *(each["loss_scale"] for each in scaling)])
        if (step + 1) % 50 and step + 1 != steps:
            continue
        if writer:
            for name, number in zip(CURVES, curve[-1], strict=True):
                writer.add_scalar(name, number, step + 1)
            writer.add_scalar("skipped_steps", sum(m["skipped_steps"] for m in scaling), step + 1)
            drawn = draw_images(state[0], jax.random.normal(jax.random.key(0), (16, LATENT)))
            writer.add_images("drawn", np.asarray(drawn), step + 1, dataformats="NHWC")
        if saved:
            notes = [ocp.args.JsonSave(each) for each in (about, {"points": curve})]
            items = {"state": ocp.args.StandardSave(state), "about": notes[0], "curve": notes[1]}
            saved.save(step + 1, args=ocp.args.Composite(**items))
    [each.close() for each in (writer, saved) if each]
    z = jax.random.normal(jax.random.key(0), (2000, LATENT))
    reached = distance(draw_images(state[0], z), data.test_images)
    print(f"distance {reached:.3f}; discriminator {opt_d.metrics(state[3])}")
    return np.reshape(curve, (-1, 4)), reached


def draw(curves, file):
    """Losses and loss scales, ``{name: [steps, 4]}``, as one picture."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    for column, axes in enumerate(figure.subplots(2, 2).flat):
        for name, curve in curves.items():
            axes.plot(curve[:, column], label=name, linewidth=1)
        axes.set(title=CURVES[column], xlabel="step", yscale="linear" if column < 2 else "log")
        axes.legend()
    figure.savefig(file, dpi=120)


def train(
    precision: Precision = "mixed",
    loss_scale: str = "dynamic",
    steps: Annotated[int, typer.Option(min=1)] = 500,
    batch: Annotated[int, typer.Option(min=1)] = 64,
    seed: int = 0,
    logs: Path | None = None,
    checkpoints: Path | None = None,
    picture: Annotated[Path | None, typer.Option(help="with and without scales, drawn")] = None,
) -> float:
    """Trains a GAN; gives the distance between drawn and held-out digits."""
    with jax.default_matmul_precision(MATH.get(precision)):
        if not picture:
            return fit((precision, loss_scale, steps, batch, seed), logs, checkpoints)[1]
        runs = {s: fit(("float16", s, steps, batch, seed)) for s in ("none", "dynamic")}
    draw({f"float16, loss scale {s}": curve for s, (curve, _) in runs.items()}, picture)
    return runs["dynamic"][1]


if __name__ == "__main__":
    try:
        typer.run(train)
    except (OSError, duotone.DuotoneError) as error:
        print("gan.py:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
