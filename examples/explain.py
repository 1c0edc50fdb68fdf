"""See what autocast would do to a function: which operations, in which precision, and why.

python examples/explain.py
"""

import jax
import jax.numpy as jnp

import duotone


def attention(q, k, v):
    """Scaled dot-product attention."""
    with jax.named_scope("scores"):
        scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    with jax.named_scope("weights"):
        weights = jax.nn.softmax(scores)
    with jax.named_scope("mix"):
        return weights @ v


# Shapes are enough: nothing is compiled or run.
x = jax.ShapeDtypeStruct((8, 12, 1024, 64), jnp.float32)
print(duotone.explain(attention, x, x, x, dtype=jnp.float16))

print("\nthe same, with the first product kept in float32:\n")
policy = duotone.Policy(keep_full=["*scores*"])
print(duotone.explain(attention, x, x, x, dtype=jnp.float16, policy=policy).summary)
