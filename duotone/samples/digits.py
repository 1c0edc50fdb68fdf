"""A convolutional network on handwritten digits: the same code in float32, float16 and bfloat16.

The data are 1797 images of scanned handwriting (8×8 pixels, UCI 'Optical Recognition of Handwritten
Digits') in a file beside this one, so nothing is downloaded. Model and loss are plain
JAX written in float32, and know nothing of precision. What mixed precision takes is in
:func:`make_train_step`: :func:`duotone.value_and_grad`, and a loss scale in the state.

Called by ``duotone demo`` and ``benchmarks/digits_accuracy.py``, which listen to it and show
progress; nothing is printed here.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import duotone
from duotone.errors import ArgumentError

Params = dict[str, dict[str, jax.Array]]

TEST_IMAGES = 500
BATCH = 64


class Precision(enum.StrEnum):
    """The precisions that the sample trains in."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


# ---------------------------------------------------------------------------- data


class Digits(NamedTuple):
    """Images ``float32[n, 8, 8, 1]`` from 0 to 1 and labels ``int32[n]`` from 0 to 9."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load_digits() -> Digits:
    """The handwritten digits, split into 1297 for training and 500 for testing.

    The split is stratified and always the same: seeds change the training, not the question.

    References:
        E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
        Repository, 1998 (CC BY 4.0); the 1797 images that scikit-learn holds.
    """
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        train, test = (
            (file[f"{part}_images"] / 16.0).astype(np.float32)[..., np.newaxis]
            for part in ("train", "test")
        )
        labels = (file[f"{part}_labels"].astype(np.int32) for part in ("train", "test"))
        train_labels, test_labels = labels
    return Digits(train, train_labels, test, test_labels)


def _batches(
    rng: np.random.Generator, images: np.ndarray, labels: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Full batches of one epoch, in random order; the few images left over wait for the next."""
    order = rng.permutation(len(images))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        chosen = order[start : start + BATCH]
        yield images[chosen], labels[chosen]


# ---------------------------------------------------------------------------- model


def init_params(key: jax.Array) -> Params:
    """Parameters of the network: float32, He-initialised."""

    def weights(key: jax.Array, *shape: int) -> jax.Array:
        return jax.nn.initializers.he_normal()(key, shape, jnp.float32)

    keys = jax.random.split(key, 4)
    return {
        "conv1": {"kernel": weights(keys[0], 3, 3, 1, 32), "bias": jnp.zeros(32)},
        "norm1": {"scale": jnp.ones(32), "bias": jnp.zeros(32)},
        "conv2": {"kernel": weights(keys[1], 3, 3, 32, 64), "bias": jnp.zeros(64)},
        "norm2": {"scale": jnp.ones(64), "bias": jnp.zeros(64)},
        "dense": {"kernel": weights(keys[2], 4 * 4 * 64, 128), "bias": jnp.zeros(128)},
        "output": {"kernel": weights(keys[3], 128, 10), "bias": jnp.zeros(10)},
    }


def _conv(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    dimensions = ("NHWC", "HWIO", "NHWC")
    out = jax.lax.conv_general_dilated(x, p["kernel"], (1, 1), "SAME", dimension_numbers=dimensions)
    return out + p["bias"]


def _layer_norm(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.var(x, axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]


def _max_pool(x: jax.Array) -> jax.Array:
    window = (1, 2, 2, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")


def logits(params: Params, images: jax.Array) -> jax.Array:
    """Scores of the ten digits, ``float32[n, 10]``, for images ``float32[n, 8, 8, 1]``."""
    with jax.named_scope("block1"):
        x = jax.nn.relu(_layer_norm(params["norm1"], _conv(params["conv1"], images)))
    with jax.named_scope("block2"):
        x = jax.nn.relu(_layer_norm(params["norm2"], _conv(params["conv2"], x)))
        x = _max_pool(x)
    with jax.named_scope("dense"):
        x = x.reshape(x.shape[0], -1)
        x = jax.nn.relu(x @ params["dense"]["kernel"] + params["dense"]["bias"])
    with jax.named_scope("output"):
        return x @ params["output"]["kernel"] + params["output"]["bias"]


def loss(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy of a batch, ``float32[]``."""
    scores = logits(params, images)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, labels))


# ---------------------------------------------------------------------------- training


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The state that a training step takes and gives: all float32, whatever the precision."""

    params: Params
    optimizer_state: Any
    loss_scale: duotone.LossScale


def initial_loss_scale(precision: Precision) -> duotone.LossScale:
    """Dynamic for float16, none for the others, whose exponents reach as far as float32's.

    The scale grows after 50 good steps instead of 2000: a run of 300 steps would not show it.
    """
    if precision is Precision.FLOAT16:
        return duotone.DynamicLossScale(growth_interval=50)
    return duotone.NoLossScale()


def make_train_step(
    precision: Precision, optimizer: optax.GradientTransformation
) -> Callable[[TrainState, Any, Any], tuple[TrainState, jax.Array, jax.Array]]:
    """A compiled step ``(state, images, labels) -> (state, loss, finite)``.

    The old state is donated: its memory holds the new one.
    """

    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(
        state: TrainState, images: jax.Array, labels: jax.Array
    ) -> tuple[TrainState, jax.Array, jax.Array]:
        # The one line that changes, compared with jax.value_and_grad(loss):
        grad_fn = duotone.value_and_grad(loss, scale=state.loss_scale, dtype=precision.value)
        value, grads = grad_fn(state.params, images, labels)
        finite = duotone.all_finite(grads)
        updates, optimizer_state = optimizer.update(grads, state.optimizer_state, state.params)
        params = optax.apply_updates(state.params, updates)
        # A step whose gradients are not finite changes nothing but the loss scale.
        params, optimizer_state = duotone.select_tree(
            finite, (params, optimizer_state), (state.params, state.optimizer_state)
        )
        loss_scale = state.loss_scale.adjust(finite)
        return TrainState(params, optimizer_state, loss_scale), value, finite

    return train_step


@dataclasses.dataclass(frozen=True)
class Run:
    """The results of one training run.

    Attributes:
        precision: the precision it ran in.
        seed: the seed of the initial parameters and of the order of images.
        losses: the loss of every step.
        accuracies: the share of test images recognised, after every epoch.
        scales: the loss scale after every step; 1 without scaling.
        skipped: steps whose gradients were not finite, which changed no parameter.
        step_ms: the median time of a step in milliseconds, without the first.
        first_step_s: the time of the first step in seconds, which traces and compiles.
    """

    precision: Precision
    seed: int
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    scales: tuple[float, ...]
    skipped: int
    step_ms: float
    first_step_s: float

    @property
    def accuracy(self) -> float:
        """The share of test images recognised at the end, from 0 to 1."""
        return self.accuracies[-1]

    @property
    def final_scale(self) -> float:
        """The loss scale at the end."""
        return self.scales[-1]


Listener = Callable[[int, float], None]
"""Called after every step with the number of steps done and the loss."""


class Trainer:
    """The training of one precision. Compiled once, run with any number of seeds.

    Args:
        precision: what to train in.
        epochs: passes over the training images.
        data: the digits; loaded if omitted.

    Raises:
        ArgumentError: `epochs` is below 1, or there are too few images for one batch.
    """

    def __init__(self, precision: Precision, epochs: int, data: Digits | None = None) -> None:
        self.precision = Precision(precision)
        self.data = load_digits() if data is None else data
        if epochs < 1:
            raise ArgumentError(f"epochs must be at least 1; got {epochs}.")
        images = len(self.data.train_images)
        if images < BATCH:
            raise ArgumentError(f"a batch takes {BATCH} images; there are {images} to train on.")
        self.epochs = epochs
        self.steps = epochs * (images // BATCH)
        self._optimizer = optax.adamw(
            optax.cosine_decay_schedule(3e-3, self.steps), weight_decay=1e-3
        )
        self._train_step = make_train_step(self.precision, self._optimizer)
        self._predict = jax.jit(duotone.autocast(logits, dtype=self.precision.value))

    def run(self, seed: int, listener: Listener | None = None) -> Run:
        """Trains from one seed and returns what came out."""
        params = init_params(jax.random.key(seed))
        scale = initial_loss_scale(self.precision)
        state = TrainState(params, self._optimizer.init(params), scale)
        rng = np.random.default_rng(seed)
        losses, accuracies, scales, seconds = [], [], [], []
        skipped = 0
        for _ in range(self.epochs):
            for images, labels in _batches(rng, self.data.train_images, self.data.train_labels):
                start = time.perf_counter()
                state, step_loss, finite = self._train_step(state, images, labels)
                losses.append(float(step_loss))  # waits for the step
                seconds.append(time.perf_counter() - start)
                skipped += not finite
                scales.append(float(state.loss_scale.value))
                if listener is not None:
                    listener(len(losses), losses[-1])
            accuracies.append(self._accuracy(state.params))
        return Run(
            precision=self.precision,
            seed=seed,
            losses=tuple(losses),
            accuracies=tuple(accuracies),
            scales=tuple(scales),
            skipped=skipped,
            step_ms=1e3 * statistics.median(seconds[1:] or seconds),
            first_step_s=seconds[0],
        )

    def explain(self) -> duotone.Explanation | None:
        """Explains autocast of the loss of one batch; None for float32, which is left as it is."""
        if self.precision is Precision.FLOAT32:
            return None
        params = init_params(jax.random.key(0))
        return duotone.explain(
            loss,
            params,
            self.data.train_images[:BATCH],
            self.data.train_labels[:BATCH],
            dtype=jnp.dtype(self.precision.value),
            policy=duotone.Policy(ignore_performance=True),
        )

    def _accuracy(self, params: Params) -> float:
        scores = self._predict(params, self.data.test_images)
        return float(np.mean(np.argmax(np.asarray(scores), axis=-1) == self.data.test_labels))
