"""PPO on Atari frames: one update from 128 steps of 8 games, 1.7 million parameters.

Advantages by a scan backwards through time, then the clipped loss, the value's error and the
entropy over all 1,024 frames at once; the convolutions of the DQN paper under both heads.

References:
    Schulman et al., "Proximal Policy Optimization Algorithms" (2017).
    Mnih et al., "Human-level control through deep reinforcement learning" (2015): the network.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.zoo.case import (
    INPUTS,
    Size,
    TrainCase,
    Tree,
    at_least_float32,
    train_case,
    without_statistics,
)
from benchmarks.zoo.layers import Dtype

Batch = dict[str, jax.Array]
"""The games that were played, each array with (time, games) in front."""
_DISCOUNT, _MIX, _CLIP = 0.99, 0.95, 0.1

Shape = namedtuple("Shape", "time games image convolutions width actions frames", defaults=(4,))
"""Numbers of an actor with a critic and its batch; a convolution is (width, window, stride)."""

_DQN = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
SHAPES: dict[Size, Shape] = {
    "full": Shape(128, 8, 84, _DQN, 512, 6),
    "cpu": Shape(16, 4, 44, _DQN, 256, 6),
    "tiny": Shape(8, 2, 12, ((8, 4, 2), (8, 3, 1)), 16, 4),
}


class ActorCritic(nn.Module):
    """Convolutions and a dense layer with ReLUs, logits of the actions and a value on top."""

    shape: Shape
    dtype: Dtype = None

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps (batch, height, width, frames) to (batch, actions) logits and (batch,) values."""
        root = nn.initializers.orthogonal(2.0**0.5)
        for width, window, stride in self.shape.convolutions:
            size, strides = (window, window), (stride, stride)
            conv = nn.Conv(
                width, size, strides, padding="VALID", dtype=self.dtype, kernel_init=root
            )
            x = nn.relu(conv(x))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(self.shape.width, dtype=self.dtype, kernel_init=root)(x))
        logits = nn.Dense(self.shape.actions, dtype=self.dtype, name="actor")(x)
        value = nn.Dense(1, dtype=self.dtype, name="critic")(x)
        return at_least_float32(logits), at_least_float32(value)[:, 0]


def advantages(rewards: jax.Array, values: jax.Array, ends: jax.Array) -> jax.Array:
    """(time, games) generalized advantages.

    Args:
        rewards: (time, games).
        values: (time + 1, games), as estimated while playing.
        ends: (time, games), 1 where a game ended with the step.
    """
    going = 1.0 - ends
    surprise = rewards + _DISCOUNT * going * values[1:] - values[:-1]

    def step(later: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        surprise, going = now
        found = surprise + _DISCOUNT * _MIX * going * later
        return found, found

    _, found = jax.lax.scan(step, jnp.zeros_like(surprise[0]), (surprise, going), reverse=True)
    return found


def actor_critic(dtype: Dtype = None, size: Size = "full") -> TrainCase:
    """PPO with Adam after clipping. A batch is what was played."""
    shape = SHAPES[size]
    model = ActorCritic(shape, dtype)

    def loss(params: Tree, data: Batch) -> jax.Array:
        gain = advantages(data["rewards"], data["values"], data["ends"])
        aim = (gain + data["values"][:-1]).reshape(-1)
        gain = ((gain - jnp.mean(gain)) / (jnp.std(gain) + 1e-8)).reshape(-1)
        frames = data["frames"].reshape(-1, *data["frames"].shape[2:])
        found: Any = model.apply({"params": params}, frames)
        logits, value = found
        chances = jax.nn.log_softmax(logits)
        taken = jnp.take_along_axis(chances, data["actions"].reshape(-1, 1), axis=1)[:, 0]
        ratio = jnp.exp(taken - data["chances"].reshape(-1))
        kept = jnp.clip(ratio, 1.0 - _CLIP, 1.0 + _CLIP)
        acted = -jnp.mean(jnp.minimum(ratio * gain, kept * gain))
        entropy = -jnp.mean(jnp.sum(jnp.exp(chances) * chances, axis=1))
        return acted + 0.25 * jnp.mean((value - aim) ** 2) - 0.01 * entropy

    def variables(key: jax.Array) -> tuple[Tree, Tree]:
        frames = jnp.zeros((1, shape.image, shape.image, shape.frames))
        return model.init(key, frames)["params"], {}

    def draw(key: jax.Array, inputs: str) -> Batch:
        keys = jax.random.split(key, 5)
        played = (shape.time, shape.games)
        size = (*played, shape.image, shape.image, shape.frames)
        return {
            "frames": INPUTS[inputs](keys[0], size),
            "actions": jax.random.randint(keys[1], played, 0, shape.actions),
            "rewards": jax.random.normal(keys[2], played),
            "values": jax.random.normal(keys[3], (shape.time + 1, shape.games)),
            "ends": jax.random.bernoulli(keys[4], 0.05, played).astype(jnp.float32),
            "chances": jnp.full(played, -jnp.log(float(shape.actions)), jnp.float32),
        }

    return train_case(
        "Actor and critic, PPO",
        variables=variables,
        loss=without_statistics(loss),
        optimizer=optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-4)),
        batch=draw,
    )
