# python -m benchmarks.optimizer_overhead
"""What does a step with the wrapped optimizer cost over one with the bare optimizer?

One compiled training step with Adam in float32, where nothing is rewritten (a policy keeps all of
it full), so that what is measured is the wrapper: scaling, unscaling, the finite check, the guard
around the update and the adjustment of a ``DynamicLossScale``. State and parameters are donated, as
in real training. The ways are called in turn, in a new order each round; the figures are medians of
the rounds.

The small convolutional network is the one with a limit: most of its step is arithmetic, as in most
models that one trains in half precision. The perceptron is the hardest case, shown without a
limit: with 64 examples for 270,000 weights its step is as much reading and writing weights as
arithmetic, and unscaling and checking read every gradient once more each. The rows below show where
the time goes, and a guard made of ``select`` in place of ``lax.cond``.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import duotone
from benchmarks._common import Bar, Result, median, table, take_no_options, write
from duotone.adapters.optax import wrap
from duotone.scale import DynamicLossScale, all_finite, scaled_value_and_grad, select_tree

QUESTION = "What does a step with the wrapped optimizer cost over one with the bare optimizer?"
LIMIT = 5.0
ROUNDS = {"small CNN": 400, "perceptron": 1500}

Step = Callable[..., Any]


def convolutional(batch: int = 64, size: int = 28) -> tuple[Any, Any, Any]:
    """The network of every first tutorial: two convolutions, two dense layers."""
    keys = jax.random.split(jax.random.key(0), 6)
    flat = (size // 4) ** 2 * 16
    params = {
        "conv1": jax.random.normal(keys[0], (3, 3, 1, 16)) / 3,
        "conv2": jax.random.normal(keys[1], (3, 3, 16, 16)) / 12,
        "dense1": {"w": jax.random.normal(keys[2], (flat, 32)) / 28, "b": jnp.zeros(32)},
        "dense2": {"w": jax.random.normal(keys[3], (32, 10)) / 6, "b": jnp.zeros(10)},
    }

    def loss(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        hidden = images
        for name in ("conv1", "conv2"):
            hidden = jax.lax.conv_general_dilated(
                hidden, params[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            count, height, width, channels = hidden.shape
            windows = hidden.reshape(count, height // 2, 2, width // 2, 2, channels)
            hidden = jax.nn.relu(windows.max((2, 4)))
        hidden = hidden.reshape(len(images), -1)
        hidden = jax.nn.relu(hidden @ params["dense1"]["w"] + params["dense1"]["b"])
        logits = hidden @ params["dense2"]["w"] + params["dense2"]["b"]
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))

    images = jax.random.normal(keys[4], (batch, size, size, 1))
    return loss, params, (images, jax.random.randint(keys[5], (batch,), 0, 10))


def perceptron(batch: int = 64, width: int = 256) -> tuple[Any, Any, Any]:
    """Three dense layers."""
    keys = jax.random.split(jax.random.key(0), 5)
    sizes = (784, width, width, 10)
    params = [
        {"w": jax.random.normal(key, (i, o)) / i**0.5, "b": jnp.zeros(o)}
        for key, i, o in zip(keys, sizes, sizes[1:], strict=False)
    ]

    def loss(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        logits = x @ params[-1]["w"] + params[-1]["b"]
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))

    x = jax.random.normal(keys[3], (batch, sizes[0]))
    return loss, params, (x, jax.random.randint(keys[4], (batch,), 0, 10))


CASES = {"small CNN": convolutional, "perceptron": perceptron}


def ways(loss: Any) -> dict[str, tuple[Step, Callable[[Any], Any]]]:
    """Training steps ``(params, state, *batch) -> (params, state, loss)``, and what begins each."""
    adam = optax.adam(1e-3)
    opt = wrap(adam, DynamicLossScale(), dtype="bfloat16", policy=duotone.Policy(keep_full=("*",)))

    def bare(params: Any, state: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, state = adam.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    def wrapped(params: Any, state: Any, *batch: Any) -> Any:
        done = opt.minimize(loss, params, state, *batch)
        return done.params, done.state, done.loss

    def scaled(params: Any, state: Any, *batch: Any) -> Any:
        loss_scale, inner = state
        out = scaled_value_and_grad(loss, axis_name=())(loss_scale, params, *batch)
        updates, inner = adam.update(out.grads, inner, params)
        return optax.apply_updates(params, updates), (loss_scale, inner), out.value

    def checked(params: Any, state: Any, *batch: Any) -> Any:
        loss_scale, inner = state
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, inner = adam.update(grads, inner, params)
        loss_scale = loss_scale.adjust(all_finite(grads))
        return optax.apply_updates(params, updates), (loss_scale, inner), value

    def selecting(params: Any, state: Any, *batch: Any) -> Any:
        loss_scale, inner = state
        out = scaled_value_and_grad(loss)(loss_scale, params, *batch)
        updates, new = adam.update(out.grads, inner, params)
        made = (optax.apply_updates(params, updates), new)
        params, inner = select_tree(out.finite, made, (params, inner))
        return params, (loss_scale.adjust(out.finite), inner), out.value

    def pair(params: Any) -> Any:
        return DynamicLossScale(), adam.init(params)

    return {
        "bare": (bare, adam.init),
        "bare again": (bare, adam.init),
        "wrapped": (wrapped, opt.init),
        "scaled and unscaled only": (scaled, pair),
        "finite check only": (checked, pair),
        "all of it, with select": (selecting, pair),
    }


def rounds_of(case: Any, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds by the clock and of processor time of each way in each round."""
    loss, params, batch = case
    found: dict[str, list[tuple[float, float]]] = {}
    steps: dict[str, Step] = {}
    states: dict[str, Any] = {}
    for name, (step, begin) in ways(loss).items():
        steps[name] = jax.jit(step, donate_argnums=(0, 1))
        states[name] = (jax.tree.map(jnp.copy, params), begin(params))
        found[name] = []
    order = list(steps)
    shuffle = random.Random(0).shuffle
    gc.collect()
    gc.disable()
    try:
        for turn in range(-3, rounds):
            shuffle(order)
            for name in order:
                start, busy = time.perf_counter(), time.process_time()
                made = jax.block_until_ready(steps[name](*states[name], *batch))
                spent = time.perf_counter() - start, time.process_time() - busy
                states[name] = made[:2]
                if turn >= 0:
                    found[name].append(spent)
    finally:
        gc.enable()
    return found


def figures_of(found: dict[str, list[tuple[float, float]]]) -> dict[str, dict[str, float]]:
    """Returns for each way the microseconds of wall and processor time, and percent over bare."""
    figures = {}
    bare = [median([spent[clock] for spent in found["bare"]]) for clock in (0, 1)]
    for name, spent in found.items():
        mine = [median([each[clock] for each in spent]) for clock in (0, 1)]
        figures[name] = {
            "us": 1e6 * mine[0],
            "processor us": 1e6 * mine[1],
            "over bare %": 100 * (mine[0] / bare[0] - 1),
            "processor over bare %": 100 * (mine[1] / bare[1] - 1),
        }
    return figures


def measure(
    rounds: dict[str, int] | None = None, cases: dict[str, Any] | None = None
) -> tuple[list[Bar], str, dict[str, Any]]:
    """All networks; returns bars, a table and data."""
    data, texts, bars = {}, [], []
    for name, make in (cases or CASES).items():
        figures = figures_of(rounds_of(make(), (rounds or ROUNDS)[name]))
        data[name] = figures
        header = [f"{name}, a step", *figures["bare"]]
        texts.append(table(header, [[way, *row.values()] for way, row in figures.items()]))
    first = next(iter(data))
    for clock, told in (("", "by the clock"), ("processor ", "processor time")):
        over = data[first]["wrapped"][f"{clock}over bare %"]
        bars.append(Bar(f"wrapped over bare, {first}, {told}", over, LIMIT, "%"))
    return bars, "\n\n".join(texts), data


def main() -> None:
    """Measures and writes the result."""
    take_no_options(QUESTION)
    bars, text, data = measure()
    command = "python -m benchmarks.optimizer_overhead"
    write(Result("optimizer_overhead", QUESTION, command, bars, text, data))


if __name__ == "__main__":
    main()
