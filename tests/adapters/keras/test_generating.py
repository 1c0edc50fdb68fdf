"""``generate`` of tasks that compile a ``generate_step`` themselves, as those of KerasHub do."""

# Keras ships no types, and those that pyright infers from its defaults are not what it takes.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportFunctionMemberAccess=false
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportOptionalOperand=false

from __future__ import annotations

import logging
import sys
import types
from typing import Any

import jax
import keras
import numpy as np
import pytest

import duotone.keras
from duotone.adapters.keras import enable, enable_everywhere, generating
from tests.adapters.keras.small import compiled, half_dots, same_bits, values

SIZE, STEPS = 16, 6


class Sampler:
    """Draws numbers with a seed that is a variable outside of the model."""

    def __init__(self):
        self.seeds = keras.random.SeedGenerator(7)
        self.variables = [self.seeds.state]

    def __call__(self, logits):
        return keras.random.categorical(logits, 1, seed=self.seeds)


class Task(keras.Model):
    """A task in the form of ``keras_hub.models.CausalLM``: the state is in a stateless scope."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(SIZE, SIZE)
        self.dense = keras.layers.Dense(SIZE)
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")
        self.generate_function = None
        self.sampler = Sampler()

    def call(self, tokens):
        return self.dense(self.table(tokens))

    def generate_step(self, tokens, stop=None):
        def body(index, tokens, state):
            with keras.StatelessScope(list(zip(self.all_variables, state, strict=True))) as scope:
                chosen = self.sampler(self(tokens[:, -1]))
            tokens = keras.ops.concatenate([tokens[:, 1:], chosen], 1)
            return index + 1, tokens, [scope.get_current_value(v) for v in self.all_variables]

        self.calls.assign(self.calls + 1)
        state = [keras.ops.convert_to_tensor(v) for v in self.all_variables]
        looped: Any = keras.ops.while_loop(lambda i, *_: i < STEPS, body, (0, tokens, state))
        _, tokens, state = looped
        self.sampler.seeds.state.assign(state[0])
        return {"tokens": tokens, "stop": stop}

    @property
    def all_variables(self):
        return [*self.sampler.variables, *self.variables]

    def compile_generation(self):
        def function(tokens, state):
            with keras.StatelessScope(list(zip(self.all_variables, state, strict=True))) as scope:
                result = self.generate_step(tokens, stop=(1, 2))
            return result, [scope.get_current_value(v) for v in self.sampler.variables]

        return jax.jit(function)

    def state(self):
        return values(self.all_variables)

    def generate(self, tokens):
        if self.run_eagerly:
            return self.generate_step(tokens)["tokens"]
        if self.generate_function is None:
            self.generate_function = self.compile_generation()
        result, seeds = self.generate_function(tokens, self.state())
        for variable, seed in zip(self.sampler.variables, seeds, strict=True):
            variable.assign(seed)
        assert result["stop"] == (1, 2)
        return np.asarray(result["tokens"])


class Trained(Task):
    """A task that knows what follows each token, so that half changes no choice."""

    def __init__(self):
        super().__init__()
        self(TOKENS)
        self.table.set_weights([30 * np.eye(SIZE, dtype="float32")])
        self.dense.kernel.assign(np.roll(np.eye(SIZE, dtype="float32"), 1, 1))


TOKENS = np.arange(16, dtype="int32").reshape(8, 2)


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    """KerasHub, as far as an import shows it."""
    monkeypatch.setattr(Task, "generate_step", Task.generate_step)  # restored after the test
    monkeypatch.setitem(sys.modules, "keras_hub", types.ModuleType("keras_hub"))
    generating.install.cache_clear()
    yield
    generating.install.cache_clear()


def task(kind=Task, **settings):
    model = kind()
    model(TOKENS)
    return compiled(model, **settings)


def dots(model, half="bf16"):
    generated = model.compile_generation()
    return half_dots(generated.lower(TOKENS, model.state()).as_text(), half)


@pytest.mark.parametrize(("dtype", "half"), [("float16", "f16"), ("bfloat16", "bf16")])
def test_it_runs_in_half_by_the_optimizer_of_the_task(dtype, half):
    model = task(dtype=dtype)
    assert model.generate(TOKENS).shape == (8, 2)
    assert dots(model, half) == 1


def test_without_a_wrapped_optimizer_it_stays_float32():
    enable(keras.optimizers.SGD(), dtype="bfloat16")
    assert dots(task(wrap=False)) == 0


def test_for_one_model_and_for_all():
    model = task(wrap=False)
    before = model.generate(TOKENS)
    duotone.keras.autocast(model, dtype="bfloat16")
    assert model.generate_function is None
    assert dots(model) == 1
    assert model.generate(TOKENS).shape == before.shape
    enable_everywhere(rewrite=True, loss_scaling=False, dtype="bfloat16")
    assert dots(task(wrap=False)) == 1


def test_seeds_advance_and_choices_are_those_of_float32():
    full, half = task(Trained, wrap=False), task(Trained, dtype="bfloat16")
    half.sampler.seeds.state.assign(full.sampler.seeds.state)
    for _ in range(2):
        np.testing.assert_array_equal(full.generate(TOKENS), half.generate(TOKENS))
        assert same_bits(values(full.sampler.variables), values(half.sampler.variables))
    np.testing.assert_array_equal(half.generate(TOKENS)[:, 1], (TOKENS[:, 1] + STEPS) % SIZE)
    assert same_bits(values([half.calls]), [np.float32(0)])  # the task does not read it back


def test_new_weights_are_read():
    model = task(Trained, dtype="bfloat16")
    model.generate(TOKENS)
    model.dense.kernel.assign(np.roll(np.eye(SIZE, dtype="float32"), 2, 1))
    np.testing.assert_array_equal(model.generate(TOKENS)[:, 1], (TOKENS[:, 1] + 2 * STEPS) % SIZE)


def test_a_step_of_the_users_own_is_found_when_the_model_fits():
    enable(keras.optimizers.SGD(), dtype="bfloat16")  # wraps the classes that are there

    class Later(Task):
        def generate_step(self, tokens, stop=None):
            return {"tokens": keras.ops.argmax(self(tokens), -1), "stop": stop}

    model = task(Later, dtype="bfloat16", loss="mse")
    x = np.zeros((8, 2), "int32")
    model.fit(x, np.zeros((8, 2, SIZE), "float32"), verbose=0)
    assert dots(model) == 1


def test_eager_generation_is_not_rewritten_and_logged(caplog):
    model = task(Trained, dtype="bfloat16", run_eagerly=True)
    with caplog.at_level(logging.WARNING, "duotone"):
        model.generate(TOKENS)
    assert "run_eagerly=True" in caplog.text
