"""The digits sample: its data, its step, and that it learns in every precision."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import duotone
from duotone.errors import ArgumentError
from duotone.samples import digits
from duotone.samples.digits import BATCH, Digits, DigitsState, Precision, Trainer


@pytest.fixture(scope="module")
def data():
    return digits.load_digits()


@pytest.fixture(scope="module")
def few(data):
    """Two batches to train on and some images to test on: an epoch of two steps."""
    return Digits(
        data.train_images[: 2 * BATCH],
        data.train_labels[: 2 * BATCH],
        data.test_images[:50],
        data.test_labels[:50],
    )


@pytest.fixture(scope="module")
def trainer(few):
    """One compilation for all tests that train in float32: two epochs, four steps."""
    return Trainer(Precision.FLOAT32, 2, few)


def test_the_data_are_the_digits_scaled_and_split(data):
    assert data.train_images.shape == (1297, 8, 8, 1)
    assert data.test_images.shape == (500, 8, 8, 1)
    images = np.concatenate([data.train_images, data.test_images])
    assert images.dtype == np.float32
    assert images.min() == 0
    assert images.max() == 1
    assert set(np.bincount(data.test_labels)) <= set(range(45, 56))  # stratified
    # No image is both learnt from and tested on, but for true duplicates in the data.
    train = {image.tobytes() for image in data.train_images}
    assert sum(image.tobytes() in train for image in data.test_images) == 0
    again = digits.load_digits()
    np.testing.assert_array_equal(again.test_labels, data.test_labels)


def test_they_are_scikit_learns_and_need_no_scikit_learn(monkeypatch):
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    known = {image.tobytes() for image in (bunch.images / 16.0).astype(np.float32)}
    monkeypatch.setitem(sys.modules, "sklearn", None)
    data = digits.load_digits()
    images = [*data.train_images[..., 0], *data.test_images[..., 0]]
    assert {image.tobytes() for image in images} == known


@pytest.mark.parametrize(
    "precision", [Precision.FLOAT16, pytest.param(Precision.BFLOAT16, marks=pytest.mark.slow)]
)
def test_a_step_keeps_the_state_full_and_learns(precision, few):
    optimizer = optax.sgd(0.05)
    step = digits.make_train_step(precision, optimizer)
    params = digits.init_params(jax.random.key(0))
    # Small enough that no step is skipped: the next test has those that are.
    scale = duotone.DynamicLossScale(2.0**8) if precision == "float16" else duotone.NoLossScale()
    state = DigitsState(params, optimizer.init(params), scale)
    expected = jax.tree.map(lambda x: (x.shape, x.dtype), state)
    losses = []
    for _ in range(5):
        state, loss, finite = step(state, few.train_images[:BATCH], few.train_labels[:BATCH])
        assert bool(finite)
        losses.append(float(loss))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == expected
    assert losses[-1] < losses[0]


def test_a_step_that_overflows_changes_only_the_loss_scale(few):
    optimizer = optax.adam(1e-3)
    step = digits.make_train_step(Precision.FLOAT16, optimizer)
    params = digits.init_params(jax.random.key(0))
    scale = duotone.DynamicLossScale(2.0**20)
    before = jax.tree.map(np.array, params)
    state = DigitsState(params, optimizer.init(params), scale)
    # Pixels of 1e3 with a scale of 2**20 leave the range of float16.
    state, _, finite = step(state, few.train_images[:BATCH] * 1e3, few.train_labels[:BATCH])
    assert not bool(finite)
    jax.tree.map(np.testing.assert_array_equal, state.params, before)
    assert float(state.loss_scale.value) == 2.0**19


@pytest.mark.parametrize(
    ("precision", "dtype"), [("float16", jnp.float16), ("bfloat16", jnp.bfloat16)]
)
def test_the_half_precisions_compute_in_half(precision, dtype, few):
    explanation = Trainer(Precision(precision), 1, few).explain()
    assert explanation is not None
    summary = explanation.summary
    assert summary.half_dtype == jnp.dtype(dtype).name
    assert summary.allow_half == summary.allow_total == 4  # two convolutions, two dots
    assert summary.flops_half_share > 0.95


def test_float32_is_left_alone(trainer, few):
    assert trainer.explain() is None
    optimizer = optax.sgd(0.05)
    params = digits.init_params(jax.random.key(0))
    state = DigitsState(params, optimizer.init(params), duotone.NoLossScale())
    batch = few.train_images[:BATCH], few.train_labels[:BATCH]
    for precision, rewritten in ((Precision.FLOAT32, False), (Precision.BFLOAT16, True)):
        step = digits.make_train_step(precision, optimizer)
        assert ("bf16" in str(jax.make_jaxpr(step)(state, *batch))) is rewritten


def test_a_run_records_every_step_and_reports_it(trainer):
    heard = []
    run = trainer.run(3, lambda done, loss: heard.append((done, loss)))
    assert trainer.steps == 4
    assert heard == list(enumerate(run.losses, 1))
    assert len(run.scales) == 4
    assert len(run.accuracies) == 2
    assert run.seed == 3
    assert run.skipped == 0
    assert run.step_ms > 0
    assert run.first_step_s > 0


def test_a_seed_gives_the_same_run_again_and_another_seed_another(trainer):
    assert trainer.run(0).losses == trainer.run(0).losses
    assert trainer.run(0).losses != trainer.run(1).losses


def test_epochs_and_images_are_checked(few):
    with pytest.raises(ArgumentError, match="epochs must be at least 1; got 0"):
        Trainer(Precision.FLOAT32, 0, few)
    with pytest.raises(ArgumentError, match="a batch takes 64 images; there are 63"):
        Trainer(Precision.FLOAT32, 1, few._replace(train_images=few.train_images[:63]))


@pytest.mark.slow
@pytest.mark.parametrize("precision", Precision)
def test_a_whole_training_recognises_the_digits(precision, data):
    assert Trainer(precision, 15, data).run(0).accuracy > 0.975
