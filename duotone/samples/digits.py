"""Trains a convolutional network on handwritten digits in float32, float16 or bfloat16.

The data are 1797 images of scanned handwriting (8×8 pixels, UCI 'Optical Recognition of Handwritten
Digits') in the file ``digits.npz``, so nothing is downloaded. Model and loss are plain float32 JAX.
Only :func:`make_train_step` knows of mixed precision: it calls :func:`duotone.value_and_grad` and
has a loss scale in the state.
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

BATCH = 64


class Precision(enum.StrEnum):
    """The precisions that the sample trains in."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class Digits(NamedTuple):
    """Images ``float32[n, 8, 8, 1]`` from 0 to 1 and labels ``int32[n]`` from 0 to 9."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load_digits() -> Digits:
    """Loads the handwritten digits: 1297 for training and 500 for testing.

    The split is stratified and does not depend on a seed.

    References:
        E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
        Repository, 1998 (CC BY 4.0); the 1797 images in scikit-learn.
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
    """Yields full batches of one epoch in random order; drops the rest of the images."""
    order = rng.permutation(len(images))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        chosen = order[start : start + BATCH]
        yield images[chosen], labels[chosen]


def init_params(key: jax.Array) -> Params:
    """Makes the float32 parameters of the network with He initialization."""

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
    """Returns the scores of the digits, ``float32[n, 10]``, for ``float32[n, 8, 8, 1]`` images."""
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
    """Returns the mean cross-entropy of a batch, ``float32[]``."""
    scores = logits(params, images)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, labels))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DigitsState:
    """The state of the training, float32 in every precision."""

    params: Params
    optimizer_state: Any
    loss_scale: duotone.LossScale


def initial_loss_scale(precision: Precision) -> duotone.LossScale:
    """Returns a dynamic loss scale for float16, none for the others, which have float32's range.

    The scale grows after 50 good steps instead of 2000, since a run may have only 300 steps.
    """
    if precision is Precision.FLOAT16:
        return duotone.DynamicLossScale(growth_interval=50)
    return duotone.NoLossScale()


def make_train_step(
    precision: Precision, optimizer: optax.GradientTransformation
) -> Callable[[DigitsState, Any, Any], tuple[DigitsState, jax.Array, jax.Array]]:
    """Makes a compiled step ``(state, images, labels) -> (state, loss, finite)``.

    It donates the old state.
    """

    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(
        state: DigitsState, images: jax.Array, labels: jax.Array
    ) -> tuple[DigitsState, jax.Array, jax.Array]:
        # Compared with jax.value_and_grad(loss), only this line changes:
        grad_fn = duotone.value_and_grad(loss, scale=state.loss_scale, dtype=precision.value)
        value, grads = grad_fn(state.params, images, labels)
        finite = duotone.all_finite(grads)
        updates, optimizer_state = optimizer.update(grads, state.optimizer_state, state.params)
        params = optax.apply_updates(state.params, updates)
        # A step with non-finite gradients changes only the loss scale.
        params, optimizer_state = duotone.select_tree(
            finite, (params, optimizer_state), (state.params, state.optimizer_state)
        )
        loss_scale = state.loss_scale.adjust(finite)
        return DigitsState(params, optimizer_state, loss_scale), value, finite

    return train_step


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """The results of one training run.

    Attributes:
        precision: the precision of the run.
        seed: the seed of the initial parameters and of the order of images.
        losses: the loss of every step.
        accuracies: the share of test images recognised, after every epoch.
        scales: the loss scale after every step; 1 without scaling.
        skipped: how many steps had non-finite gradients and changed no parameter.
        step_ms: the median time of a step in milliseconds, without the first step.
        first_step_s: the time of the first step in seconds, including compilation.
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
"""Takes the number of steps done and the loss, after every step."""


class Trainer:
    """The training in one precision: compiled once, run with any number of seeds.

    Args:
        precision: the precision to train in.
        epochs: passes over the training images.
        data: the digits; loaded if omitted.

    Raises:
        ArgumentError: ``epochs`` is below 1, or there are too few images for a batch.
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

    def run(self, seed: int, listener: Listener | None = None) -> TrainingRun:
        """Trains from one seed."""
        params = init_params(jax.random.key(seed))
        scale = initial_loss_scale(self.precision)
        state = DigitsState(params, self._optimizer.init(params), scale)
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
        return TrainingRun(
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
        """Explains autocast of the loss of one batch; returns ``None`` for float32."""
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
