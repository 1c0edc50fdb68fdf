"""Devices that are not there: needs the extras ``cuda`` and ``tpu``, and does nothing without.

``python -m pytest -m slow tests/cost/test_absent.py`` where they are installed.
"""

import dataclasses
import importlib.util
import logging
import os

import jax
import jax.numpy as jnp
import pytest

import duotone
from duotone import _jax
from duotone.devices.gpus import GPUS
from duotone.devices.specifications import TARGETS
from duotone.devices.table import TABLE
from duotone.errors import CompilationError

pytestmark = pytest.mark.slow

ABSENT = [name for name, target in TARGETS.items() if target.platform != "cpu"]
X = jax.ShapeDtypeStruct((8, 32, 32, 64), jnp.float32)
K = jax.ShapeDtypeStruct((3, 3, 64, 128), jnp.float32)
W = jax.ShapeDtypeStruct((128, 256), jnp.float32)


@pytest.fixture(params=ABSENT)
def target(request):
    """A target whose compiler is installed; a test may name some."""
    found = TARGETS[request.param]
    if found.platform == "tpu" and importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed")
    if found.platform == "cuda":
        if _jax.cuda_plugin() is None:
            pytest.skip("JAX's CUDA plugin is not installed")
        old = GPUS[found.name].capability < (7, 5)
        if old and importlib.util.find_spec("nvidia.cuda_nvcc") is None:
            pytest.skip("the assembler of CUDA 12 is not installed")
    return found


@pytest.fixture
def h200():
    if _jax.cuda_plugin() is None:
        pytest.skip("JAX's CUDA plugin is not installed")
    return "h200"


def loss(x, k, w):
    layout = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, k, (2, 2), "SAME", dimension_numbers=layout)
    return jax.nn.logsumexp(jax.nn.relu(y).reshape(-1, 128) @ w, axis=-1).sum()


step = jax.value_and_grad(loss, argnums=(0, 1, 2))


def test_a_step_compiles_for_every_target(target):
    """In float32 and painted: the same work, in the half type of the target, on fewer bytes."""
    full = duotone.compile_for(step, X, K, W, target=target.name)
    half = duotone.compile_for(duotone.autocast(step), X, K, W, target=target.name)
    outputs = 8 * 16 * 16
    work = 3 * 2 * outputs * 128 * (9 * 64) + 3 * 2 * outputs * 128 * 256
    for seen in (full, half):
        assert seen.total_flops == pytest.approx(work, rel=0.05)
        assert seen.seconds > 0
        assert seen.argument_bytes >= 4 * (8 * 32 * 32 * 64 + 9 * 64 * 128 + 128 * 256)
        assert not seen.notes
    assert full.half_flops_share < 0.5
    assert half.half_flops_share == 1
    short = {"float16": "f16×f16", "bfloat16": "bf16×bf16"}[target.half]
    assert all(types.startswith(short) for types in half.dots)
    if target.platform == "cuda":
        assert half.bytes < 0.8 * full.bytes
        assert half.seconds < full.seconds
    else:
        assert half.compiler_seconds is None or half.compiler_seconds < 1e-3


LOOPS = {
    "layers": (lambda x: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), x[0]), x, WEIGHTS), 6),
    "from 5": (lambda x: jax.lax.fori_loop(5, 17, lambda i, h: jnp.tanh(h @ x) * i, x), 12),
    "steps of 3": (
        lambda x: jax.lax.while_loop(
            lambda c: c[0] <= 10, lambda c: (c[0] + 3, jnp.tanh(c[1] @ x)), (0, x)
        ),
        4,
    ),
    "down": (
        lambda x: jax.lax.while_loop(
            lambda c: c[0] > 0, lambda c: (c[0] - 1, jnp.tanh(c[1] @ x)), (10, x)
        ),
        10,
    ),
    "nested": (
        lambda x: jax.lax.fori_loop(
            0, 5, lambda _, h: jax.lax.fori_loop(0, 7, lambda _, h: jnp.tanh(h @ x), h), x
        ),
        35,
    ),
    "until it is large": (
        lambda x: jax.lax.while_loop(lambda h: h.sum() < 1e6, lambda h: jnp.exp(h @ x), x),
        None,
    ),
}
WEIGHTS = jnp.ones((6, 256, 256))


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("target", ["h200", "v5e"], indirect=True)
def test_a_loop_counts_as_often_as_it_runs(target, name):
    loop, runs = LOOPS[name]
    seen = duotone.compile_for(
        loop, jax.ShapeDtypeStruct((256, 256), jnp.float32), target=target.name
    )
    assert seen.total_flops == (runs or 1) * 2 * 256**3
    assert bool(seen.notes) is (runs is None)
    if name == "layers" and target.name == "h200":
        assert seen.bytes > 6 * 4 * 3 * 256**2


def test_a_callback_is_an_error_that_says_so(h200):
    def printing(x):
        jax.debug.print("{}", x[0, 0])
        return x

    with pytest.raises(CompilationError, match=r"h200.*call.*back.*leave it out"):
        duotone.compile_for(printing, W, target=h200)


def test_an_attentions_gradient_is_finished_in_the_kernel_of_a_dot(monkeypatch):
    """On a TPU: what :mod:`duotone.precision.optimize.trilinear` is for."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed")

    def attention(q, k, v):
        return jnp.sum(jnp.tanh(jax.nn.dot_product_attention(q, k, v, is_causal=True)))

    def moved():
        painted = duotone.autocast(jax.grad(attention, argnums=(0, 1, 2)), dtype="bfloat16")
        return duotone.compile_for(painted, q, q, q, target="v5e").bytes

    q = jax.ShapeDtypeStruct((4, 2048, 8, 128), jnp.float32)
    finished = moved()
    monkeypatch.setitem(TABLE, "tpu", dataclasses.replace(TABLE["tpu"], finishes=False))
    assert finished < 0.85 * moved()


def test_donated_memory_is_used_again(h200):
    def update(w, x):
        return w - 0.1 * jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)

    w = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    jitted = jax.jit(update, donate_argnums=0)
    for fn in (jitted, duotone.autocast(jitted)):
        assert duotone.compile_for(fn, w, w, target=h200).alias_bytes == 4 * 512**2


def test_weights_in_a_closure_are_constants(h200):
    weights = jnp.ones((256, 256))
    x = jax.ShapeDtypeStruct((512, 256), jnp.float32)
    seen = duotone.compile_for(lambda x: x @ weights, x, target=h200)
    assert seen.total_flops == 2 * 512 * 256 * 256
    alone = duotone.compile_for(lambda: weights @ weights, target=h200)
    assert alone.device == "NVIDIA H200"


def test_backends_and_variables_stay_as_they_were(h200, caplog):
    before = jax.devices(), dict(os.environ)
    with caplog.at_level(logging.WARNING):
        duotone.compile_for(lambda x: x @ x.T, W, target=h200)
    assert (jax.devices(), dict(os.environ)) == before
    assert not caplog.records
    assert jax.jit(lambda x: x + 1)(jnp.ones(2)).devices() == {jax.devices()[0]}
