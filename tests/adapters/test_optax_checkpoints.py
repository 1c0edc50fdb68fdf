"""A state that was saved and restored goes on bit for bit, whoever saved it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import duotone.nnx
from duotone.adapters.enable import enable_mixed_precision_graph_rewrite as enable
from duotone.scale.choice import dynamic_loss_scale
from tests.adapters.optimizers import loss_fn, overflowing, problem

PARAMS, BATCHES = problem()
SCALES = {"dynamic": dynamic_loss_scale(2.0**8, growth_interval=3), "fixed": 8, "none": None}


def make(loss_scale: Any) -> Any:
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.linear_schedule(0.1, 0, 9)))
    return enable(tx, loss_scale, dtype="float16")


def train(tx: Any, params: Any, state: Any, batches: Any) -> Any:
    step = jax.jit(lambda p, s, b: tx.minimize(loss_fn, p, s, b))
    for batch in batches:
        done = step(params, state, batch)
        params, state = done.params, done.state
    return params, state


def through_pickle(state: Any, target: Any, folder: Path) -> Any:
    del target, folder
    return pickle.loads(pickle.dumps(state))


def through_numpy(state: Any, target: Any, folder: Path) -> Any:
    np.savez(folder / "state.npz", *jax.tree.leaves(state))
    with np.load(folder / "state.npz") as saved:
        return jax.tree.unflatten(jax.tree.structure(target), list(saved.values()))


def through_orbax(state: Any, target: Any, folder: Path) -> Any:
    ocp = pytest.importorskip("orbax.checkpoint")
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "state", state)
        checkpointer.wait_until_finished()
        return checkpointer.restore(folder / "state", target)


def through_flax(state: Any, target: Any, folder: Path) -> Any:
    del folder
    serialization = pytest.importorskip("flax.serialization")
    leaves, structure = jax.tree.flatten(target)
    data = serialization.to_bytes(jax.tree.leaves(state))
    return jax.tree.unflatten(structure, serialization.from_bytes(leaves, data))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*[Ss]harding.*:UserWarning")
@pytest.mark.parametrize(
    "scale",
    [pytest.param(name, marks=[] if name == "dynamic" else pytest.mark.slow) for name in SCALES],
)
@pytest.mark.parametrize(
    "through",
    [
        through_numpy,
        through_orbax,
        *[pytest.param(f, marks=pytest.mark.slow) for f in (through_pickle, through_flax)],
    ],
)
def test_training_goes_on_bit_for_bit(through, scale, tmp_path):
    """Catches: a state of other things than arrays; a scale, count or flag that is not in it."""
    tx = make(SCALES[scale])
    before = [*BATCHES[:3], overflowing(BATCHES[3]), BATCHES[3]]
    params, state = train(tx, PARAMS, tx.init(PARAMS), before)
    again = make(SCALES[scale])  # as a fresh process makes it
    restored = through(state, again.init(PARAMS), tmp_path)
    again.check_state(restored)
    found = train(again, params, restored, BATCHES[4:])
    expected = train(tx, params, state, BATCHES[4:])
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert again.metrics(found[1]) == tx.metrics(expected[1])
    assert again.metrics(found[1])["skipped_steps"] == 1


DTYPES = ["float16", "bfloat16", "float32", None]


@pytest.mark.parametrize("loss_scale", ["dynamic", 8, None, dynamic_loss_scale(4)])
def test_the_state_is_the_same_tree_for_every_dtype(loss_scale: Any) -> None:
    states = [enable(optax.adam(0.1), loss_scale, dtype=d).init(PARAMS) for d in DTYPES]
    off = enable(optax.adam(0.1), loss_scale, dtype="float16", enabled=False).init(PARAMS)
    for state in (*states, off):
        assert jax.tree.structure(state) == jax.tree.structure(states[0])
        assert jax.tree.map(jax.typeof, state) == jax.tree.map(jax.typeof, states[0])


def trained(dtype: Any, state: Any, batches: Any) -> tuple[Any, Any]:
    tx = enable(optax.adam(0.1), dtype=dtype)
    state = tx.init(PARAMS) if state is None else state
    return tx, train(tx, PARAMS, state, batches)[1]


@pytest.mark.parametrize("other", ["bfloat16", "float32", None])
def test_a_checkpoint_moves_between_dtypes(other: Any, tmp_path: Path) -> None:
    """Catches: the scale of float16 lost or changed where it is not used; steps not counted."""
    _, state = trained("float16", None, [overflowing(BATCHES[0]), BATCHES[1]])
    assert float(state.loss_scale.value) == 2**14
    tx, state = trained(other, through_pickle(state, None, tmp_path), BATCHES[2:5])
    assert tx.metrics(state)["loss_scale"] == 1
    assert tx.metrics(state)["good_steps"] == 4
    assert tx.metrics(state)["skipped_steps"] == 1
    tx, state = trained("float16", through_pickle(state, None, tmp_path), [BATCHES[5]])
    assert tx.metrics(state)["loss_scale"] == 2**14
    assert tx.metrics(state)["good_steps"] == 5
    tx, state = trained("float16", trained(other, None, BATCHES[:3])[1], [BATCHES[3]])
    assert tx.metrics(state)["loss_scale"] == 2**15


def test_a_monitor_that_knows_the_optimizer_shows_the_scale_in_use(caplog: Any) -> None:
    tx, state = trained("bfloat16", None, [overflowing(BATCHES[0]), BATCHES[1]])
    with caplog.at_level("INFO", logger="duotone"):
        duotone.LossScaleMonitor(tx)(state, 1)
    assert caplog.messages == ["step 1: loss scale 1, 1 step skipped since the last line, 1 in all"]


def test_an_nnx_optimizer_has_one_tree_too() -> None:
    def made(dtype: Any) -> Any:
        model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        return duotone.nnx.Optimizer(model, optax.adam(0.1), dtype=dtype), model

    states = [nnx.as_pure(made(dtype)[0].opt_state) for dtype in DTYPES]
    assert all(jax.tree.structure(s) == jax.tree.structure(states[0]) for s in states)
    optimizer, model = made("bfloat16")
    optimizer.minimize(lambda model: jnp.mean(model(jnp.ones((2, 2))) ** 2), model)
    assert optimizer.metrics()["loss_scale"] == 1
    assert optimizer.metrics()["good_steps"] == 1
    assert float(optimizer.loss_scale.value) == 1
