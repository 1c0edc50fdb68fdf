"""Train a Flax NNX model in float16 with dynamic loss scaling.

python examples/nnx_train.py
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import duotone.nnx


class Model(nnx.Module):
    """Two layers with batch norm and dropout."""

    def __init__(self, rngs):
        self.first = nnx.Linear(16, 128, rngs=rngs)
        self.norm = nnx.BatchNorm(128, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.last = nnx.Linear(128, 1, rngs=rngs)

    def __call__(self, x):
        """The prediction for a batch."""
        return self.last(self.dropout(nnx.gelu(self.norm(self.first(x)))))


def loss_fn(model, x, y):
    """Mean squared error."""
    return jnp.mean((model(x) - y) ** 2)


@nnx.jit
def train_step(model, optimizer, x, y):
    """One step; it changes nothing but the scale where a gradient is not finite."""
    return optimizer.minimize(loss_fn, model, x, y)


x = jax.random.normal(jax.random.key(0), (512, 16))
y = jnp.sin(jnp.sum(x, axis=1, keepdims=True))

model = Model(nnx.Rngs(0))
# float32 would be: optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
optimizer = duotone.nnx.Optimizer(model, optax.adam(3e-3), dtype=jnp.float16)
for step in range(301):
    loss = train_step(model, optimizer, x, y)
    if step % 100 == 0:
        print(f"step {step:3}  loss {loss:.4f}  scale {optimizer.metrics()['loss_scale']:g}")
print(f"steps taken: {int(optimizer.step[...])}, skipped: {optimizer.metrics()['skipped_steps']}")
