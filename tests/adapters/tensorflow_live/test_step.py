"""``duotone.tensorflow.compare_step``: a step in float32 and as rewritten."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false

from __future__ import annotations

import numpy as np
import pytest

from duotone.errors import ArgumentError
from duotone.tensorflow import compare_step
from duotone.tensorflow.live import switch
from tests.adapters.tensorflow_live.small import BATCH, compiled, model, step_of, values, wrap
from tests.tensorflow.in_tensorflow import needs_tensorflow

pytestmark = needs_tensorflow


def trained(dtype):
    import keras

    return compiled(wrap(keras.optimizers.Adam(1e-2), dtype, loss_scale=8.0))


def compared(tf, made, x=BATCH[0]):
    """The differences of a step, which changes no variable."""
    step = tf.function(made.train_step)
    step(BATCH)
    before = values(made)
    found = compare_step(step, (x, BATCH[1]))
    for old, new in zip(before, values(made), strict=True):
        np.testing.assert_array_equal(old, new)
    assert switch.is_enabled()
    return found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_step_differs_by_the_rounding_of_half(tf, dtype):
    """Catches: a second run with the weights that the first has updated."""
    found = compared(tf, trained(dtype))
    assert 0 < found.error < 0.05
    read = [v for v in found.nodes if v.operation == "ReadVariableOp" and "/dense" in v.name]
    assert read
    assert all(value.error == 0 for value in read)
    assert any(value.operation == "MatMul" and value.error > 0 for value in found.nodes)
    assert not any(value.saturated for value in found.nodes)
    assert set(found.inputs.values()) == {"float32(64, 20)", "float32(64, 1)"}


def test_the_value_that_overflows_is_named(tf):
    found = compared(tf, trained("float16"), BATCH[0] * 1e5)
    assert found.parts.operation == "MatMul"
    assert found.parts.saturated
    assert "they first differ at" in str(found)
    switch.disable()
    wide = compared(tf, trained("bfloat16"), BATCH[0] * 1e5)
    assert not any(value.saturated for value in wide.nodes)


def test_a_step_of_ones_own(tf):
    import keras

    own = model()
    opt = wrap(keras.optimizers.SGD(1e-2))
    step = tf.function(step_of(opt, own))
    step(*BATCH)
    found = compare_step(step, *BATCH)
    assert len(found.outputs) == 1
    assert 0 < found.error < 0.05


def test_a_loop_and_random_numbers(tf):
    """Catches: lists of half tensors in a loop that is not lowered, and two different draws."""
    import keras

    opt = wrap(keras.optimizers.SGD(1e-2), "bfloat16")
    layers = [keras.layers.LSTM(64, return_sequences=True), keras.layers.LSTM(64)]
    own = keras.Sequential([keras.Input((6, 64)), *layers, keras.layers.Dropout(0.5)])
    own.compile(optimizer=opt, loss="mse", jit_compile=False)
    x, y = np.ones((64, 6, 64), "f"), np.ones((64, 64), "f")

    @tf.function
    def step(x, y):
        return own.train_step((tf.nn.dropout(x, 0.5), y))

    step(x, y)
    found = compare_step(step, x, y)
    assert found.error < 0.05
    drawn = [value for value in found.nodes if "Random" in value.operation]
    assert drawn
    assert all(value.error == 0 for value in drawn)
    assert compare_step(step, x, y).outputs == found.outputs


def test_refusals(tf):
    step = tf.function(lambda x: x @ x)
    with pytest.raises(ArgumentError, match="mixed precision is off"):
        compare_step(step, np.ones((4, 4), "f"))
    trained("bfloat16")
    with pytest.raises(ArgumentError, match=r"compare_step\(tf\.function\(step\)"):
        compare_step(lambda x: x)
    data = iter(tf.data.Dataset.from_tensors(np.ones((4, 4), "f")))
    with pytest.raises(ArgumentError, match="no variables, datasets or iterators"):
        compare_step(tf.function(lambda data: next(data) * 2.0), data)
