"""Every kind of model that Keras has trains in half, and learns what float32 learns."""

# Keras ships no types, and those that pyright infers from its defaults are not what it takes.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportOptionalOperand=false, reportOperatorIssue=false

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

from duotone.adapters.keras import enable
from duotone.scale import DynamicLossScale
from tests.adapters.keras.small import bad, compiled, data, is_half, same_bits, values

X, Y = data()
TOKENS = np.random.default_rng(0).integers(0, 11, (16, 8)).astype("int32")
SERIES = np.random.default_rng(1).normal(size=(16, 8, 8)).astype("float32")
IMAGES = np.random.default_rng(2).normal(size=(16, 8, 8, 3)).astype("float32")


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = layers.Dense(8, activation="gelu"), layers.Dense(8)
        self.norm = layers.LayerNormalization()

    def call(self, x, training=False):
        return self.out(self.norm(self.hidden(x)))


def functional():
    inputs = layers.Input((8,))
    hidden = layers.Dense(8, activation="relu")(inputs)
    return keras.Model(inputs, layers.Dense(8)(layers.Add()([hidden, layers.Dense(8)(inputs)])))


def recurrent(kind):
    return keras.Sequential([layers.Input((8, 8)), kind(8), layers.Dense(8)])


def attention():
    inputs = layers.Input((8,), dtype="int32")
    x = layers.Embedding(11, 8)(inputs)
    x = layers.MultiHeadAttention(2, 8)(x, x, use_causal_mask=True)
    return keras.Model(inputs, layers.Dense(8)(layers.GlobalAveragePooling1D()(x)))


def convolution():
    stack = [
        layers.Input((8, 8, 3)),
        layers.Conv2D(4, 3),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(8),
    ]
    return keras.Sequential(stack)


MODELS = {
    "subclassed": (Subclassed, X),
    "functional": (functional, X),
    "lstm": (lambda: recurrent(layers.LSTM), SERIES),
    "gru": (lambda: recurrent(layers.GRU), SERIES),
    "bidirectional": (lambda: recurrent(lambda n: layers.Bidirectional(layers.LSTM(n))), SERIES),
    "attention": (attention, TOKENS),
    "convolution": (convolution, IMAGES),
}


# The others go through the same code and take longer.
QUICK = ("subclassed", "lstm", "attention", "convolution")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)
def test_kinds_of_models(name):
    build, x = MODELS[name]
    model = compiled(build(), keras.optimizers.Adam(0.01), metrics=["accuracy"])
    history = model.fit(x, Y, batch_size=16, epochs=15, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert model.optimizer.metrics()["good_steps"] == 15
    assert is_half(model, "train", (x, Y))
    assert model.predict(x, verbose=0).dtype == np.float32


def two_by_two():
    left, right = layers.Input((8,), name="left"), layers.Input((8,), name="right")
    joined = layers.Concatenate()([layers.Dense(8)(left), layers.Dense(8)(right)])
    outputs = {
        "kind": layers.Dense(8, name="kind")(joined),
        "size": layers.Dense(1, name="size")(joined),
    }
    return keras.Model({"left": left, "right": right}, outputs)


def test_several_inputs_and_outputs_with_sample_weights():
    x = {"left": X, "right": X[:, ::-1]}
    y = {"kind": Y, "size": X[:, :1]}
    weight = {"kind": np.linspace(0, 2, 16).astype("float32"), "size": np.ones(16, "float32")}
    histories = []
    for wrap in (True, False):
        keras.utils.set_random_seed(0)
        model = two_by_two()
        optimizer = keras.optimizers.SGD(0.05)
        model.compile(
            enable(optimizer, dtype="float16") if wrap else optimizer,
            loss={
                "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                "size": "mse",
            },
            loss_weights={"kind": 1.0, "size": 0.5},
            weighted_metrics={"kind": ["accuracy"], "size": ["mae"]},
        )
        fitted = model.fit(
            x, y, sample_weight=weight, batch_size=8, epochs=2, shuffle=False, verbose=0
        )
        histories.append(fitted.history)
        if wrap:
            assert is_half(model, "train", (x, y, weight))
    assert histories[0].keys() == histories[1].keys()
    for name, seen in histories[0].items():
        np.testing.assert_allclose(seen, histories[1][name], rtol=0.02, atol=0.01, err_msg=name)


def test_class_weights():
    losses = []
    for wrap in (True, False):
        keras.utils.set_random_seed(0)
        model = compiled(wrap=wrap)
        model.fit(X, Y, class_weight={0: 5.0, 1: 1.0, 2: 0.1}, epochs=2, shuffle=False, verbose=0)
        losses.append(model.evaluate(X, Y, verbose=0))
    assert losses[0] == pytest.approx(losses[1], rel=0.01)


@pytest.mark.slow
def test_digits_reach_the_accuracy_of_float32():
    """A real problem, in float16 and in float32 side by side."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = (digits.data / 16).astype("float32"), digits.target.astype("int32")
    accuracy = {}
    for dtype in ("float16", None):
        keras.utils.set_random_seed(0)
        stack = [
            layers.Input((64,)),
            layers.Dense(48, activation="relu"),
            layers.BatchNormalization(),
        ]
        model = keras.Sequential([*stack, layers.Dropout(0.1), layers.Dense(10)])
        compiled(
            model,
            keras.optimizers.Adam(0.01),
            wrap=dtype is not None,
            dtype=dtype,
            metrics=["accuracy"],
        )
        model.fit(x[:1300], y[:1300], batch_size=100, epochs=6, verbose=0)
        accuracy[dtype] = model.evaluate(x[1300:], y[1300:], batch_size=100, verbose=0)[1]
        if dtype is not None:
            assert model.optimizer.metrics()["skipped_steps"] == 0
            assert is_half(model, "train", (x[:100], y[:100], None))
    assert accuracy[None] > 0.88
    assert abs(accuracy["float16"] - accuracy[None]) < 0.02


class Gan(keras.Model):
    """Two networks, a ``train_step`` of its own, two optimizers: each with its own loss scale.

    Keras' JAX trainer hands a step the variables of the model and of one optimizer, so this model
    keeps the variables of both optimizers among its own.
    """

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([layers.Input((8,)), layers.Dense(8)])
        self.discriminator = keras.Sequential(
            [layers.Input((8,)), layers.Dense(8), layers.BatchNormalization(), layers.Dense(1)]
        )
        self.built = True

    def compile(self, ours, theirs):
        super().compile()  # its optimizer is not used
        self.ours, self.theirs = ours, theirs
        ours.build(self.generator.trainable_variables)
        theirs.build(self.discriminator.trainable_variables)
        self.slots = [*ours.variables, *theirs.variables]

    def call(self, noise):
        return self.generator(noise)

    def _loss(self, weights, network, others, optimizer, real, noise):
        pairs = [*others, *zip(network.trainable_variables, weights, strict=True)]
        with keras.StatelessScope(state_mapping=pairs) as scope:
            fake = self.discriminator(self.generator(noise), training=True)
            truth = self.discriminator(real, training=True)
            loss = keras.ops.mean(keras.ops.softplus(-fake))
            if network is self.discriminator:
                loss = keras.ops.mean(keras.ops.softplus(fake) + keras.ops.softplus(-truth))
            scaled = optimizer.scale_loss(loss)
        return scaled, (loss, [scope.get_current_value(v) for v in self.non_trainable_variables])

    def train_step(self, state, data):
        import jax

        trainable, others, unused, metrics = state
        real = keras.utils.unpack_x_y_sample_weight(data)[0]
        noise = real[:, ::-1]
        now = dict(zip(map(id, self.trainable_variables), trainable, strict=True))
        logs = {}
        for network, optimizer, name in (
            (self.discriminator, self.theirs, "d"),
            (self.generator, self.ours, "g"),
        ):
            rest = [(v, now[id(v)]) for v in self.trainable_variables]
            rest += zip(self.non_trainable_variables, others, strict=True)
            weights = [now[id(v)] for v in network.trainable_variables]
            grads, (loss, others) = jax.grad(self._loss, has_aux=True)(
                weights, network, rest, optimizer, real, noise
            )
            logs[name] = loss
            held = dict(zip(map(id, self.non_trainable_variables), others, strict=True))
            slots = [held[id(v)] for v in optimizer.variables]
            weights, slots = optimizer.stateless_apply(slots, grads, weights)
            now |= dict(zip(map(id, network.trainable_variables), weights, strict=True))
            held |= dict(zip(map(id, optimizer.variables), slots, strict=True))
            others = [held[id(v)] for v in self.non_trainable_variables]
        return logs, ([now[id(v)] for v in self.trainable_variables], others, unused, metrics)


def test_a_gan_with_two_optimizers():
    model = Gan()
    ours = enable(keras.optimizers.Adam(0.01), 8.0, dtype="float16")
    huge = DynamicLossScale(2.0**60, cap=2.0**60)
    theirs = enable(keras.optimizers.Adam(0.01), huge, dtype="float16")
    model.compile(ours, theirs)
    before = values(model.generator.trainable_variables)
    theirs_before = values(model.discriminator.trainable_variables)
    model.fit(X, batch_size=8, epochs=3, verbose=0)
    assert is_half(model, "train", (X,))
    # Their scale overflows at every step; ours does not.
    assert ours.metrics() == {
        "loss_scale": 8.0,
        "good_steps": 6,
        "skipped_steps": 0,
        "last_finite": True,
        "dtype": "float16",
    }
    assert (int(ours.iterations.value), int(theirs.iterations.value)) == (6, 0)
    assert theirs.metrics()["skipped_steps"] == 6
    assert same_bits(theirs_before, values(model.discriminator.trainable_variables))
    assert not same_bits(before, values(model.generator.trainable_variables))


def test_models_that_share_a_process_have_a_scale_each():
    first, second = compiled(), compiled(dtype="bfloat16", loss_scale=4.0)
    plain = compiled(wrap=False)
    for model in (first, second, plain):
        model.train_on_batch(X, Y)
    first.train_on_batch(bad(X), Y)
    assert first.optimizer.metrics()["loss_scale"] == 2.0**14
    assert second.optimizer.metrics()["loss_scale"] == 4.0
    assert second.optimizer.metrics()["skipped_steps"] == 0
    batch = (X, Y, None)
    assert [is_half(m, "train", batch) for m in (first, second, plain)] == [True, False, False]
    assert is_half(second, "train", batch, "bf16")
