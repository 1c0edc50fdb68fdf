"""Train in float16 with dynamic loss scaling: plain JAX and Optax.

python examples/train_float16.py
"""

import jax
import jax.numpy as jnp
import optax

import duotone


def loss_fn(params, x, y):
    """Mean squared error of a small network."""
    hidden = jax.nn.gelu(x @ params["w1"])
    return jnp.mean((hidden @ params["w2"] - y) ** 2)


optimizer = optax.adam(3e-3)


@jax.jit
def train_step(loss_scale, params, opt_state, x, y):
    """One step; it changes nothing but the scale where a gradient is not finite."""
    # float32 would be: grad_fn = jax.value_and_grad(loss_fn)
    grad_fn = duotone.value_and_grad(loss_fn, scale=loss_scale, dtype=jnp.float16)
    loss, grads = grad_fn(params, x, y)
    finite = duotone.all_finite(grads)
    updates, new_opt_state = optimizer.update(grads, opt_state, params)
    new_params = optax.apply_updates(params, updates)
    params, opt_state = duotone.select_tree(
        finite, (new_params, new_opt_state), (params, opt_state)
    )
    return loss_scale.adjust(finite), params, opt_state, loss


keys = jax.random.split(jax.random.key(0), 3)
params = {
    "w1": jax.random.normal(keys[0], (16, 128)) / 4,
    "w2": jax.random.normal(keys[1], (128, 1)) / 11,
}
x = jax.random.normal(keys[2], (512, 16))
y = jnp.sin(jnp.sum(x, axis=1, keepdims=True))

loss_scale = duotone.DynamicLossScale()
opt_state = optimizer.init(params)
for step in range(301):
    loss_scale, params, opt_state, loss = train_step(loss_scale, params, opt_state, x, y)
    if step % 100 == 0:
        print(f"step {step:3}  loss {loss:.4f}  scale {loss_scale.value:g}")
print(f"skipped steps: {loss_scale.skipped}")
