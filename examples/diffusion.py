"""Train a small diffusion model (DDPM) on handwritten digits in mixed precision, and draw digits.

It shows plain JAX with ``optimizer.minimize``, a moving average of the weights that stays float32,
and sampling by a loop that is rewritten as a whole. The digits come with scikit-learn.

    python examples/diffusion.py --precision float16 --epochs 60 --samples digits.png
    python examples/diffusion.py --logs runs/ddpm --checkpoints runs/ddpm/saved
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
from PIL import Image
from rich.progress import track
from tensorboardX import SummaryWriter

import duotone
from duotone.samples.digits import load_digits

Precision = Literal["float32", "tf32", "float16", "bfloat16", "mixed"]
# The dtype for duotone (None: the device decides), and how a GPU or TPU computes float32 dots.
HALF = {"mixed": None, "tf32": "float32"}
MATH = {"float32": "float32", "tf32": "tensorfloat32"}
TIMES, WIDTH = 100, 48
KEPT = jnp.cumprod(1 - jnp.linspace(1e-3, 0.12, TIMES))  # of the image's variance, at each time


class BadInput(Exception):  # noqa: N818
    """Something that the user can mend; shown as one line."""


def init_params(key):
    """Four convolutions with a shift and scale from the time, and one in and out."""
    he = jax.nn.initializers.he_normal()
    keys = jax.random.split(key, 11)
    params = {"in": he(keys[0], (3, 3, 1, WIDTH)), "out": jnp.zeros((3, 3, WIDTH, 1))}
    params["time"] = he(keys[1], (32, WIDTH))
    for n in range(4):
        params[f"conv{n}"] = he(keys[2 + 2 * n], (3, 3, WIDTH, WIDTH))
        params[f"film{n}"] = 0.1 * he(keys[3 + 2 * n], (WIDTH, 2 * WIDTH))
    return params


def network(params, images, times):
    """The noise in images ``[n, 8, 8, 1]`` at times ``int[n]``."""

    def conv(x, w):
        return jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    angles = times[:, None] * jnp.exp(-jnp.arange(16) * 0.4)
    waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)
    time = jax.nn.silu(waves @ params["time"])
    x = conv(images, params["in"])
    for n in range(4):
        h = x - jnp.mean(x, axis=(1, 2, 3), keepdims=True)
        h = h * jax.lax.rsqrt(jnp.mean(h * h, axis=(1, 2, 3), keepdims=True) + 1e-5)
        scale, shift = jnp.split((time @ params[f"film{n}"])[:, None, None], 2, axis=-1)
        x = x + conv(jax.nn.silu(h * (1 + scale) + shift), params[f"conv{n}"])
    return conv(jax.nn.silu(x), params["out"])


def loss_fn(params, images, key):
    """Mean squared error of the noise, at random times."""
    keys = jax.random.split(key)
    times = jax.random.randint(keys[0], (len(images),), 0, TIMES)
    noise = jax.random.normal(keys[1], images.shape)
    kept = KEPT[times][:, None, None, None]
    noisy = jnp.sqrt(kept) * images + jnp.sqrt(1 - kept) * noise
    return jnp.mean((network(params, noisy, times) - noise) ** 2)


def sample(params, key, count):
    """Digits from noise, ``[count, 8, 8, 1]`` from -1 to 1."""
    before = jnp.concatenate([jnp.ones(1), KEPT[:-1]])

    def step(x, time):
        noise = network(params, x, jnp.full(count, time))
        alpha = KEPT[time] / before[time]
        mean = (x - (1 - alpha) / jnp.sqrt(1 - KEPT[time]) * noise) / jnp.sqrt(alpha)
        width = jnp.sqrt((1 - before[time]) / (1 - KEPT[time]) * (1 - alpha))
        return mean + width * jax.random.normal(jax.random.fold_in(key, time), x.shape), None

    start = jax.random.normal(jax.random.fold_in(key, TIMES), (count, 8, 8, 1))
    return jnp.clip(jax.lax.scan(step, start, jnp.arange(TIMES)[::-1])[0], -1, 1)


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
    epochs: Annotated[int, typer.Option(min=1)] = 60,
    batch: Annotated[int, typer.Option(min=1)] = 128,
    seed: int = 0,
    samples: Annotated[Path | None, typer.Option(help="a picture to write")] = None,
    logs: Path | None = None,
    checkpoints: Path | None = None,
) -> float:
    """Trains on handwritten digits; gives the averaged weights' loss on those kept back."""
    digits, half = load_digits(), HALF.get(precision, precision)
    images, kept_back = 2 * digits.train_images - 1, 2 * digits.test_images - 1
    steps = len(images) // batch
    if steps == 0:
        raise BadInput(f"--batch {batch}: there are {len(images)} images to train on.")
    policy = duotone.Policy(ignore_performance=precision != "mixed")  # as asked, on CPUs too
    optimizer = duotone.enable_mixed_precision_graph_rewrite(  # the one line
        optax.adam(optax.cosine_decay_schedule(2e-3, epochs * steps)),
        read_loss_scale(loss_scale),
        dtype=half,
        policy=policy,
    )

    @jax.jit
    def train_step(params, average, state, images, key):
        done = optimizer.minimize(loss_fn, params, state, images, key)
        return done.params, optax.incremental_update(done.params, average, 0.02), done.state

    test = jax.jit(duotone.autocast(loss_fn, dtype=half, policy=policy))
    draw = jax.jit(duotone.autocast(sample, dtype=half, policy=policy), static_argnums=2)
    params = init_params(jax.random.key(seed))
    run = Run(logs, checkpoints, ["diffusion", precision, loss_scale])
    state, first = run.resume((params, params, optimizer.init(params)))
    with jax.default_matmul_precision(MATH.get(precision)):
        for epoch in track(range(first, epochs), f"training in {precision}"):
            order = np.random.default_rng((seed, epoch)).permutation(len(images))
            for step in range(steps):
                key = jax.random.fold_in(jax.random.key(seed), epoch * steps + step)
                chosen = images[order[step * batch : (step + 1) * batch]]
                state = train_step(*state, chosen, key)
            loss = test(state[1], kept_back, jax.random.key(0))
            run.write(epoch + 1, state, optimizer.metrics(state[2]) | {"loss": loss})
        loss = float(test(state[1], kept_back, jax.random.key(0)))
        if samples or logs:
            drawn = np.asarray(draw(state[1], jax.random.key(seed), 32) + 1) * 127.5
            drawn = drawn.astype(np.uint8).reshape(4, 8, 8, 8).swapaxes(1, 2).reshape(32, 64)
            run.writer.add_image("samples", drawn, epochs, dataformats="HW")
            if samples:
                Image.fromarray(drawn).resize((512, 256), Image.Resampling.NEAREST).save(samples)
    run.writer.close()
    print(f"loss {loss:.4f} on {jax.devices()[0].device_kind}, {optimizer.metrics(state[2])}")
    return loss


if __name__ == "__main__":
    try:
        typer.run(train)
    except (BadInput, OSError, duotone.DuotoneError) as error:
        print("diffusion.py:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
