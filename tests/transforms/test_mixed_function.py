"""The inside of an autocast function: the one line that it logs, and copies of it."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import duotone
from duotone.devices.assumed import AssumedDevice, assuming
from duotone.devices.half_choice import FAST_CPU_FLAGS, choose_half
from duotone.transforms.mixed_function import settings_of

W, X = jnp.ones((512, 512)), jnp.ones((256, 512))


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("duotone.transforms.mixed_function._LINES", set())
    caplog.set_level(logging.INFO, logger="duotone")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "duotone"]


def loss(w: Any, x: Any) -> Any:
    return jnp.sum(jnp.tanh(x @ w) @ w[:, :1])


def test_one_line_at_the_first_call_and_never_again(caplog: pytest.LogCaptureFixture) -> None:
    fast = duotone.autocast(loss, dtype="float16")
    assert not lines(caplog)
    for count in (256, 256, 128):
        fast(W, X[:count])
    duotone.explain(jax.grad(fast), W, X)
    jax.jit(jax.grad(fast))(W, X)
    (line,) = lines(caplog)
    assert line.startswith("loss: float16 on cpu")
    assert "3 of 5 operations and 100.0% of FLOPs in half" in line
    assert line.endswith("saves no time here: CPUs compute float16 in float32")


def test_dots_with_a_precision_of_their_own_are_named_with_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with jax.default_matmul_precision("highest"):
        jax.jit(duotone.autocast(loss, dtype="bfloat16")).lower(W, X)
        record = duotone.explain(loss, W, X, dtype="bfloat16")
    (line,) = lines(caplog)
    assert "2 dot_general (a precision was asked for" in line
    assert "jax_default_matmul_precision" in line
    assert "2 of 2 on the allow list are left alone: a precision was asked for" in str(record)
    assert "left alone" not in str(duotone.explain(loss, W, X, dtype="bfloat16"))


def test_it_says_what_gains_nothing_and_why(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("duotone.devices.half_type.cpu_flags", "duotone.devices.table.cpu_flags"):
        monkeypatch.setattr(place, lambda: FAST_CPU_FLAGS)
    jax.jit(duotone.autocast(loss)).lower(W, X)
    (line,) = lines(caplog)
    assert line.startswith("loss: bfloat16 on cpu")
    assert "; float32: 1 dot_general (too small to gain from half here)" in line
    assert "saves no time" not in line


def test_dots_that_the_program_has_in_half_are_not_called_float32(
    caplog: pytest.LogCaptureFixture,
) -> None:
    half = jnp.ones((64, 64), jnp.bfloat16)
    duotone.autocast(loss, dtype="bfloat16")(half, half)
    (line,) = lines(caplog)
    assert "unchanged: 2 dot_general (of half, float64 or integers in the program itself)" in line
    assert "float32:" not in line
    assert "no dot" not in line


def test_the_device_is_the_one_that_is_painted_for(caplog: pytest.LogCaptureFixture) -> None:
    with assuming(AssumedDevice("h200", "cuda", "9.0")):
        jax.jit(duotone.autocast(loss)).trace(W, X)
    with assuming(AssumedDevice("p100", "cuda", "6.0")):
        jax.jit(duotone.autocast(loss, dtype="half")).trace(W, X)
    here, slow = lines(caplog)
    assert "bfloat16 on cuda (h200)" in here
    assert "no time" not in here
    assert slow.endswith("saves no time here: compute capability 6.0 has no Tensor Cores")


def test_nothing_to_gain_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    duotone.autocast(jnp.sin, dtype="float16")(X)
    assert "0 of 1 operations" in lines(caplog)[0]
    assert "it has no dot and no convolution" in lines(caplog)[0]


def test_full_dots_say_which_rule(caplog: pytest.LogCaptureFixture) -> None:
    policy = duotone.Policy(keep_full=["careful/*"])

    def careful(w: Any) -> Any:
        with jax.named_scope("careful"):
            return w @ w

    duotone.autocast(careful, dtype="float16", policy=policy)(W)
    assert "float32: 1 dot_general (rule pinned)" in lines(caplog)[0]


def test_the_one_line_around_an_optimizer_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    opt = duotone.enable_mixed_precision_graph_rewrite(optax.sgd(0.1), dtype="float16")
    state = opt.init(W)
    for _ in range(3):
        opt.minimize(lambda w: loss(w, X), W, state)  # another function each time
    (line,) = lines(caplog)
    assert line.startswith("value_and_grad_of_<lambda>: float16 on cpu")


def test_nothing_is_reported_where_nothing_is_rewritten(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    duotone.autocast(loss, enabled=False)(W, X)
    assert not lines(caplog)
    monkeypatch.setattr(
        "duotone.transforms.mixed_function.current_choice", lambda: choose_half("cpu")
    )
    duotone.autocast(loss)(W, X)
    (line,) = lines(caplog)
    assert "not rewritten" in line


SENDER = """
import sys
import cloudpickle, jax, jax.numpy as jnp, numpy as np, optax
import duotone

def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w))

w, x = jnp.ones((4, 4)) / 3, jnp.ones((2, 4))
opt = duotone.enable_mixed_precision_graph_rewrite(optax.sgd(0.1), dtype="float16")
scaled = duotone.DynamicLossScale()
things = {
    "autocast": (
        duotone.autocast(loss, dtype="half", policy=duotone.Policy(deny_add=["tanh"])),
        (w, x),
    ),
    "jit": (jax.jit(duotone.autocast(loss, dtype="bf16")), (w, x)),
    "gradient": (duotone.autocast(jax.grad(loss), dtype="float16"), (w, x)),
    "weights": (duotone.autocast(loss, dtype="float16", weights={"w": w}["w"]), (x,)),
    "off": (duotone.autocast(loss, enabled=False), (w, x)),
    "value_and_grad": (
        lambda *a: duotone.value_and_grad(loss, dtype="float16")(*a)[1],
        (w, x),
    ),
    "scaled": (duotone.grad(loss, scale=scaled, dtype="float16"), (w, x)),
    "optimizer": (lambda w, x: opt.minimize(loss, w, opt.init(w), x).params, (w, x)),
}
for function, arguments in things.values():
    function(*arguments)  # what was compiled must not travel
sent = {
    name: (f, [np.asarray(a) for a in arguments], np.asarray(f(*arguments)))
    for name, (f, arguments) in things.items()
}
open(sys.argv[1], "wb").write(cloudpickle.dumps(sent))
"""

RECEIVER = """
import pickle, sys, numpy as np
for name, (function, arguments, want) in pickle.load(open(sys.argv[1], "rb")).items():
    got = np.asarray(function(*arguments))
    assert got.tobytes() == want.tobytes(), (name, got, want)
    print(name, end=" ")
"""


def test_functions_travel_to_another_process(tmp_path: Path) -> None:
    """As Ray, Dask and joblib send them."""
    file = str(tmp_path / "functions")
    said = []
    for source in (SENDER, RECEIVER):
        command = [sys.executable, "-c", source, file]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[1].split() == [
        "autocast",
        "jit",
        "gradient",
        "weights",
        "off",
        "value_and_grad",
        "scaled",
        "optimizer",
    ]


@duotone.autocast(dtype="float16")
def decorated(x: Any) -> Any:
    return x @ x


def test_a_decorated_function_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(decorated)) is decorated


def test_a_copy_behaves_alike_and_has_compiled_nothing() -> None:
    fast = duotone.autocast(loss, dtype="float16", policy=duotone.Policy(keep_full=["*"]))
    fast(W, X)
    settings = settings_of(fast)
    assert settings is not None
    again = pickle.loads(pickle.dumps(settings))
    assert (again.function, again.dtype, again.policy) == (loss, "float16", settings.policy)
    assert settings._runs
    assert not again._runs


def test_weights_travel_with_what_is_known_of_them() -> None:
    record = duotone.cast_params(loss, W, X, dtype="float16")
    settings = settings_of(duotone.autocast(loss, weights=record))
    assert settings is not None
    assert settings.weights is not None
    again = pickle.loads(pickle.dumps(settings))
    assert again.weights.record.cast == record.cast != frozenset()
    np.testing.assert_array_equal(again.weights.arrays[0], settings.weights.arrays[0])
