"""``duotone.compare``: without a compiler, on the CPU's, and what it says when it cannot know."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone import _jax
from duotone.comparing import compare as _comparing
from duotone.comparing import variants as _forms
from duotone.comparing.batches import Batch
from duotone.comparing.comparison import FORMS
from duotone.comparing.comparison_view import duration
from duotone.devices import assuming, find_target
from duotone.devices.assumed import AssumedDevice
from duotone.errors import (
    ArgumentError,
    ArgumentTypeError,
    CompilationError,
    MissingExtraError,
    UnknownTargetError,
)

N = 2048
W = jax.ShapeDtypeStruct((N, N), jnp.float32)
X = jax.ShapeDtypeStruct((4 * N, N), jnp.float32)
WORK = 3 * 2 * 4 * N**3
"""FLOPs of a step: forward, and both gradients."""


def loss(w, x):
    return jnp.sum(jax.nn.softmax(x @ w) ** 2)


step = jax.grad(loss, argnums=(0, 1))


def estimated(fn, *args, targets: str | list[str] = "h100", **options):
    return duotone.compare(fn, *(args or (W, X)), targets=targets, exact=False, **options)


def shares(seen, target="h100"):
    return {form: seen.row(target, form).half_flops_share for form in FORMS}


def test_a_function_in_float32_on_three_targets():
    seen = estimated(step, targets=["h100", "V100", "v5e"])
    assert seen.targets == ("h100", "v100", "v5e")
    assert [row.form for row in seen.rows] == list(FORMS) * 3
    for target, half in (("h100", "bfloat16"), ("v100", "float16"), ("v5e", "bfloat16")):
        full, written, mixed = (seen.row(target, form) for form in FORMS)
        assert (full.speedup, full.half, full.half_flops_share) == (1, "", 0)
        assert written.same_as == "float32"
        assert written.seconds == full.seconds
        assert (mixed.half, mixed.half_flops_share) == (half, 1)
        # Float32 dots are bfloat16 on TPUs anyway.
        assert mixed.speedup == full.seconds / mixed.seconds > (1 if target == "v5e" else 1.1)
        assert full.flops == mixed.flops == WORK
        assert mixed.bytes < full.bytes
        assert full.memory == 2 * 4 * (N * N + 4 * N * N)  # arguments, and their gradients
        assert not full.exact
        assert full.least_seconds is not None
        assert full.most_seconds is not None
        assert full.least_seconds < full.seconds < full.most_seconds
        assert len(mixed.most_expensive) == 3
        assert "test_compare.py" in mixed.most_expensive[0].source
    assert seen.row("v100", "float32").bounded_by == "dots"


def test_what_autocast_made_is_the_form_duotone():
    for fn in (duotone.autocast(step), jax.jit(duotone.autocast(step))):
        seen = estimated(fn)
        assert seen.row("h100", "as written").same_as == "duotone"
        assert shares(seen) == {"float32": 0, "as written": 1, "duotone": 1}
    other = estimated(duotone.autocast(step, dtype="float16"), dtype="bfloat16")
    assert other.row("h100", "as written").same_as == ""
    assert other.row("h100").half == "bfloat16"
    assert estimated(duotone.autocast(step, dtype="float16")).row("h100").half == "float16"


def test_rewritten_programs_inside_are_off_in_float32():
    inside = jax.grad(lambda w, x: duotone.autocast(lambda w, x: jnp.tanh(x @ w))(w, x).sum())
    for fn in (inside, jax.jit(inside)):
        seen = estimated(lambda w, x, fn=fn: fn(w, x) @ w)
        found = shares(seen)
        assert found["float32"] == 0
        assert 0 < found["as written"] < found["duotone"] == 1
        assert seen.row("h100", "as written").same_as == ""
        assert not any("bfloat16 of its own" in note for note in seen.notes)


def test_what_was_switched_off_is_float32_as_written():
    seen = estimated(duotone.autocast(step, enabled=False))
    assert shares(seen) == {"float32": 0, "as written": 0, "duotone": 1}
    assert seen.row("h100", "as written").same_as == "float32"


def test_a_function_that_duotone_differentiates():
    def train(w, x):
        value, grads = duotone.value_and_grad(loss, dtype="bfloat16")(w, x)
        return value, w - 0.1 * grads

    seen = estimated(train)
    assert shares(seen)["float32"] == 0
    assert shares(seen)["as written"] == 1


def test_half_by_hand_cannot_be_taken_back_and_that_is_reported():
    def by_hand(w, x):
        return (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32)

    seen = estimated(by_hand)
    assert "by_hand has float16 or bfloat16 of its own" in seen.notes[0]
    assert shares(seen)["float32"] == 1


def test_weights_count_as_arguments():
    w = np.ones((N, N), np.float32)
    fn = duotone.autocast(lambda w, x: x @ w, weights=w, dtype="bfloat16")
    seen = estimated(fn, X)
    assert shares(seen) == {"float32": 0, "as written": 1, "duotone": 1}
    assert seen.row("h100", "float32").memory == 4 * (N * N + 8 * N * N)
    assert seen.row("h100").memory == 4 * (N * N + 8 * N * N) - 2 * N * N
    with pytest.raises(ArgumentError, match="leave dtype and policy out"):
        estimated(fn, X, dtype="float16")


def test_a_policy_holds():
    seen = estimated(step, policy=duotone.Policy(keep_full=["*"]))
    assert shares(seen)["duotone"] == 0


def test_donated_memory_is_counted_once():
    seen = estimated(jax.jit(lambda w: w @ w, donate_argnums=0), W)
    assert seen.row("h100").memory == 4 * N * N


def test_what_does_not_fit_is_marked():
    huge = jax.ShapeDtypeStruct((200_000, 200_000), jnp.float32)
    seen = estimated(lambda x: x + 1, huge, targets="t4")
    assert seen.row("t4").fits is False
    assert "320 GB!" in str(seen)
    assert estimated(step).row("h100").fits is None


def test_no_device_assumed_is_left_rewriting():
    """A function traced with duotone off is traced again with it on."""
    fn = jax.jit(duotone.autocast(lambda x: x @ x, dtype="float16"))
    x = jnp.ones((8, 8))
    with assuming(AssumedDevice("none", "cpu", rewrites=False)):
        assert "f16" not in str(jax.make_jaxpr(fn)(x))
    assert "f16" in str(jax.make_jaxpr(fn)(x))


def test_the_compiler_of_the_cpu_is_exact():
    seen = duotone.compare(step, W, X, targets=["cpu", "h100"], dtype="float16")
    for form, fn in (("float32", step), ("duotone", duotone.autocast(step, dtype="float16"))):
        row = seen.row("cpu", form)
        cost = duotone.compile_for(fn, W, X, target="cpu")
        assert (row.exact, row.bytes, row.memory) == (True, cost.bytes, cost.peak_bytes)
        assert (row.kernel_count, row.casts) == (cost.kernel_count, cost.casts)
        assert (row.speedup, row.fits, row.least_seconds) == (None, None, None)
        assert row.most_expensive == cost.largest(3)
    assert "cpu: no time, since its speed is not known." in seen.notes


def test_what_compiled_figures_leave_out_is_noted():
    def search(x):
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 1e6, lambda x: x @ x, x)

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    seen = duotone.compare(search, x, targets="cpu", exact=True)
    (said,) = seen.row("cpu", "float32").notes
    assert said.startswith("how often ")
    assert f"cpu: float32: {said}." in seen.notes


@pytest.mark.parametrize("target", ["h100", "v5e"])
def test_exact_where_the_extra_is_installed(target):
    found = _jax.cuda_plugin() if target == "h100" else importlib.util.find_spec("libtpu")
    if found is None:
        pytest.skip("the extra is not installed")
    seen = duotone.compare(step, W, X, targets=target, exact=True)
    near = estimated(step, targets=target)
    for form in FORMS:
        assert seen.row(target, form).flops == pytest.approx(WORK, rel=0.01)
        ratio = near.row(target, form).seconds / seen.row(target, form).seconds
        assert 1 / 3 < ratio < 3
    assert seen.row(target).fits


def test_without_a_compiler_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(_jax, "cuda_plugin", lambda: None)
    target = find_target("h100")
    target = type(target)(**{f: getattr(target, f) for f in target.__slots__})  # not cached
    seen = duotone.compare(step, W, X, targets=[target, "cpu"])
    assert [row.exact for row in seen.rows] == [False] * 3 + [True] * 3
    assert "h100: to compile, python -m pip install 'duotone[cuda]'" in seen.notes
    assert any(note.startswith("h100: estimated; nothing was compiled") for note in seen.notes)
    with pytest.raises(MissingExtraError, match=r"duotone\[cuda\]"):
        duotone.compare(step, W, X, targets=target, exact=True)


def test_a_refusal_of_the_compiler_leaves_an_estimate(monkeypatch):
    def refuse(*args, **kwargs):
        raise CompilationError("no such instruction")

    monkeypatch.setattr(_comparing, "compile_for", refuse)
    seen = duotone.compare(step, W, X, targets="cpu")
    assert not seen.row("cpu").exact
    assert "cpu: not compiled: no such instruction" in seen.notes
    with pytest.raises(CompilationError):
        duotone.compare(step, W, X, targets="cpu", exact=True)


def test_a_fault_planted_in_the_off_switch_is_seen(monkeypatch):
    """Were duotone not off in float32, its row would be the one as written."""
    monkeypatch.setattr(_forms, "without_duotone", lambda function: function)
    fn = jax.grad(lambda w, x: duotone.autocast(lambda w, x: x @ w)(w, x).sum())
    assert shares(estimated(fn))["float32"] > 0


def test_data_and_views():
    seen = estimated(step, targets=["h100", "a100", "rtx4090", "b200"])
    data = json.loads(seen.to_json())
    assert data == json.loads(json.dumps(seen.to_dict()))
    assert [row["target"] for row in data["rows"]][::3] == ["h100", "a100", "rtx4090", "b200"]
    assert data["rows"][2]["most_expensive"][0]["runs"] >= 1
    assert data["rows"][2]["bounded_by"] in data["rows"][2]["time_by"]
    lines = str(seen).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "loss: float32, as written and with duotone"
    assert "h100 (NVIDIA H100 80GB HBM3), estimated" in lines
    assert sum(line.startswith("as written the same as float32") for line in lines) == 4
    assert sum("dot_general bf16×bf16" in line for line in lines) >= 4
    assert seen._repr_html_().startswith("<div")
    assert "<th " in seen._repr_html_()
    assert len(repr(seen).splitlines()) <= 40
    with pytest.raises(AttributeError):
        seen.rows = ()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ArgumentError, match="there are 'h100', 'a100', 'rtx4090', 'b200'"):
        seen.row("t4")
    with pytest.raises(ArgumentError, match="'float32', 'as written', 'duotone'"):
        seen.row("h100", "half")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((3, W), {}, ArgumentTypeError, "compare: fn is 3"),
        ((step, W, X), {"targets": "h1000"}, UnknownTargetError, "did you mean 'h100'"),
        ((step, W, X), {"targets": []}, ArgumentError, "targets is empty; name some of b200"),
        ((step, W, X), {"targets": 3}, ArgumentTypeError, "pass a list of names"),
        ((step, W, X), {"dtype": "int8"}, ArgumentError, "int8"),
        ((step, W, X), {"dtype": "float32"}, ArgumentError, "would switch mixed precision off"),
        ((step, W, X), {"policy": "no"}, ArgumentTypeError, "pass a duotone.Policy"),
        ((lambda: jnp.ones(3),), {}, ArgumentError, "takes no array here"),
        ((lambda n: n, 3), {}, ArgumentError, "pass its arguments, arrays or jax.Shape"),
        ((step, W, X), {"weights": 1}, ArgumentError, r"functools.partial\(fn, weights"),
    ],
)
def test_what_is_wrong_is_reported(arguments, options, error, message):
    with pytest.raises(error, match=message):
        duotone.compare(*arguments, **{"targets": "h100", **options})


def test_keyword_arguments_and_static_ones():
    def power(x, *, exponent, y):
        assert isinstance(exponent, int)
        return (x @ y) ** exponent

    seen = duotone.compare(power, W, exponent=2, y=W, targets="a10", exact=False)
    assert seen.row("a10").flops == 2 * N**3
    seen = estimated(functools.partial(power, exponent=2, y=np.ones((N, N), np.float32)), W)
    assert seen.row("h100").half_flops_share == 1


ONE_GB = dataclasses.replace(
    find_target("cpu"), name="one", memory=1e9, bandwidth=1e9, peak={"f32": 1e12}
)


def test_the_largest_batch_that_fits_is_where_memory_is_full():
    w = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    x = jax.ShapeDtypeStruct((2048, 256), jnp.float32)

    def two(w, x):
        return jnp.tanh(x @ w) @ w

    seen = duotone.compare(two, w, x, targets=ONE_GB, dtype="bfloat16", batch=1)
    for form in FORMS:
        found = seen.row("one", form).largest_batch
        assert found is not None
        shape = jax.ShapeDtypeStruct((found, 256), jnp.float32)
        again = duotone.compare(two, w, shape, targets=ONE_GB, dtype="bfloat16").row("one", form)
        assert again.memory == pytest.approx(1e9, rel=0.02)
    assert "largest batch, about: float32 " in str(seen)
    assert any("extrapolated from the memory of two sizes" in note for note in seen.notes)
    small = estimated(two, w, x, batch=1)
    assert small.row("h100").largest_batch is None
    assert any("only a compiler can tell" in note for note in small.notes)


def test_a_batch_that_is_none_is_named():
    w, x = jnp.ones((4, 4)), jnp.ones((8, 4))
    with pytest.raises(ArgumentError, match="batch names argument 2, and there are 2"):
        estimated(loss, w, x, batch=2)
    with pytest.raises(ArgumentTypeError, match="batch is 'x'; pass the positions"):
        estimated(loss, w, x, batch="x")
    with pytest.raises(ArgumentError, match=r"differ in their first axis \(4, 8\)"):
        estimated(loss, w, x, batch=(0, 1))
    with pytest.raises(ArgumentError, match=r"differ in their first axis \(None\)"):
        estimated(lambda w, n: w * n, w, 3.0, batch=1)


def test_twice_the_batch_that_is_refused_is_half_the_batch():
    batch = Batch((1,), 8)
    assert batch.others == (16, 4)
    assert batch.largest(800, 4, 600, 1600) == 24
    assert batch.largest(800, 16, 800, 1600) is None
    assert Batch((0,), 1).others == (2,)


def test_times_fit_their_column() -> None:
    """Catches: ``1.53e-05 us``, which a column of seven characters cuts to ``1.53e-…``."""
    shown = [duration(seconds) for seconds in (0.0, 1e-12, 2.5e-9, 3.12e-6, 0.4)]
    assert shown == ["", "<1 ns", "2.5 ns", "3.12 us", "400 ms"]
