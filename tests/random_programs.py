"""Random small programs for the tests of invariants.

A program is a list of steps; each takes values made before and adds one. All values are
``(8, 16)`` activations, squashed often enough to stay finite in float16, so that every program can
be run, differentiated and compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

ROWS, COLUMNS = 8, 16
Step = Callable[[Any, Any, Any], Any]
"""Takes two activations and a weight matrix; gives an activation."""


def _cond(a: Any, b: Any, w: Any) -> Any:
    # Not on a sum of activations: where it is 0 but for rounding, half takes the other branch.
    return jax.lax.cond(w[0, 0] > 0, lambda: jnp.tanh(a @ w), lambda: b * 0.5)


def _pick(a: Any, b: Any, w: Any) -> Any:
    """Branches that hand a value on as it is, the same value in two of them."""
    return jax.lax.switch(jnp.int32(w[0, 0] > 0), [lambda: a, lambda: b, lambda: a]) + a


def _scan(a: Any, b: Any, w: Any) -> Any:
    def body(carry: Any, x: Any) -> tuple[Any, Any]:
        carry = jnp.tanh(carry @ w + x)
        return carry, jnp.max(carry, -1)

    last, maxima = jax.lax.scan(body, a, jnp.stack([b, a]))
    return last + maxima.mean()


def _accumulating_scan(a: Any, b: Any, w: Any) -> Any:
    total, _ = jax.lax.scan(lambda t, x: (t + x @ w, None), jnp.zeros_like(a), jnp.stack([a, b]))
    return jnp.tanh(total)


def _while(a: Any, b: Any, w: Any) -> Any:
    def body(state: Any) -> Any:
        step, h = state
        return step + 1, jnp.tanh(h @ w) + 0.1 * b

    return jax.lax.fori_loop(0, 2, lambda _, h: body((0, h))[1], a)


def _layer_norm(a: Any, b: Any, w: Any) -> Any:
    centred = a - jnp.mean(a, -1, keepdims=True)
    variance = jnp.mean(centred * centred, -1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-3)


def _attention(a: Any, b: Any, w: Any) -> Any:
    scores = jnp.where(np.tril(np.ones((ROWS, ROWS), bool)), a @ b.T, -1e9)
    return jax.nn.softmax(scores) @ jnp.tanh(b)


@jax.custom_jvp
def _clipped(x: Any) -> Any:
    return jnp.clip(x, -2.0, 2.0)


_clipped.defjvp(lambda primals, tangents: (_clipped(*primals), tangents[0]))

STEPS: dict[str, Step] = {
    "dot": lambda a, b, w: jnp.tanh(a @ w),
    "gram": lambda a, b, w: jnp.tanh(a @ (b.T @ b) * 0.1),
    "add": lambda a, b, w: a + b,
    "mul": lambda a, b, w: a * jnp.tanh(b),
    "sub": lambda a, b, w: a - 0.5 * b,
    "max": lambda a, b, w: jnp.maximum(a, b),
    "relu": lambda a, b, w: jax.nn.relu(a),
    "clipped": lambda a, b, w: _clipped(a),
    "exp": lambda a, b, w: jnp.exp(-jnp.abs(a)),
    "softplus": lambda a, b, w: jax.nn.softplus(jnp.tanh(a)),
    "square": lambda a, b, w: jnp.square(jnp.tanh(a)),
    "bias": lambda a, b, w: a + w[0],
    "statistic": lambda a, b, w: a - jnp.mean(b, 0),
    "normalise": lambda a, b, w: a / (1.0 + jnp.sum(jnp.abs(a), -1, keepdims=True)),
    "layer norm": _layer_norm,
    "attention": _attention,
    "guard": lambda a, b, w: a / jnp.maximum(jnp.max(jnp.abs(a), -1, keepdims=True), 1e-8),
    "shuffle": lambda a, b, w: jnp.concatenate([a[:, 6:], b[:, :6]], -1),
    "turn": lambda a, b, w: jnp.flip(a.T, 0).reshape(COLUMNS, ROWS).T,
    "gather": lambda a, b, w: a[jnp.array([3, 0, 0, 1, 6, 7, 5, 6])],
    "cond": _cond,
    "pick": _pick,
    "switch": lambda a, b, w: jax.lax.switch(
        jnp.int32(w[0, 1] > 0), [lambda: a * 0.5, lambda: a @ w, lambda: jnp.tanh(b)]
    ),
    "constant carry": lambda a, b, w: jax.lax.fori_loop(
        0, 2, lambda _, s: (s[0], jnp.tanh(s[0] @ w)), (a, b)
    )[1],
    "swap": lambda a, b, w: jax.lax.fori_loop(0, 3, lambda _, s: (s[1], s[0]), (a, b))[0],
    "nested loops": lambda a, b, w: jax.lax.scan(
        lambda c, x: (jax.lax.fori_loop(0, 2, lambda _, h: jnp.tanh(h @ w) + x, c), c @ w),
        a,
        jnp.stack([b, a]),
    )[1][0],
    "scan": _scan,
    "accumulate": _accumulating_scan,
    "while": _while,
    "jit": lambda a, b, w: jax.jit(lambda a: jnp.tanh(a @ w) + b)(a),
    "remat": lambda a, b, w: jax.checkpoint(lambda a: jnp.tanh(a @ w) * b)(a),
}


@dataclasses.dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        steps: name of each step, and how many values back its two operands lie.
        own_weights: whether each step has a weight of its own, that no other operation reads.
    """

    steps: tuple[tuple[str, int, int], ...]
    own_weights: bool = False

    def __call__(self, x: Any, w: Any) -> tuple[Any, Any]:
        """An activation and a scalar."""
        values = [x, jnp.tanh(x @ w)]
        for index, (name, one, other) in enumerate(self.steps):
            with jax.named_scope(f"step_{index}"):
                a, b = values[-1 - one % len(values)], values[-1 - other % len(values)]
                weight = jnp.flip(w) + float(index) if self.own_weights else w
                values.append(STEPS[name](a, b, weight))
        return values[-1], jnp.mean(values[-1] * values[-2])

    def loss(self, x: Any, w: Any) -> Any:
        """The scalar."""
        return self(x, w)[1]


def programs(most: int = 6) -> st.SearchStrategy[Program]:
    """Programs of up to ``most`` steps."""
    step = st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 2), st.integers(0, 4))
    return st.lists(step, min_size=1, max_size=most).map(lambda steps: Program(tuple(steps)))


def arguments() -> tuple[np.ndarray, np.ndarray]:
    """An activation and a weight matrix."""
    random = np.random.default_rng(11)
    x = random.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    return x, (random.normal(size=(COLUMNS, COLUMNS)) / 4).astype(np.float32)
