"""Train an Equinox model in float16 with dynamic loss scaling.

python examples/equinox_train.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import duotone

optimizer = duotone.enable_mixed_precision_graph_rewrite(optax.adam(3e-3), dtype=jnp.float16)


@eqx.filter_jit
def train_step(model, state, x, y):
    """One step; it changes nothing but the scale where a gradient is not finite."""
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss_fn(params):
        return jnp.mean((jax.vmap(eqx.combine(params, static))(x) - y) ** 2)

    done = optimizer.minimize(loss_fn, params, state)
    return eqx.combine(done.params, static), done.state, done.loss


x = jax.random.normal(jax.random.key(0), (512, 16))
y = jnp.sin(jnp.sum(x, axis=1, keepdims=True))

model = eqx.nn.MLP(16, 1, 128, 2, activation=jax.nn.gelu, key=jax.random.key(1))
state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
for step in range(301):
    model, state, loss = train_step(model, state, x, y)
    if step % 100 == 0:
        scale = optimizer.metrics(state)["loss_scale"]
        print(f"step {step:3}  loss {loss:.6f}  scale {scale:g}")
print(f"skipped steps: {optimizer.metrics(state)['skipped_steps']}")
