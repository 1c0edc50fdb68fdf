"""``duotone.advise``: planted faults come first, clean steps are left in peace, costs are right."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.advising.checks.all_checks import CHECKS
from duotone.devices import find_target
from duotone.errors import (
    ArgumentError,
    ArgumentTypeError,
    MissingExtraError,
    UnknownTargetError,
)
from tests.advising.clean import CLEAN, f32, mlp, transformer
from tests.advising.faults import FAULTS, frozen_weights, half_by_hand, whole_weights

H100 = find_target("h100")


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    """As without the extra, so that times are those of the estimate."""
    monkeypatch.setattr("duotone.advising.advise.compile_for", _missing)


def _missing(*args, **kwargs):
    raise MissingExtraError("compiling for a GPU", "jax[cuda13]", "cuda")


def test_the_time_of_a_step_is_that_of_the_compiled_one_where_there_is_a_compiler(monkeypatch):
    step = mlp()
    assert not advised(step).compiled
    seen = duotone.compile_for(*step, target="cpu")
    monkeypatch.setattr("duotone.advising.advise.compile_for", lambda *args, **kwargs: seen)
    found = advised(step)
    assert found.compiled
    assert (found.seconds, found.bytes) == (seen.seconds, seen.bytes)


def advised(step, target="h100", **options):
    return duotone.advise(*step, target=target, **options)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_comes_first(name):
    fault = FAULTS[name]
    with jax.enable_x64(fault.x64):
        found = advised(fault.step(), **fault.options)
    first = found.findings[0]
    assert first.kind == fault.kind
    assert fault.word in first.what + first.remedy
    if first.operation:
        assert "tests/advising/" in first.source
    if first.share is not None:
        assert 0 < first.share <= 1
        if first.kind != "sharding":  # its figures are those of one device
            if found.seconds:
                assert first.seconds == pytest.approx(first.share * found.seconds)
            else:  # the sizes are such that only a compiler can tell the time of the step
                assert found.notes[1].startswith("Only a compiler can tell the time")


@pytest.mark.parametrize(
    ("name", "target"), [*((name, "h100") for name in CLEAN), ("mlp", "v5e"), ("lstm", "t4")]
)
def test_a_clean_step_is_left_in_peace(name, target):
    found = advised(CLEAN[name](), target)
    assert found.findings == ()
    (line,) = str(found).splitlines()
    assert "nothing to advise" in line


@pytest.mark.parametrize("check", CHECKS)
def test_each_check_finds_something_of_its_own(check, monkeypatch):
    """Every check finds a planted fault that no other check finds."""
    from duotone.advising.checks import all_checks as registry

    kinds = {line.split("``")[1] for line in [check.__doc__]}
    monkeypatch.setattr(registry, "CHECKS", tuple(f for f in CHECKS if f is not check))
    fault = next(fault for fault in FAULTS.values() if fault.kind in kinds)
    with jax.enable_x64(fault.x64):
        assert fault.kind not in advised(fault.step(), **fault.options).kinds


def test_padding_costs_what_the_roofline_says():
    m, k, n = 8192, 2048, 4099
    found = duotone.advise(lambda x, w: x @ w, f32(m, k), f32(k, n), target="h100", dtype="bf16")
    first = found.findings[0]
    even = 4104
    moved = 2 * k * (n + even) + 2 * m * (n + even) + 2 * (k + m) * (even - n)
    peak, bandwidth = H100.peak["bf16"], H100.bandwidth
    assert first.bytes == moved
    dot = 2 * m * k * (even - n) / peak  # it waits for its multiplications
    copies = 2 * (k + m) * (n + even) / bandwidth
    assert first.seconds == pytest.approx(dot + copies, rel=1e-6)


@pytest.mark.parametrize(("m", "k", "n"), [(8192, 2048, 4096), (8192, 2048, 1), (1, 2048, 4099)])
def test_even_sizes_and_vectors_are_not_padded(m, k, n):
    found = duotone.advise(lambda x, w: x @ w, f32(m, k), f32(k, n), target="h100")
    assert "tiles" not in found.kinds


def test_what_full_costs_is_what_it_saves_to_follow_the_advice():
    def step(precision):
        return lambda x, w: jnp.dot(jax.nn.relu(x @ w), w, precision=precision)

    x, w = f32(8192, 4096), f32(4096, 4096)
    slow, fast = (duotone.advise(step(p), x, w, target="h100") for p in ("highest", None))
    first = slow.findings[0]
    assert first.kind == "full"
    assert first.seconds == pytest.approx(slow.seconds - fast.seconds, rel=0.01)
    assert "full" not in fast.kinds


def test_a_pattern_that_is_advised_is_one_that_works():
    step = FAULTS["running sums"].step()
    first = advised(step).findings[0]
    assert "Policy(keep_half=['layer_" in first.remedy
    policy = duotone.Policy(keep_half=[f"*/{first.operation}"])
    mended = advised(step, policy=policy)
    assert "full" not in mended.kinds
    assert mended.seconds < advised(step).seconds - 0.5 * first.seconds


def test_softmax_and_norms_are_no_islands():
    """They compute in float32, and read and write half values."""
    found = advised(transformer())
    assert "full" not in found.kinds
    seen = duotone.explain(*transformer(), dtype="bfloat16")
    assert any(o.operation == "exp" and o.rule == "deny" for o in seen.operations)


def test_weights_that_are_set_before_are_cast_once():
    step, params, x = frozen_weights()
    assert duotone.advise(step, params, x, target="h100").kinds == ("casts",)
    weights = jax.tree.map(lambda w: np.ones(w.shape, np.float32)[:256, :256], params)
    small = duotone.autocast(step, dtype="bfloat16", weights=weights)
    assert "casts" not in duotone.advise(small, f32(65536, 256), target="h100").kinds


def test_weights_that_come_back_must_be_float32():
    def step(params, x):
        return jax.tree.map(jnp.add, params, jax.grad(lambda p: (x @ p).sum())(params))

    def value(params, x):
        return (x @ params).sum()

    assert "casts" not in advised((step, f32(8192, 8192), f32(512, 8192))).kinds
    assert "casts" in advised((value, f32(8192, 8192), f32(512, 8192))).kinds


def test_rewritten_parts_are_looked_at_as_they_are():
    def loss(w, x):
        return jnp.square(x @ w).mean()

    w, x = f32(4099, 4099), f32(8192, 4099)
    found = duotone.advise(duotone.grad(loss, dtype="bfloat16"), w, x, target="h100")
    assert (found.findings[0].kind, found.half) == ("tiles", "bfloat16")
    inside = jax.jit(lambda w, x: w - duotone.grad(loss, dtype="float16")(w, x))
    found = duotone.advise(inside, w, x, target="h100")
    assert (found.findings[0].kind, found.half) == ("tiles", "float16")
    off = duotone.autocast(jax.grad(loss), enabled=False)
    assert duotone.advise(off, w, x, target="h100").half == "bfloat16"


def test_half_by_hand_is_looked_at_as_written_unless_a_type_is_asked_for():
    step = half_by_hand(np.float32(1.5))
    assert advised(step).kinds == ("promotion",)
    assert advised(half_by_hand(1.5)).kinds == ()
    assert "duotone.autocast rewrites it" in advised(step, dtype="bfloat16").notes[1]


def test_data_in_half_that_are_widened_at_once_are_free_as_advised():
    def step(w, x):
        return jax.grad(lambda w: jnp.square(x.astype(jnp.float32) @ w).mean())(w)

    w, x = f32(1024, 1024), f32(2**16, 1024)
    before = duotone.advise(step, w, x, target="h100")
    assert before.kinds == ("casts",)
    assert "x.astype(jnp.float32)" in before.findings[0].remedy
    after = duotone.advise(step, w, jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), target="h100")
    assert after.kinds == ()
    assert after.seconds == pytest.approx(before.seconds - before.findings[0].seconds, rel=1e-3)


def test_half_moments_of_an_optimizer_make_no_step_half_by_hand():
    def step(w, m, x):
        g = jax.grad(lambda w: jnp.square(x @ w).mean())(w)
        m = (0.9 * m.astype(jnp.float32) + g).astype(jnp.bfloat16)
        return w - m.astype(jnp.float32), m

    m = jax.ShapeDtypeStruct((4099, 4099), jnp.bfloat16)
    found = duotone.advise(step, f32(4099, 4099), m, f32(8192, 4099), target="h100")
    assert found.findings[0].kind == "tiles"


def test_where_programs_come_from():
    @jax.jit
    def step(x, n):
        return x * n

    def kinds(*calls, fn: Callable[..., Any] = step):
        return duotone.advise(fn, jnp.ones(8), 1, calls=calls, target="h100").kinds

    assert "recompiles" not in kinds((jnp.ones(8), 2))
    assert "recompiles" in kinds((jnp.ones(8), jnp.ones((), jnp.int32)))
    assert "recompiles" in kinds((jnp.ones(9), 2))
    automatic = duotone.autocast(lambda x, n: x * n, dtype="float16")
    assert "recompiles" in kinds((jnp.ones(8), 2), fn=automatic)
    assert "recompiles" not in kinds((jnp.ones(8), 1), fn=automatic)
    for size in range(1, 5):
        step(jnp.ones(size), 1)
    found = duotone.advise(step, jnp.ones(8), 1, target="h100").findings[0]
    assert found.kind == "recompiles"
    assert "4 programs" in found.what


def test_a_batch_that_is_large_enough_for_whole_weights():
    step, params, x = whole_weights()
    large = jax.ShapeDtypeStruct((65536, 8192), jnp.float32, sharding=x.sharding)
    assert "sharding" not in duotone.advise(step, params, large, target="h100").kinds
    alone = [f32(8192, 8192)] * 4
    assert "sharding" not in duotone.advise(step, alone, f32(256, 8192), target="h100").kinds


def test_where_no_speed_is_known_bytes_are_the_cost():
    found = advised(FAULTS["running sums"].step(), "cpu", dtype="bfloat16")
    assert found.seconds == 0
    assert found.bytes > 0
    assert found.kinds == ("full",)
    first = found.findings[0]
    assert first.share == pytest.approx(first.bytes / found.bytes)
    assert "MB" in str(found).splitlines()[2] or "GB" in str(found).splitlines()[2]
    assert advised(mlp(), "cpu").findings == ()


def test_the_device_at_hand_or_else_an_h100():
    assert duotone.advise(lambda x: x @ x, f32(512, 512)).target == "h100"


def test_data_and_views():
    found = advised(FAULTS["few features"].step())
    data = json.loads(found.to_json())
    assert data == json.loads(json.dumps(found.to_dict()))
    assert data["findings"][0]["kind"] == found.kinds[0] == "convolutions"
    for name in ("few features", "tables", "lengths", "whole weights", "pin"):
        fault = FAULTS[name]
        lines = str(advised(fault.step(), **fault.options)).splitlines()
        assert max(map(len, lines)) <= 80
        assert sum(line.startswith("1. ") for line in lines) == 1
    assert found._repr_html_().startswith("<div")
    assert len(repr(found).splitlines()) <= 40
    with pytest.raises(AttributeError):
        found.findings = ()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((3, f32(8)), {}, ArgumentTypeError, "advise: fn is 3"),
        ((jnp.sin, f32(8)), {"target": "h1000"}, UnknownTargetError, "did you mean 'h100'"),
        (
            (jnp.sin, f32(8)),
            {"dtype": "float32"},
            ArgumentError,
            "would switch mixed precision off",
        ),
        ((jnp.sin, f32(8)), {"policy": "no"}, ArgumentTypeError, "pass a duotone.Policy"),
        ((jnp.sin, f32(8)), {"calls": [f32(8)]}, ArgumentTypeError, "a tuple of arguments"),
        ((lambda n: n, 3), {}, ArgumentError, "advise: .* takes no array here"),
        ((jnp.sin, f32(8)), {"weights": 1}, ArgumentError, r"functools.partial\(fn, weights"),
    ],
)
def test_what_is_wrong_is_reported(arguments, options, error, message):
    with pytest.raises(error, match=message):
        duotone.advise(*arguments, **options)


def test_keyword_arguments_and_static_ones():
    def power(x, *, exponent, y):
        assert isinstance(exponent, int)
        return (x @ y) ** exponent

    w = f32(4099, 4099)
    found = duotone.advise(power, w, exponent=2, y=w, target="a10")
    assert found.kinds[0] == "tiles"
    partial = functools.partial(power, exponent=2, y=np.ones((4099, 512), np.float32))
    assert "tiles" in duotone.advise(partial, w, target="a10").kinds
