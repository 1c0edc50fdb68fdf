"""``duotone.profile`` and ``duotone.read_profile``, on real traces of this CPU."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import duotone
from duotone.errors import ArgumentError, TraceError
from duotone.profiling.programs import facts_of
from tests.profiling.xplanes import gpu, kernel, programs, write

STEPS = 6


@jax.jit
def step(w: jax.Array, x: jax.Array) -> jax.Array:
    with jax.named_scope("encoder"):
        h = jnp.tanh(x @ w)
    with jax.named_scope("head"):
        return h @ w.T


@functools.cache
def weights() -> tuple[jax.Array, jax.Array]:
    return jnp.full((96, 64), 0.01), jnp.ones((32, 96))


def train(steps: int = STEPS) -> None:
    w, x = weights()
    for _ in range(steps):
        x = step(w, x).block_until_ready()


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> duotone.Profile:
    train(1)
    with duotone.profile(tmp_path_factory.mktemp("profile")) as found:
        train()
    return found


def test_steps_are_found_and_the_first_is_left_out(seen: duotone.Profile) -> None:
    summary = seen.record.summary
    assert (summary.platform, summary.devices) == ("CPU", 1)
    assert (summary.iterations, summary.counted) == (STEPS, STEPS - 1)
    assert summary.key_node.startswith("jit_step/")
    assert 0 < summary.busy_seconds <= summary.wall_seconds
    assert summary.flops == 2 * 2 * 32 * 96 * 64
    assert f"jax {jax.__version__}" in summary.versions
    assert seen.record.notes == ()


def test_operations_have_scopes_lines_and_dtypes(seen: duotone.Profile) -> None:
    rows = seen.record.operations
    dots = [row for row in rows if row.flops]
    assert {row.scope for row in dots} == {"encoder", "head"}
    assert {row.dtype for row in dots} == {"f32×f32→f32"}
    assert all(row.calls == STEPS - 1 for row in dots)
    assert all(row.source.partition(":")[0].endswith("test_profile.py") for row in dots)
    assert any(row.primitive == "tanh" for row in rows)
    assert {row.scope for row in seen.record.scopes} >= {"encoder", "head"}


def test_what_is_written_is_read_again(seen: duotone.Profile, tmp_path: Path) -> None:
    assert seen.folder is not None
    again = duotone.read_profile(seen.folder, tmp_path / "again")
    assert again.record == seen.record
    written = json.loads((tmp_path / "again" / "profile.json").read_text())
    assert written == json.loads(seen.record.to_json())
    assert list((seen.folder / "plugins" / "profile").glob("*/*.xplane.pb"))
    part = duotone.read_profile(seen.folder, iter_start=2, iter_stop=3)
    assert part.record.summary.counted == 2
    assert part.folder is None


def test_it_is_shown(seen: duotone.Profile) -> None:
    text = str(seen)
    assert f"{STEPS - 1} of {STEPS} counted by jit_step/" in text
    assert "encoder" in text
    assert max(map(len, text.splitlines())) <= 80
    assert ">operations</th>" in seen._repr_html_()
    assert len(repr(seen).splitlines()) <= 40


def test_painted_operations_keep_their_scopes(tmp_path: Path) -> None:
    """Catches: a rewrite that loses the name scopes by which profiles are read."""
    policy = duotone.Policy(ignore_performance=True)
    mixed = jax.jit(duotone.autocast(step, dtype="bfloat16", policy=policy))
    w, x = weights()
    mixed(w, x)
    with duotone.profile(tmp_path) as found:
        for _ in range(4):
            mixed(w, x).block_until_ready()
    dots = [row for row in found.record.operations if "dot" in row.primitive]
    assert {row.scope for row in dots} == {"encoder", "head"}
    assert any("bf16" in row.dtype for row in found.record.dtypes)


def test_what_was_seen_before_an_error_is_kept(tmp_path: Path) -> None:
    def fails() -> None:
        with duotone.profile(tmp_path):
            train(4)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert json.loads((tmp_path / "profile.json").read_text())["summary"]["iterations"] == 4


def test_two_profiles_at_once_are_an_error_that_leaves_the_first(tmp_path: Path) -> None:
    with duotone.profile(tmp_path / "first") as first:
        with (
            pytest.raises(TraceError, match="it takes one at a time"),
            duotone.profile(tmp_path / "second"),
        ):
            pass
        train(3)
    assert first.record.summary.iterations == 3


def test_a_trace_that_something_else_ended_is_read_all_the_same(tmp_path: Path) -> None:
    with duotone.profile(tmp_path) as found:
        train(3)
        jax.profiler.stop_trace()
    assert found.record.summary.iterations == 3
    assert "ended by something else" in found.record.notes[0]


def test_nothing_ran(tmp_path: Path) -> None:
    with duotone.profile(tmp_path) as found:
        pass
    assert "nothing ran on a device" in str(found)
    assert "no operation of JAX ran" in found.record.notes[0]


def test_there_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no trace"):
        duotone.read_profile(tmp_path / "none")
    with pytest.raises(TraceError, match=r"there is no \.xplane\.pb below"):
        duotone.read_profile(tmp_path)


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="is a file"), duotone.profile(tmp_path / "file"):
        pass


def test_a_gpu_is_shown_with_its_tensor_cores(tmp_path: Path) -> None:
    """A made trace with the program of this CPU: its dots by kernels that a GPU would run."""
    executable = step.lower(*weights()).compile().runtime_executable()
    assert executable is not None
    module = executable.hlo_modules()[0]
    facts = facts_of(module.to_string())
    first, second = (name for name, fact in facts.items() if fact.products)
    (tanh,) = (name for name, fact in facts.items() if fact.primitive == "tanh")
    names = {
        first: "nvjet_tst_128x128_64x4_1x2_h_bz_coopA_TNT",
        second: "ampere_sgemm_128x64_tn",
        tanh: "loop_tanh_fusion",
    }
    events = [
        kernel(name, 100 * n + 30 * place, 20, operation)
        for n in range(4)
        for place, (operation, name) in enumerate(names.items())
    ]
    made = write(
        tmp_path / "made.xplane.pb",
        programs({7: ("jit_step", module.as_serialized_hlo_module_proto())}),
        gpu({"Stream #1(Compute)": events}),
    )
    found = duotone.read_profile(made)
    assert found.record.summary.idle == pytest.approx(1 - 60 * 3 / (100 + 100 + 80))
    assert found.record.summary.tensor_core_efficiency == pytest.approx(0.5)
    assert found.record.summary.eligible_seconds == pytest.approx(40e-6)
    cores = {row.kernel: row.tensor_cores for row in found.record.kernels}
    assert cores == dict(zip(names.values(), ("yes", "no", "no"), strict=True))
    scopes = {row.scope: row.tensor_core_seconds for row in found.record.scopes}
    assert sorted(scopes) == ["encoder", "head"]
    assert sum(seconds or 0.0 for seconds in scopes.values()) == pytest.approx(60e-6)
    assert "Tensor Cores  50% of the eligible time (67% of the busy time)" in str(found)
    assert "33% of the time is in float32 dots" in found.record.advice[-1]


def test_a_gpu_without_a_program(tmp_path: Path) -> None:
    events = [kernel("nvjet_tst_128x128_64x4_1x2_h_bz_coopA_TNT", 9.0, 6, "cublas-gemm.1")]
    made = write(tmp_path / "made.xplane.pb", gpu({"Stream #1(Compute)": events}))
    found = duotone.read_profile(made)
    assert [row.tensor_cores for row in found.record.kernels] == ["yes"]
    assert "no operation that they could compute is known" in str(found)
