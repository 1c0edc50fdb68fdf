"""Programs of several devices: their mesh is found, replaced, and compiled for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

import duotone
from duotone.devices import find_target, mesh, topology
from duotone.errors import CompilationError

P = PartitionSpec
AUTO = (AxisType.Auto,)
ABSTRACT = AbstractMesh((8,), ("data",), axis_types=AUTO)


def concrete(count=8):
    return Mesh(np.array(jax.devices()[:count]), ("data",), axis_types=AUTO)


def on(over, shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(over, P(*spec)))


def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


@pytest.mark.parametrize("over", [ABSTRACT, concrete()], ids=["abstract", "concrete"])
def test_each_device_works_on_its_part(over):
    whole = duotone.compile_for(
        jax.grad(loss),
        jax.ShapeDtypeStruct((64, 32), jnp.float32),
        jax.ShapeDtypeStruct((256, 64), jnp.float32),
        target="cpu",
    )
    seen = duotone.compile_for(
        jax.grad(loss), on(over, (64, 32)), on(over, (256, 64), "data"), target="cpu"
    )
    assert (whole.devices, seen.devices) == (1, 8)
    assert whole.collectives == ()
    assert seen.total_flops == whole.total_flops / 8
    (found,) = seen.collectives
    assert (found.kind, found.dtype, found.devices, found.runs) == ("all-reduce", "f32", 8, 1)
    assert found.bytes == 2 * 7 / 8 * 64 * 32 * 4
    assert seen.sent_bytes == found.bytes
    assert seen.argument_bytes == 64 * 32 * 4 + 256 * 64 * 4 / 8
    assert "one of 8 devices" in str(seen)
    assert "all-reduce f32 14.34 kB" in str(seen)


def test_weights_that_are_gathered_are_gathered_in_half():
    shapes = on(ABSTRACT, (64, 64), "data"), on(ABSTRACT, (256, 64), "data")
    step = duotone.autocast(jax.grad(loss), dtype="bfloat16")
    found = duotone.compile_for(step, *shapes, target="cpu").collectives
    assert found
    assert {c.kind for c in found} >= {"all-gather"}


def test_a_mesh_that_only_the_function_names():
    over = concrete()

    def constrained(x):
        return jax.lax.with_sharding_constraint(x * 2, NamedSharding(over, P("data"))).sum()

    def mapped(x):
        inner = jax.shard_map(
            lambda x: jax.lax.psum(x, "data"), mesh=over, in_specs=P("data"), out_specs=P()
        )
        return inner(x)

    jitted = jax.jit(lambda x: x.sum(), in_shardings=NamedSharding(over, P("data")))
    x = jax.ShapeDtypeStruct((64, 4), jnp.float32)
    for function in (constrained, mapped, jitted):
        seen = duotone.compile_for(function, x, target="cpu")
        assert seen.devices == 8
        assert {c.kind for c in seen.collectives} == {"all-reduce"}


def test_explicit_axes_and_donation():
    over = AbstractMesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    step = jax.jit(lambda w, x: (w - 1.0, jnp.sum(x)), donate_argnums=0)
    seen = duotone.compile_for(step, on(over, (64, 8), "data"), on(over, (8,), None), target="cpu")
    assert seen.devices == 8
    assert seen.alias_bytes == 64 * 8 * 4 / 8


def test_arrays_next_to_sharded_ones_are_on_all_devices():
    x = jax.device_put(jnp.ones((64, 4)), NamedSharding(concrete(), P("data")))
    seen = duotone.compile_for(lambda x, y: x * y, x, jnp.ones(4), target="cpu")
    assert seen.argument_bytes == 64 * 4 * 4 / 8 + 16


def test_two_meshes_and_shardings_without_one_are_refused():
    other = AbstractMesh((4, 2), ("a", "b"), axis_types=AUTO * 2)
    with pytest.raises(CompilationError, match=r"several meshes, \{'data': 8\} and \{'a': 4"):
        duotone.compile_for(jnp.add, on(ABSTRACT, (8, 8)), on(other, (8, 8)), target="cpu")

    class Positional(jax.sharding.Sharding):
        @property
        def num_devices(self):
            return 4

    with pytest.raises(CompilationError, match="4 devices by a Positional, which names no mesh"):
        mesh.axes_of([Positional()])


def test_more_devices_than_there_are():
    over = AbstractMesh((16,), ("data",), axis_types=AUTO)
    with pytest.raises(CompilationError, match="over 16 devices and JAX has 8 here; set XLA_FLAGS"):
        duotone.compile_for(jnp.sum, on(over, (16,), "data"), target="cpu")


def test_topologies_by_their_number_of_devices(monkeypatch):
    asked = []

    class Described:
        devices = range(64)

    def describe(**described):
        asked.append(described.get("topology_name") or described["topology"])
        return Described

    monkeypatch.setattr(topology.topologies, "get_topology_desc", describe)
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(topology._jax, "cuda_plugin", lambda: "plugin")
    monkeypatch.setattr(topology._jax, "load_cuda_plugin", lambda: None)
    for count in (1, 4, 8, 16):
        topology._tpus(find_target("v5e"), count)
        topology._tpus(find_target("v5p"), count)
    assert asked == [
        *("v5e:2x2", "v5p:2x2x1", "v5e:2x2", "v5p:2x2x1"),
        *("v5e:2x4", "v5p:2x2x2", "v5e:4x4", "v5p:2x2x4"),
    ]
    asked.clear()
    for count in (1, 4, 8, 16):
        topology._gpus(find_target("h200"), count)
    assert asked == ["1x1x1", "1x1x4", "1x1x8", "1x2x8"]
    with pytest.raises(CompilationError, match="no slice has 3 chips; the next larger has 4"):
        topology._tpus(find_target("v5e"), 3)
    with pytest.raises(CompilationError, match="12 GPUs do not fill whole hosts of eight"):
        topology._gpus(find_target("h200"), 12)


def test_compare_says_what_each_sends_and_what_an_estimate_is():
    shapes = on(ABSTRACT, (64, 32)), on(ABSTRACT, (256, 64), "data")
    seen = duotone.compare(jax.grad(loss), *shapes, targets="cpu", dtype="bfloat16", exact=True)
    row = seen.row("cpu")
    assert row.devices == 8
    assert set(row.sent) == {"all-reduce"}
    assert "compiled for 8 devices; of each:" in str(seen)
    assert "all-reduce 14.3 kB" in str(seen)
    assert seen.to_dict()["rows"][0]["sent"] == {"all-reduce": 14336}
    guess = duotone.compare(jax.grad(loss), *shapes, targets="h200", exact=False)
    assert guess.row("h200").devices == 1
    assert any("only a compiler divides it" in note for note in guess.notes)
