"""Programs with loops that Python unrolls, as people write them; each is a function and arguments.

The first five are plain recurrences and solvers; the others are written as in well-known tutorials
(a character model in NumPy style, a sampler, a filter, an inner loop of learning, a neural ODE).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Program = tuple[Callable[..., Any], tuple[Any, ...]]
Rolled = Callable[[Callable[..., Any]], Callable[..., Any]]
"""``duotone.reroll`` or the identity, around the function with the loop, inside of gradients."""


def _normal(number: int, *shape: int, scale: float = 0.2) -> jax.Array:
    return scale * jax.random.normal(jax.random.key(number), shape)


def gru(steps: int, rolled: Rolled) -> Program:
    """A training step of a GRU: the gradient of a loss over all steps."""
    width = 64

    def loss(params: Any, xs: Any) -> Any:
        h = jnp.zeros((xs.shape[0], width))
        total = 0.0
        for t in range(steps):
            both = jnp.concatenate([xs[:, t], h], axis=-1)
            z, r = jax.nn.sigmoid(both @ params["z"]), jax.nn.sigmoid(both @ params["r"])
            new = jnp.tanh(jnp.concatenate([xs[:, t], r * h], axis=-1) @ params["h"])
            h = (1 - z) * h + z * new
            total = total + jnp.mean(h**2)
        return total

    params = {name: _normal(i, 2 * width, width) for i, name in enumerate("zrh")}
    return jax.value_and_grad(rolled(loss)), (params, _normal(9, 16, steps, width))


def lstm(steps: int, rolled: Rolled) -> Program:
    """All states of an LSTM."""
    width = 64

    def run(w: Any, u: Any, b: Any, xs: Any) -> Any:
        h = c = jnp.zeros((xs.shape[1], width))
        outputs = []
        for x in range(steps):
            i, f, g, o = jnp.split(xs[x] @ w + h @ u + b, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            outputs.append(h)
        return jnp.stack(outputs)

    arguments = (_normal(0, width, 4 * width), _normal(1, width, 4 * width), _normal(2, 4 * width))
    return rolled(run), (*arguments, _normal(3, steps, 16, width))


def wave(steps: int, rolled: Rolled) -> Program:
    """The wave equation, which needs the last two states."""

    def run(u: Any) -> Any:
        before, now = u, u
        for _ in range(steps):
            curvature = jnp.roll(now, 1) + jnp.roll(now, -1) - 2 * now
            before, now = now, 2 * now - before + 0.1 * curvature
        return now

    return rolled(run), (jnp.sin(jnp.linspace(0.0, 6.28, 512)),)


def runge_kutta(steps: int, rolled: Rolled) -> Program:
    """A driven pendulum by the method of Runge and Kutta."""

    def slope(t: Any, y: Any) -> Any:
        angle, speed = y
        return jnp.stack([speed, -jnp.sin(angle) - 0.1 * speed + 0.5 * jnp.cos(0.7 * t)])

    def run(y: Any) -> Any:
        dt = 0.02
        for i in range(steps):
            t = i * dt
            a = slope(t, y)
            b = slope(t + dt / 2, y + dt / 2 * a)
            c = slope(t + dt / 2, y + dt / 2 * b)
            d = slope(t + dt, y + dt * c)
            y = y + dt / 6 * (a + 2 * b + 2 * c + d)
        return y

    return rolled(run), (_normal(0, 2, 1024),)


def heat(steps: int, rolled: Rolled) -> Program:
    """The heat equation on a plane with a source that moves; the gradient by its conductivity."""

    def run(k: Any, u: Any, sources: Any) -> Any:
        for t in range(steps):
            around = sum(jnp.roll(u, s, axis) for s in (1, -1) for axis in (0, 1))
            u = u + 0.1 * k * (around - 4 * u) + sources[t]
        return jnp.sum(u**2)

    return jax.grad(rolled(run)), (jnp.float32(0.7), _normal(0, 32, 32), _normal(1, steps, 32, 32))


def character_model(steps: int, rolled: Rolled) -> Program:
    """A vanilla recurrent network over characters, its loss summed step by step."""
    vocabulary, width = 32, 48

    def loss(params: Any, inputs: Any, targets: Any, hprev: Any) -> Any:
        wxh, whh, why, bh, by = params
        hs, total = hprev, 0
        for t in range(steps):
            xs = jax.nn.one_hot(inputs[t], vocabulary)
            hs = jnp.tanh(wxh @ xs + whh @ hs + bh)
            ps = jax.nn.log_softmax(why @ hs + by)
            total += -ps[targets[t]]
        return total

    params = (
        _normal(0, width, vocabulary),
        _normal(1, width, width),
        _normal(2, vocabulary, width),
        _normal(3, width),
        _normal(4, vocabulary),
    )
    inputs = jax.random.randint(jax.random.key(5), (steps,), 0, vocabulary)
    return jax.grad(rolled(loss)), (params, inputs, jnp.roll(inputs, -1), jnp.zeros(width))


def hamiltonian(steps: int, rolled: Rolled) -> Program:
    """The leapfrog of a Hamiltonian sampler on a logistic regression."""

    def potential(q: Any, data: Any, labels: Any) -> Any:
        logits = data @ q
        return jnp.sum(jnp.logaddexp(0.0, logits) - labels * logits) + 0.5 * jnp.sum(q**2)

    gradient = jax.grad(potential)

    def run(q: Any, p: Any, data: Any, labels: Any) -> Any:
        step = 0.005
        p = p - step * gradient(q, data, labels) / 2
        for _ in range(steps):
            q = q + step * p
            p = p - step * gradient(q, data, labels)
        return q, p

    labels = (jnp.arange(256) % 2).astype(jnp.float32)
    return rolled(run), (_normal(0, 16), _normal(1, 16), _normal(2, 256, 16), labels)


def kalman(steps: int, rolled: Rolled) -> Program:
    """A Kalman filter that returns every mean."""
    size = 6

    def run(a: Any, h: Any, zs: Any) -> Any:
        x, covariance = jnp.zeros(size), jnp.eye(size)
        means = []
        for z in range(steps):
            x = a @ x
            covariance = a @ covariance @ a.T + 0.01 * jnp.eye(size)
            s = h @ covariance @ h.T + 0.1 * jnp.eye(2)
            gain = jnp.linalg.solve(s, h @ covariance).T
            x = x + gain @ (zs[z] - h @ x)
            covariance = (jnp.eye(size) - gain @ h) @ covariance
            means.append(x)
        return jnp.stack(means)

    return rolled(run), (
        jnp.eye(size) + _normal(0, size, size, scale=0.05),
        _normal(1, 2, size),
        _normal(2, steps, 2),
    )


def inner_loop(steps: int, rolled: Rolled) -> Program:
    """Learning to learn: the gradient through steps of gradient descent with momentum."""

    def model(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w["a"]) @ w["b"]

    def outer(w: Any, x: Any, y: Any) -> Any:
        momentum = jax.tree.map(jnp.zeros_like, w)
        for _ in range(steps):
            grads = jax.grad(lambda v: jnp.mean((model(v, x) - y) ** 2))(w)
            momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
            w = jax.tree.map(lambda v, m: v - 0.05 * m, w, momentum)
        return jnp.mean((model(w, x) - y) ** 2)

    w = {"a": _normal(0, 8, 32), "b": _normal(1, 32, 1)}
    return jax.grad(rolled(outer)), (w, _normal(2, 64, 8), _normal(3, 64, 1))


def neural_ode(steps: int, rolled: Rolled) -> Program:
    """A neural ODE by Heun's method, trained through its steps."""

    def loss(params: Any, y: Any, target: Any) -> Any:
        def f(t: Any, y: Any) -> Any:
            for w, b in params[:-1]:
                y = jnp.tanh(y @ w + b + t)
            w, b = params[-1]
            return y @ w + b

        dt = 1.0 / steps
        for i in range(steps):
            k1 = f(i * dt, y)
            k2 = f((i + 1) * dt, y + dt * k1)
            y = y + dt * (k1 + k2) / 2
        return jnp.mean((y - target) ** 2)

    sizes = [4, 32, 32, 4]
    params = [
        (_normal(i, a, b), jnp.zeros(b)) for i, (a, b) in enumerate(itertools.pairwise(sizes))
    ]
    return jax.value_and_grad(rolled(loss)), (params, _normal(8, 128, 4), _normal(9, 128, 4))


PROGRAMS: dict[str, tuple[Callable[[int, Rolled], Program], int]] = {
    "GRU, training step": (gru, 30),
    "LSTM": (lstm, 120),
    "wave equation": (wave, 60),
    "Runge-Kutta": (runge_kutta, 30),
    "heat equation, gradient": (heat, 8),
    "character model, training step": (character_model, 30),
    "Hamiltonian sampler": (hamiltonian, 60),
    "Kalman filter": (kalman, 50),
    "inner loop of learning, gradient": (inner_loop, 20),
    "neural ODE, training step": (neural_ode, 25),
}
"""Each program and its number of steps."""


def without_repetition() -> dict[str, Program]:
    """Programs that repeat nothing, or of which each copy has weights of its own."""

    def convolutions(params: Any, x: Any) -> Any:
        for kernel in params:
            y = jax.lax.conv(x, kernel, (1, 1), "SAME")
            x = jax.nn.relu(y - jnp.mean(y, (0, 2, 3), keepdims=True)) + x
        return jnp.sum(x**2)

    def transformer(params: Any, x: Any) -> Any:
        for qkv, out, up, down in params:
            q, k, v = jnp.split(x @ qkv, 3, axis=-1)
            scores = jax.nn.softmax(q @ k.swapaxes(-1, -2) / 8.0, axis=-1)
            x = x + (scores @ v) @ out
            x = x + jax.nn.gelu(x @ up) @ down
        return jnp.sum(x**2)

    def pipeline(x: Any, y: Any) -> Any:
        a = jnp.fft.fft(x).real
        b = jnp.sort(y)[::-1] + jnp.cumsum(a)
        c = jnp.linalg.svd(jnp.outer(a[:16], b[:16]), compute_uv=False)
        return jnp.interp(b, jnp.sort(a), c[0] * a), jnp.histogram(b, 10)[0]

    blocks = [_normal(i, 16, 16, 3, 3) for i in range(16)]
    layers = [
        (
            _normal(i, 64, 192),
            _normal(i + 20, 64, 64),
            _normal(i + 40, 64, 256),
            _normal(i + 60, 256, 64),
        )
        for i in range(6)
    ]
    return {
        "residual convolutions, training step": (
            jax.grad(convolutions),
            (blocks, _normal(99, 2, 16, 16, 16)),
        ),
        "transformer, training step": (jax.grad(transformer), (layers, _normal(98, 2, 32, 64))),
        "a pipeline": (pipeline, (_normal(97, 256), _normal(96, 256))),
    }
