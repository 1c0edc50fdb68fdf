"""Fifty steps with a NaN in the middle, on however many devices and processes there are.

    python -m tests.devices.training ADDRESS COUNT RANK FILE    # one process of several

Prints nothing; writes losses, weights and counts to a file. The tests run it in this process, too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import duotone

STEPS, BAD, ROWS, WIDTH = 50, 25, 16, 16


def batches() -> np.ndarray:
    """Inputs of all steps; in one of them a single row, of one device, is not a number."""
    found = np.random.default_rng(0).normal(size=(STEPS, ROWS, WIDTH)).astype(np.float32)
    found[BAD, ROWS - 1, 3] = np.nan
    return found


def weights() -> dict[str, np.ndarray]:
    """Of two layers."""
    random = np.random.default_rng(1)
    shapes = {"up": (WIDTH, 32), "down": (32, 8)}
    return {n: (random.normal(size=s) / s[0] ** 0.5).astype("f") for n, s in shapes.items()}


def loss_fn(params: Any, x: Any) -> jax.Array:
    """A loss that training lowers."""
    made = jnp.tanh(x @ params["up"]) @ params["down"]
    return jnp.mean((made - x[:, :8]) ** 2)


def train(devices: Any, *, sharded: bool) -> dict[str, Any]:
    """Trains over a mesh of these devices.

    Args:
        devices: all of them, those of other processes included.
        sharded: whether weights are divided as well.
    """
    mesh = jax.sharding.Mesh(np.array(devices), ("data",))
    tx: Any = duotone.enable_mixed_precision_graph_rewrite(
        optax.adam(1e-2), duotone.dynamic_loss_scale(2.0**8), dtype="float16"
    )

    def placed(array: np.ndarray, spec: P) -> jax.Array:
        return jax.make_array_from_callback(
            array.shape, NamedSharding(mesh, spec), lambda index: array[index]
        )

    spec = P("data") if sharded else P()
    params: Any = {name: placed(array, spec) for name, array in weights().items()}
    state: Any = jax.jit(tx.init)(params)

    @jax.jit
    def step(params: Any, state: Any, x: Any) -> Any:
        done = tx.minimize(loss_fn, params, state, x)
        return done.params, done.state, done.loss

    losses = []
    for x in batches():
        params, state, loss = step(params, state, placed(x, P("data")))
        losses.append(float(loss))
    metrics = tx.metrics(state)
    whole = jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, P()))(params)
    return {
        "losses": losses,
        "skipped": int(state.loss_scale.skipped),
        "scale": float(state.loss_scale.value),
        "metrics": sorted(metrics),
        "params": {name: np.asarray(array).tolist() for name, array in whole.items()},
    }


def main(address: str, count: str, rank: str, file: str) -> None:
    """One of several processes."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, int(count), int(rank), initialization_timeout=60)
    assert jax.process_count() == int(count)
    found = [train(jax.devices(), sharded=sharded) for sharded in (False, True)]
    Path(file).write_text(json.dumps(found))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
