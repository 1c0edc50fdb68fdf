"""Parts of the zoo's models against what they stand for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.zoo.actor_critic import advantages
from benchmarks.zoo.graphs import random_edges, summed
from benchmarks.zoo.mamba import selective_scan
from benchmarks.zoo.nerf import composed
from benchmarks.zoo.pointnet import farthest, nearest
from benchmarks.zoo.rwkv import weighted
from benchmarks.zoo.swin import neighbours, relative, unwindowed, windows
from benchmarks.zoo.t5 import buckets
from benchmarks.zoo.unet3d import overlap


def drawn(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def test_a_scan_in_chunks_is_the_recurrence():
    kept, given, shown = (
        jax.nn.sigmoid(drawn(0, 8, 2, 3, 4)),
        drawn(1, 8, 2, 3, 4),
        drawn(2, 8, 2, 4),
    )
    state, expected = jnp.zeros((2, 3, 4)), []
    for t in range(8):
        state = kept[t] * state + given[t]
        expected.append(jnp.einsum("bcs,bs->bc", state, shown[t]))
    found = selective_scan(kept, given, shown, chunk=4)
    np.testing.assert_allclose(found, jnp.stack(expected), atol=1e-5)


def test_weighted_means_are_those_of_the_formula():
    keys, values, now = drawn(0, 5, 1, 2), drawn(1, 5, 1, 2), drawn(2, 2)
    decay = -jnp.exp(drawn(3, 2))
    expected = []
    for t in range(5):
        weight = [jnp.exp((t - 1 - i) * decay + keys[i]) for i in range(t)]
        weight.append(jnp.exp(now + keys[t]))
        above = sum(w * v for w, v in zip(weight, values, strict=False))
        expected.append(above / sum(weight))
    np.testing.assert_allclose(weighted(keys, values, decay, now), jnp.stack(expected), rtol=1e-4)


def test_edges_are_sorted_by_their_end_and_summed_in_float32():
    begins, ends = random_edges(jax.random.key(0), 8, 64)
    assert bool(jnp.all(ends[1:] >= ends[:-1]))
    assert 0 <= int(begins.min()) <= int(begins.max()) < 8
    ones = jnp.ones((4096, 1), jnp.bfloat16)
    total = summed(ones, jnp.zeros(4096, jnp.int32), 2)
    assert total.dtype == jnp.bfloat16
    assert total[:, 0].tolist() == [4096.0, 0.0], "added in bfloat16, it would end at 256"


def test_windows_come_back_and_know_their_neighbours():
    x = drawn(0, 2, 8, 8, 3)
    np.testing.assert_array_equal(unwindowed(windows(x, 4), 4, 8), x)
    together = neighbours(8, 4, 2)
    assert together.shape == (4, 16, 16)
    assert together[0].all(), "the first window holds what was together"
    assert not together[-1].all()
    assert relative(4).min() == 0
    assert relative(4).max() == (2 * 4 - 1) ** 2 - 1


def test_buckets_are_as_published():
    both, past = buckets(200, 200, True), buckets(200, 200, False)
    assert both[0, :3].tolist() == [0, 17, 18]
    assert both[2, :3].tolist() == [2, 1, 0]
    assert past[0].max() == 0, "nothing later may be told apart"
    assert past[199, 0] == both.max() == 31
    assert np.unique(both).size == 31


def test_advantages_without_a_discount_of_the_future_beyond_an_end():
    rewards, values = jnp.ones((3, 1)), jnp.zeros((4, 1))
    found = advantages(rewards, values, jnp.array([[0.0], [1.0], [0.0]]))
    np.testing.assert_allclose(found[:, 0], [1 + 0.99 * 0.95, 1.0, 1.0], rtol=1e-6)


def test_a_dense_place_hides_those_after_it():
    density = jnp.array([[-50.0, 50.0, 50.0]])
    precision, weights = composed(density, jnp.eye(3)[None], jnp.array([[1.0, 2.0, 3.0]]))
    np.testing.assert_allclose(weights, [[0.0, 1.0, 0.0]], atol=1e-6)
    np.testing.assert_allclose(precision, [[0.0, 1.0, 0.0]], atol=1e-6)


def test_the_farthest_points_and_the_nearest():
    line = jnp.array([[0.0, 1.0, 2.0, 10.0]])
    places = jnp.stack([line, line * 0, line * 0], axis=-1)
    assert farthest(places, 3).tolist() == [[0, 3, 2]]
    assert nearest(places[:, 1:2], places, 1).tolist() == [[[1]]]


@pytest.mark.parametrize(("labels", "expected"), [([0, 1], 0.0), ([1, 0], 1.0)])
def test_overlap_is_one_minus_dice(labels, expected):
    logits = jnp.array([[40.0, 0.0], [0.0, 40.0]]).reshape(1, 2, 1, 1, 2)
    found = overlap(logits, jnp.array(labels).reshape(1, 2, 1, 1))
    assert float(found) == pytest.approx(expected, abs=1e-4)
