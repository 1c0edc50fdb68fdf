"""Painting for a device that is not the one at hand."""

import jax
import jax.numpy as jnp
import pytest

import duotone
from duotone.devices import current_choice
from duotone.devices.assumed import AssumedDevice, assumed, assuming, platform_to_paint_for

HOPPER = AssumedDevice("h200", "cuda", "9.0")
TURING = AssumedDevice("t4", "cuda", "7.5")
X = jnp.ones((8, 8))


def test_the_assumed_device_is_asked():
    assert assumed() is None
    assert platform_to_paint_for() == jax.default_backend()
    with assuming(HOPPER):
        assert assumed() == HOPPER
        assert platform_to_paint_for() == "cuda"
        assert current_choice().dtype == "bfloat16"
        with assuming(TURING):
            assert current_choice().dtype == "float16"
        with assuming(None):
            assert platform_to_paint_for() == jax.default_backend()
        assert assumed() == HOPPER
    assert assumed() is None


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.vmap], ids=["plain", "jit", "vmap"])
def test_programs_for_different_devices_do_not_mix(wrap):
    """Nor through the caches of ``jax.jit``, outside and inside of ``autocast``."""
    here = current_choice().dtype

    def product(x):
        return x @ jnp.outer(x, x) if x.ndim == 1 else x @ x.T

    rewritten = wrap(duotone.autocast(wrap(product)))
    halves = {"bfloat16": "bf16", "float16": ":f16", None: "no half"}
    devices = [None, HOPPER, TURING, HOPPER, None]
    chosen = [here, "bfloat16", "float16", "bfloat16", here]
    operand = X[None] if wrap is jax.vmap else X
    operand = jnp.broadcast_to(operand, (8, 8, 8)) if wrap is jax.vmap else operand
    for device, dtype in zip(devices, chosen, strict=True):
        with assuming(device):
            text = str(jax.make_jaxpr(rewritten)(operand))
        for name in ("bf16", ":f16"):
            # Where the device at hand declines small dots there is no half at all.
            assert (name in text) <= (name == halves[dtype])
            if device is not None:
                assert (name in text) == (name == halves[dtype])


def test_results_at_hand_are_those_of_the_device_at_hand():
    fast = duotone.autocast(lambda x: x @ x.T, dtype="bfloat16")
    before = fast(X)
    with assuming(HOPPER):
        jax.make_jaxpr(fast)(X)
    assert (fast(X) == before).all()
