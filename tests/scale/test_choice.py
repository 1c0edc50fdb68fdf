"""What a user may say for a loss scale, and what it means."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone.errors import ArgumentError, ArgumentTypeError
from duotone.scale import DynamicLossScale, FixedLossScale, NoLossScale
from duotone.scale.choice import (
    check_loss_scale,
    dynamic_loss_scale,
    fixed_loss_scale,
    make_loss_scale,
)


@pytest.mark.parametrize(
    ("loss_scale", "half", "expected"),
    [
        ("dynamic", "float16", DynamicLossScale()),
        ("Dynamic", "float16", DynamicLossScale()),
        ("dynamic", "bfloat16", NoLossScale()),
        ("dynamic", None, NoLossScale()),
        (None, "float16", NoLossScale()),
        (1, None, FixedLossScale(1)),
        (128.0, "bfloat16", FixedLossScale(128)),
        (np.float32(128), "float16", FixedLossScale(128)),
        (np.int64(4), "float16", FixedLossScale(4)),
        (DynamicLossScale(4), "bfloat16", DynamicLossScale(4)),
        (NoLossScale(), "float16", NoLossScale()),
    ],
)
def test_what_is_meant(loss_scale, half, expected):
    made = make_loss_scale(loss_scale, half)
    assert jax.tree.structure(made) == jax.tree.structure(expected)
    assert jax.tree.leaves(made) == jax.tree.leaves(expected)


def test_the_arrays_are_new():
    """Catches: a loss scale of the user's whose arrays a training step donates."""
    given = DynamicLossScale(value=jnp.float32(4), good_steps=jnp.int32(1), skipped=jnp.int32(2))
    made = make_loss_scale(given, "float16")
    for leaf in jax.tree.leaves(made):
        leaf.delete()
    assert [float(leaf) for leaf in jax.tree.leaves(given)] == [4, 1, 2]


@pytest.mark.parametrize("word", ["static", "", "2**15"])
def test_another_word(word):
    with pytest.raises(ArgumentError, match='the only string accepted is "dynamic"'):
        check_loss_scale(word)


@pytest.mark.parametrize("number", [0, 2.0**-127, -2, float("nan"), float("inf")])
def test_a_number_out_of_range(number):
    with pytest.raises(ArgumentError, match=r"loss_scale must be from 2\*\*-126 to .*NoLossScale"):
        check_loss_scale(number)
    with pytest.raises(ArgumentError, match=r"value must be from 2\*\*-126 to"):
        fixed_loss_scale(number)


@pytest.mark.parametrize(
    ("thing", "remedy"),
    [
        (True, "got True"),
        (NoLossScale, r"NoLossScale\(\.\.\.\)"),
        (jnp.float32(8), r"float\(loss_scale\)"),
        (object(), r"dynamic_loss_scale\(initial=\.\.\.\)"),
    ],
)
def test_another_thing(thing, remedy):
    with pytest.raises(ArgumentTypeError, match=remedy):
        make_loss_scale(thing, "float16")


def test_the_short_names():
    assert dynamic_loss_scale() == DynamicLossScale()
    state = dynamic_loss_scale(8, growth_interval=1, factor=4, floor=2, cap=64)
    assert float(state.adjust(True).value) == 32
    assert float(state.adjust(False).value) == 2
    assert float(state.adjust(True).adjust(True).value) == 64
    assert fixed_loss_scale(8) == FixedLossScale(8)


def test_making_an_optimizer_starts_no_backend():
    """Asking for a device where a program is imported would fix JAX's settings too early."""
    code = (
        "import optax, duotone\n"
        "from duotone.adapters.enable import enable_mixed_precision_graph_rewrite as enable\n"
        "enable(optax.chain(optax.clip(1.0), optax.MultiSteps(optax.sgd(0.1), 2)))\n"
        "enable(optax.sgd(0.1), 8, dtype='float16')\n"
        "from jax._src import xla_bridge\n"
        "print(xla_bridge.backends_are_initialized())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize("make", [DynamicLossScale, dynamic_loss_scale])
def test_the_names_of_tensorflow(make):
    """``tf.train.experimental.DynamicLossScale`` of 1.15; a program is moved by its import."""
    ours = make(initial=2**10, growth_interval=5, factor=4)
    assert make(initial_loss_scale=2**10, increment_period=5, multiplier=4) == ours
    assert make(2**10, 5, multiplier=4) == ours


@pytest.mark.parametrize("make", [DynamicLossScale, dynamic_loss_scale])
def test_one_value_under_both_names_is_refused(make):
    with pytest.raises(
        ArgumentError, match="increment_period is TensorFlow's name for growth_inter"
    ):
        make(increment_period=5, growth_interval=5)
    with pytest.raises(ArgumentError, match="initial_loss_scale"):
        make(2**10, initial_loss_scale=2**10)
    with pytest.raises(TypeError, match="multiplie"):
        make(multiplie=2)
