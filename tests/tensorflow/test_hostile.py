"""Programs that half precision breaks, in TensorFlow: duotone's painter against TensorFlow's.

``make test-tensorflow`` runs these in an environment of their own; elsewhere they are skipped.
Float32 is the reference. An error is a root mean square, relative to that of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from duotone import Policy
from duotone.tensorflow import rewrite
from tests.tensorflow.in_tensorflow import graph_of, needs_tensorflow, run

pytestmark = needs_tensorflow

# The largest error of a dot of 64 terms and what follows it, with a factor of 4 to spare.
TOLERANCE = {"float16": 0.005, "bfloat16": 0.03}
PROGRAMS: dict[str, tuple[Callable[..., Any], Any, float]] = {}


def _random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


W = _random(64, 64) / 8
X = _random(32, 64)
ZEROS = X.copy()
ZEROS[3], ZEROS[5] = 0.0, 1e-5
AUDIO = _random(4, 4000) * 0.1
IMAGE = _random(2, 32, 32, 8)


def _program(x: Any, factor: float = 1.0) -> Callable[..., Any]:
    """Adds a program; ``factor`` widens the tolerance where float32 inputs round to half."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = (function, x, factor)
        return function

    return add


def _log_mel(tf: Any, x: Any, scale: float) -> Any:
    frames = tf.signal.frame(x * scale, 256, 128) * np.hanning(256).astype(np.float32)
    angle = np.arange(129)[None] * np.arange(256)[:, None] * 2 * np.pi / 256
    real = frames @ np.cos(angle).astype(np.float32)
    imaginary = frames @ np.sin(angle).astype(np.float32)
    power = real * real + imaginary * imaginary
    return tf.math.log(tf.maximum(power @ (np.abs(_random(129, 40)) * 0.02), 1e-10))


@_program(AUDIO)
def log_mel(tf, x):
    return _log_mel(tf, x, 1.0)


@_program(AUDIO)
def log_mel_of_16_bit_samples(tf, x):
    return _log_mel(tf, x, 32768.0)


@_program(AUDIO)
def log_mel_of_silence(tf, x):
    return _log_mel(tf, x, 1e-4)


@_program(AUDIO)
def log_mel_by_fft(tf, x):
    spectrum = tf.abs(tf.signal.stft(x * 2e4, 256, 128))
    return tf.math.log(spectrum**2 @ (np.abs(_random(129, 40)) * 0.02) + 1e-6)


@_program(ZEROS)
def norm_of_a_zero_row(tf, x):
    return tf.math.l2_normalize(tf.nn.relu(x @ W), axis=-1, epsilon=1e-12) @ W


@_program(ZEROS)
def norm_of_a_zero_row_by_a_root(tf, x):
    h = x @ W
    return (h / tf.sqrt(tf.reduce_sum(h * h, -1, keepdims=True) + 1e-12)) @ W


@_program(ZEROS)
def norm_of_a_zero_row_by_a_reciprocal(tf, x):
    """Catches: half takes ``1 / (0 + 1e-8)``, since no row says that a reciprocal has a pole."""
    h = x @ W
    root = tf.sqrt(tf.reduce_sum(h * h, -1, keepdims=True))
    return (h * tf.math.reciprocal(root + 1e-8)) @ W


@_program(ZEROS)
def norm_of_a_zero_row_by_a_power(tf, x):
    h = x @ W
    return (h * tf.pow(tf.reduce_sum(h * h, -1, keepdims=True) + 1e-12, -0.5)) @ W


@_program(ZEROS)
def norm_of_a_zero_row_by_a_dot(tf, x):
    """Catches: the squares of a row of 1e-5 underflow, and it is divided by the guard."""
    h = x @ W
    squares = tf.linalg.diag_part(tf.matmul(h, h, transpose_b=True))[:, None]
    return (h * tf.math.rsqrt(squares + 1e-12)) @ W


@_program(ZEROS)
def norm_of_a_zero_row_without_a_guard(tf, x):
    h = x @ W
    return tf.math.divide_no_nan(h, tf.norm(h, axis=-1, keepdims=True)) @ W


@_program(ZEROS)
def cosine_similarity(tf, x):
    a, b = x @ W, x @ W[::-1]
    return tf.reduce_sum(a * b, -1) / (tf.norm(a, axis=-1) * tf.norm(b, axis=-1) + 1e-8)


@_program(ZEROS)
def contrastive_loss(tf, x):
    a, b = (tf.math.l2_normalize(x @ w, -1) for w in (W, W[::-1]))
    logits = tf.matmul(a, b, transpose_b=True) / 0.01
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(32), logits)


@_program(X)
def weights_of_a_million(tf, x):
    return tf.nn.relu(x @ (W * 1e6)) @ (W * 1e-6)


@_program(X)
def bias_of_a_million(tf, x):
    return ((x @ W + 1e6) * 1e-6) @ W


@_program(X)
def positions_of_floats(tf, x):
    position = tf.range(0.0, 5000.0, 1.0)[:, None]
    angle = position * (10000 ** (-np.arange(0, 64, 2) / 64)).astype(np.float32)[None]
    return tf.concat([tf.sin(angle), tf.cos(angle)], -1) @ W + tf.reduce_sum(x @ W) * 0


@_program(X)
def positions_by_a_product(tf, x):
    position = tf.cast(tf.range(5000), tf.float32)[:, None]
    return tf.sin(position @ _random(1, 64)) @ W + tf.reduce_sum(x @ W) * 0


@_program(X)
def an_index_by_a_product(tf, x):
    count = tf.cast(tf.range(4096), tf.float32)[:, None] @ tf.ones([1, 16])
    return tf.gather(x @ W, tf.cast(count[:, 0], tf.int32) % 32) @ W


@_program(X)
def time_features(tf, x):
    hours = (tf.range(32.0) * 3600.0)[:, None]
    features = tf.concat([hours, hours / 7.0, hours / 365.0], 1) @ _random(3, 16)
    return tf.sin(features * 1e-2) @ _random(16, 64) + tf.reduce_sum(x @ W) * 0


@_program(IMAGE)
def crops_by_predicted_boxes(tf, x):
    h = tf.nn.conv2d(x, _random(3, 3, 8, 16) / 8, 1, "SAME")
    boxes = tf.sigmoid(tf.reduce_mean(h, [1, 2]) @ _random(16, 4))
    return tf.image.crop_and_resize(h, boxes, [0, 1], [24, 24])


@_program(X)
def attention_with_a_mask(tf, x):
    q, k, v = x @ W, x @ W.T, x @ W
    mask = np.triu(np.full((32, 32), -1e9, np.float32), 1)
    return tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / 8 + mask) @ v


@_program(X)
def layer_norm_by_hand(tf, x):
    h = x @ W * 30.0
    mean = tf.reduce_mean(h, -1, keepdims=True)
    variance = tf.reduce_mean(tf.math.squared_difference(h, mean), -1, keepdims=True)
    return ((h - mean) * tf.math.rsqrt(variance + 1e-5)) @ W


@_program(X, 4.0)
def variance_by_moments(tf, x):
    h = x @ W + 50.0
    mean = tf.reduce_mean(h, -1, keepdims=True)
    variance = tf.reduce_mean(h * h, -1, keepdims=True) - mean * mean
    return ((h - mean) / tf.sqrt(variance + 1e-5)) @ W


@_program(X)
def distances(tf, x):
    a = x @ W + 20.0
    squares = tf.reduce_sum(a * a, -1)
    return squares[:, None] + squares[None] - 2.0 * tf.matmul(a, a, transpose_b=True)


@_program(X)
def log_probabilities(tf, x):
    logits = x @ W * 5.0
    return logits - tf.reduce_logsumexp(logits, -1, keepdims=True)


@_program(X)
def entropy(tf, x):
    p = tf.nn.softmax(x @ W)
    return -tf.reduce_sum(p * tf.math.log(p + 1e-9), -1)


@_program(X * 5)
def focal_loss(tf, x):
    p = tf.sigmoid(x @ W)
    return -tf.pow(1 - p, 2.0) * tf.math.log(tf.clip_by_value(p, 1e-7, 1.0))


@_program(X * 4)
def logits_of_probabilities(tf, x):
    p = tf.clip_by_value(tf.sigmoid(x @ W), 1e-6, 1 - 1e-6)
    return tf.math.log(p / (1 - p))


@_program(X)
def a_peak_signal_to_noise_ratio(tf, x):
    a, b = tf.sigmoid(x @ W), tf.sigmoid(x @ W + 1e-2)
    return 10 * tf.math.log(1 / tf.reduce_mean((a - b) ** 2, -1))


@_program(X)
def a_ctc_loss(tf, x):
    logits = tf.reshape(tf.tile(x @ W, [2, 1]), [16, 4, 64]) * 4
    labels = tf.constant(np.arange(12).reshape(4, 3) + 1, tf.int32)
    return tf.nn.ctc_loss(labels, logits, [3] * 4, [16] * 4, logits_time_major=True, blank_index=0)


@_program(X)
def steps_of_8_bits(tf, x):
    h = x @ W
    step = tf.reduce_max(tf.abs(h)) / 127.0
    return (tf.cast(tf.cast(tf.round(h / step), tf.int8), tf.float32) * step) @ W


@_program(X)
def numbers_of_integers(tf, x):
    whole = tf.cast(tf.cast(x * 3000.0, tf.int32), tf.float32)
    return whole @ tf.reshape(tf.cast(tf.range(64 * 64) % 5000, tf.float32), [64, 64])


@_program(X)
def numbers_of_ten_millionths(tf, x):
    return ((x @ W) * 1e-7) @ (W * 1e7)


@_program(X)
def long_sums(tf, x):
    return tf.cumsum(tf.tile(tf.nn.relu(x @ W), [100, 1]), 0)


@_program(X)
def solve(tf, x):
    return tf.linalg.solve(tf.matmul(x, x, transpose_b=True) + tf.eye(32) * 1e-2, x)


@_program(X)
def sums_over_iterations(tf, x):
    def step(i, state):
        return i + 1, state + 0.01 * tf.tanh(state @ W)

    return tf.while_loop(lambda i, state: i < 200, step, (0, x))[1]


@_program(X)
def power_iteration(tf, x):
    def step(i, state):
        y = state @ (W @ W.T)
        return i + 1, y / tf.norm(y)

    return tf.while_loop(lambda i, state: i < 50, step, (0, x))[1]


@_program(X)
def an_optimizer_in_a_loop(tf, x):
    target, zeros = x @ W[::-1], tf.zeros([64, 64])

    def step(i, w, m, v):
        gradient = tf.matmul(x, x @ w - target, transpose_a=True) / 32
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        return i + 1, w - 0.01 * m / (tf.sqrt(v) + 1e-8), m, v

    start = (0, tf.constant(W), zeros, zeros)
    return tf.while_loop(lambda i, *_: i < 50, step, start, maximum_iterations=50)[1]


@_program(X)
def whitened(tf, x):
    h = x @ W
    moments = tf.matmul(h, h, transpose_a=True) / 32 + 1e-3 * tf.eye(64)
    return tf.linalg.triangular_solve(tf.linalg.cholesky(moments), tf.transpose(h))


@_program(X)
def a_choice_with_a_logarithm(tf, x):
    h = x @ W
    return tf.where(h > 0, h, tf.math.log(tf.maximum(tf.abs(h), 1e-8))) @ W


@_program(X)
def gradients_of_a_classifier(tf, x):
    w = tf.constant(W)
    logits = tf.nn.relu(x @ w) @ W.T
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(32), logits)
    return tf.gradients(tf.reduce_mean(loss), [w])[0]


def _error(found: Any, full: Any) -> float:
    """The root mean square of the difference over that of the elements; infinite for infinities."""
    if not np.isfinite(found).all():
        return np.inf
    return float(np.sqrt(np.mean((found - full) ** 2) / np.mean(full**2)))


@_program(X / 2 + 10)
def distances_by_a_product(tf, x):
    h = x @ np.eye(64, dtype=np.float32)
    codes = _random(16, 64, seed=5) / 2 + 10
    squares = tf.reduce_sum(h * h, 1)[:, None] + tf.reduce_sum(codes * codes, 1)
    return squares - 2.0 * tf.matmul(h, codes, transpose_b=True)


@_program(X)
def coordinates_far_from_zero(tf, x):
    where = x @ W + 1000.0
    return tf.tanh(where[1:] - where[:-1])


@_program(X)
def places_by_a_triangle(tf, x):
    chosen = tf.tile(tf.argmax(x[:1] @ W, -1), [3000])
    expert = tf.one_hot(chosen, 64)
    places = tf.linalg.band_part(tf.ones([3000, 3000]), -1, 0) @ expert
    return tf.math.floormod(tf.reduce_sum(places * expert, -1), 2.0)


@_program(np.abs(X) * 10 + 100)
def products_of_bytes(tf, x):
    a = tf.cast(tf.cast(x, tf.uint8), tf.float32)
    b = tf.cast(tf.constant((W * 80 + 120).astype(np.uint8)), tf.float32)
    return (a @ b - 120.0 * tf.reduce_sum(a, -1, keepdims=True)) @ W


@_program(IMAGE / 10)
def structural_similarity(tf, x):
    w = _random(8, 3) / 3
    y, target = (tf.sigmoid(tf.tensordot(v, w, 1)) for v in (x, 1.05 * x))
    return 1 - tf.image.ssim(y, tf.stop_gradient(target), 1.0, filter_size=7)


@_program(IMAGE / 10)
def variance_in_windows(tf, x):
    y = tf.sigmoid(tf.tensordot(x, _random(8, 3) / 3, 1))
    return tf.nn.avg_pool2d(y * y, 4, 1, "VALID") - tf.nn.avg_pool2d(y, 4, 1, "VALID") ** 2


@_program(X)
def a_filter_over_the_results_of_a_dot(tf, x):
    """Catches: the list of a scan that is not lowered is half, and its body reads float32."""

    def update(state, seen):
        mean, spread = state
        gain = (spread + 0.01) / (spread + 1.01)
        return mean + gain * (seen - mean), (1.0 - gain) * (spread + 0.01)

    return tf.scan(update, (x @ W)[:, 0], initializer=(tf.zeros([]), tf.ones([])))[0]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_worse_than_the_original_and_finite(tf, name, dtype):
    function, x, factor = PROGRAMS[name]
    graph, fetch, feed = graph_of(tf, lambda x: [function(tf, x)], x)
    (full,) = run(tf, graph, fetch, **feed)

    def error(painter: str) -> float:
        done = rewrite(graph, fetch=fetch, dtype=dtype, painter=painter)
        return _error(run(tf, done.graph_def, fetch, **feed)[0], full)

    ours = error("duotone")
    assert ours <= TOLERANCE[dtype] * factor
    try:
        theirs = error("tensorflow")
    except tf.errors.InvalidArgumentError:  # it makes a While half, and not its condition
        theirs = np.inf
    assert ours <= theirs * 1.05


def test_the_original_breaks_on_these(tf):
    """The programs are hostile: TensorFlow's painter gives infinities, or errors above 5 %."""
    broken = ("log_mel_of_16_bit_samples", "norm_of_a_zero_row", "weights_of_a_million")
    broken += ("norm_of_a_zero_row_by_a_power", "an_index_by_a_product")
    for name in (*broken, "positions_by_a_product"):
        function, x, _ = PROGRAMS[name]
        graph, fetch, feed = graph_of(tf, lambda x, f=function: [f(tf, x)], x)
        done = rewrite(graph, fetch=fetch, painter="tensorflow")
        full, half = (run(tf, g, fetch, **feed)[0] for g in (graph, done.graph_def))
        assert _error(half, full) > 0.05, name


def test_the_loss_of_sparsemax_has_its_gradient(tf):
    """Catches: a gradient of unknown shape is no dot's, so the scores are part of the network."""
    x, *weights = _random(64, 16, seed=3), _random(16, 32, seed=1) / 4, _random(32, 16, seed=2) / 6

    def loss(x, first, second):
        scores = 3 * (tf.tanh(x @ first) @ second) + 5
        largest = tf.sort(scores, axis=1, direction="DESCENDING")
        total, count = tf.cumsum(largest, 1), tf.range(1, 17, dtype=tf.float32)
        chosen = tf.cast(1 + count * largest > total, tf.int32)
        size = tf.reduce_sum(chosen, 1, keepdims=True)
        limit = (tf.gather(total, size - 1, batch_dims=1) - 1) / tf.cast(size, tf.float32)
        picked = tf.where(scores > limit, scores * scores - limit * limit, tf.zeros_like(scores))
        value = tf.reduce_mean(tf.reduce_sum(picked, 1) / 2 - scores[:, 0])
        return [value, *tf.gradients(value, [first, second])]

    graph, fetch, feed = graph_of(tf, loss, x, *weights)
    full = run(tf, graph, fetch, **feed)
    policy = Policy(rules_remove={"device"})
    done = rewrite(graph, fetch=fetch, dtype="bfloat16", policy=policy)
    found = run(tf, done.graph_def, fetch, **feed)
    assert all(_error(a, b) < TOLERANCE["bfloat16"] for a, b in zip(found, full, strict=True))
