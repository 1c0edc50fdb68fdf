"""``duotone.bucketed``: the results of the true length, few programs, and what is refused."""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import subprocess
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.compiling import background
from duotone.errors import ArgumentError, ArgumentTypeError


def rows(x: Any) -> Any:
    return jnp.cumsum(x, axis=0) * 2.0


@pytest.mark.parametrize("kind", [jnp.asarray, np.asarray])
def test_results_are_cut_to_the_length(kind: Any) -> None:
    fn = duotone.bucketed(rows, 0)
    for length in (5, 7, 8, 6):
        x = kind(np.arange(length * 2.0, dtype=np.float32).reshape(length, 2))
        np.testing.assert_allclose(fn(x), rows(jnp.asarray(x)), rtol=1e-6)
    assert (fn.counts.calls, fn.counts.compiles, fn.counts.hits) == (4, 1, 3)


def test_named_arguments_pytrees_and_sizes() -> None:
    def step(params: Any, batch: Any, *, scale: float = 1.0) -> Any:
        return {"y": batch["x"] * params * scale, "n": jnp.max(batch["m"])}

    fn = duotone.bucketed(step, {"batch": 1}, sizes=[4, 16], neutral=-1e9)
    batch = {"x": jnp.ones((2, 5)), "m": jnp.arange(10.0).reshape(2, 5)}
    out = fn(2.0, batch, scale=3.0)
    assert out["y"].shape == (2, 5)
    assert float(out["n"]) == 9.0
    assert fn(2.0, batch=batch)["y"].shape == (2, 5)


def test_shapes_that_follow_the_length_unevenly() -> None:
    fn = duotone.bucketed(lambda x: (x[::2], x.reshape(-1, 1), jnp.ones(3)), 0, sizes=[12])
    for length in (5, 6, 9):
        a, b, c = fn(jnp.arange(float(length)))
        assert (a.shape, b.shape, c.shape) == (((length + 1) // 2,), (length, 1), (3,))


def test_a_mask_says_what_is_padding() -> None:
    def mean(x: Any, mask: Any) -> Any:
        return jnp.sum(x * mask) / jnp.sum(mask)

    fn = duotone.bucketed(mean, 0, mask="mask", neutral=7)
    assert float(fn(jnp.arange(5.0))) == 2.0
    np.testing.assert_allclose(jax.grad(fn)(jnp.ones(5)), np.full(5, 0.2), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(fn)(jnp.ones(5)), 1.0)


def test_padding_that_changes_a_result_is_an_error_that_names_it() -> None:
    fn = duotone.bucketed(lambda x: {"sum": jnp.sum(x), "mean": jnp.mean(x)}, 0)
    message = r"padding axis 0 of argument 0 from 5 changes result\['mean'\] by up to 0\.375"
    with pytest.raises(ArgumentError, match=message):
        fn(jnp.ones(5))
    with pytest.raises(ArgumentError, match="changes result"):
        fn(jnp.ones(5))  # it is not taken for verified
    assert duotone.bucketed(jnp.mean, 0, verify=False)(jnp.ones(5)) == 0.625


def test_the_neutral_number_counts() -> None:
    with pytest.raises(ArgumentError, match="changes result"):
        duotone.bucketed(jnp.prod, 0)(jnp.full(3, 2.0))
    assert float(duotone.bucketed(jnp.prod, 0, neutral=1)(jnp.full(3, 2.0))) == 8.0


def test_inside_of_traces_and_two_lengths() -> None:
    def both(a: Any, b: Any) -> Any:
        return a @ b.T

    fn = duotone.bucketed(duotone.bucketed(both, {"a": 0}), {"b": 0})
    a, b = jnp.ones((3, 2)), jnp.ones((5, 2))
    np.testing.assert_allclose(jax.jit(fn)(a, b), both(a, b))


def test_programs_are_dropped() -> None:
    fn = duotone.bucketed(rows, 0, sizes=[4, 8, 12, 16], programs=2)
    for length in (4, 8, 12, 16, 16, 4):
        assert fn(jnp.ones((length, 1))).shape == (length, 1)
    counts = fn.counts
    assert (counts.compiles, counts.evictions, counts.programs) == (5, 3, 2)


def test_threads_share_one_compilation() -> None:
    traces = []

    def noted(x: Any) -> Any:
        traces.append(x.shape)
        return x * 2

    fn = duotone.bucketed(noted, 0, sizes=[8], verify=False)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: fn(jnp.ones(n)).shape, [3, 4, 5, 6, 7] * 8))
    assert results == [(n,) for n in [3, 4, 5, 6, 7] * 8]
    assert fn.counts.compiles == 1


@pytest.mark.slow
def test_a_soak_of_calls_from_threads() -> None:
    from benchmarks.compile_time import soak

    seen = soak(calls=2_000)
    assert seen["right"] == seen["calls"]
    assert seen["programs kept"] <= 10
    assert seen["threads left"] == 0


def bucketed_as(*args: Any, **kwargs: Any) -> Any:
    return functools.partial(duotone.bucketed, lambda x, m=None: x, *args, **kwargs)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (bucketed_as(0, sizes=[8, 4]), ArgumentError, r"sizes \[8, 4\] do not increase"),
        (bucketed_as(0, sizes=[0, 4]), ArgumentError, "do not increase from 1"),
        (bucketed_as(0, sizes=[]), ArgumentError, "no whole numbers"),
        (bucketed_as(0, sizes="pow3"), ArgumentError, "'pow3'; pass 'pow2'"),
        (bucketed_as(0, sizes=8), ArgumentTypeError, "sizes is 8"),
        (bucketed_as({"y": 0}), ArgumentError, "no argument 'y'"),
        (bucketed_as({}), ArgumentError, "names no argument"),
        (bucketed_as(0.5), ArgumentTypeError, "axis is 0.5"),
        (bucketed_as(0, mask="mm"), ArgumentError, "did you mean 'm'"),
        (bucketed_as(0, programs=0), ArgumentError, "programs is 0"),
    ],
)
def test_bad_settings(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_bad_calls() -> None:
    fn = duotone.bucketed(lambda x, y: x, {0: 0, "y": 0}, sizes=[4])
    with pytest.raises(ArgumentError, match="'y': 3"):
        fn(jnp.ones(2), jnp.ones(3))
    with pytest.raises(ArgumentError, match="length of 5 is beyond the largest of sizes, 4"):
        fn(jnp.ones(5), jnp.ones(5))
    with pytest.raises(ArgumentError, match="without 'y'"):
        fn(jnp.ones(2))
    with pytest.raises(ArgumentError, match="has no axis 0"):
        fn(jnp.float32(1), jnp.ones(2))
    with pytest.raises(ArgumentTypeError, match="neutral"):
        duotone.bucketed(lambda x: x, 0, neutral="zero")(jnp.ones(3))


class HeldCompiler:
    """XLA's compiler, which waits in the background until it may go on, or fails there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.error: Exception | None = None
        compile = jax.stages.Lowered.compile

        def held(lowered: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.current_thread().name.startswith("duotone_background"):
                self.begun.set()
                self.go.wait()
                if self.error is not None:
                    raise self.error
            return compile(lowered, *args, **kwargs)

        monkeypatch.setattr(jax.stages.Lowered, "compile", held)

    def finish(self) -> None:
        """Lets it go on, and waits until it is done."""
        self.go.set()
        background._THREAD.submit(lambda: None).result()


def test_a_larger_bucket_serves_while_its_own_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = HeldCompiler(monkeypatch)
    fn = duotone.bucketed(lambda x: (jnp.cumsum(x), x[::2]), 0, sizes=[4, 8, 16], background=True)

    def right(length: int) -> None:
        x = jnp.arange(float(length))
        total, half = fn(x)
        np.testing.assert_array_equal(total, jnp.cumsum(x))
        np.testing.assert_array_equal(half, x[::2])

    right(9)  # nothing is there to run in: it compiles its own and waits
    right(12)
    assert (fn.counts.compiles, fn.counts.hits, fn.counts.larger) == (1, 1, 0)
    right(3)
    right(4)
    right(7)  # the bucket of 8 waits until that of 4 is there
    assert compiler.begun.is_set()
    assert (fn.counts.compiles, fn.counts.larger, fn.counts.programs) == (1, 3, 1)
    compiler.finish()
    right(3)
    assert (fn.counts.compiles, fn.counts.larger, fn.counts.hits) == (2, 3, 2)
    right(7)
    compiler.finish()
    right(7)
    counts = fn.counts
    assert (counts.calls, counts.compiles, counts.larger, counts.hits) == (8, 3, 4, 3)
    right(17 - 1)
    assert fn.counts.compiles == 3


def test_the_log_names_the_bucket_that_takes_over(caplog: pytest.LogCaptureFixture) -> None:
    fn = duotone.bucketed(rows, 0, sizes=[4, 8], background=True)
    with caplog.at_level(logging.INFO, "duotone"):
        for length in (8, 3):
            fn(jnp.ones((length, 1)))
        background._THREAD.submit(lambda: None).result()
        fn(jnp.ones((3, 1)))
    assert "the bucket of 4 of bucketed(rows) is compiled and takes over" in caplog.text


def test_an_error_in_the_background_names_the_bucket_and_is_raised_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler = HeldCompiler(monkeypatch)
    compiler.error = MemoryError("no room")
    fn = duotone.bucketed(rows, 0, sizes=[4, 8], background=True)
    fn(jnp.ones((8, 1)))
    fn(jnp.ones((4, 1)))
    compiler.finish()
    with pytest.raises(MemoryError, match="no room") as caught:
        fn(jnp.ones((8, 1)))  # the next call, whatever its length
    assert "the bucket of 4 of bucketed(rows) in the background" in caught.value.__notes__[0]
    for _ in range(2):
        assert fn(jnp.ones((4, 1))).shape == (4, 1)
    assert (fn.counts.compiles, fn.counts.larger) == (1, 3)


def test_the_comparison_is_made_in_the_background_as_well() -> None:
    fn = duotone.bucketed(
        lambda x: jnp.sum(x) + (x.shape[0] == 4), 0, sizes=[4, 8], background=True
    )
    fn(jnp.ones(8))
    fn(jnp.ones(5))  # verified
    fn(jnp.ones(3))
    background._THREAD.submit(lambda: None).result()
    with pytest.raises(ArgumentError, match="padding axis 0 of argument 0 from 3") as caught:
        fn(jnp.ones(3))
    assert "the bucket of 4 of" in caught.value.__notes__[0]
    assert fn(jnp.ones(3)) == 3.0


def test_settings_of_the_call_hold_in_the_background() -> None:
    fn = duotone.bucketed(lambda x: x + np.pi, 0, sizes=[4, 8], background=True)
    with jax.enable_x64(True):
        for length in (8, 3, 3):
            background._THREAD.submit(lambda: None).result()
            assert fn(np.zeros(length)).dtype == np.float64
        np.testing.assert_array_equal(fn(np.zeros(3)), np.full(3, np.pi))
    assert fn.counts.compiles == 2


def test_threads_compile_nothing_twice_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = HeldCompiler(monkeypatch)
    fn = duotone.bucketed(rows, 0, sizes=[4, 8, 16, 32], verify=False, background=True)
    fn(jnp.ones((32, 1)))
    lengths = [3, 7, 15, 31] * 16

    def call(length: int) -> bool:
        x = np.arange(float(length), dtype=np.float32)[:, None]
        return np.array_equal(fn(x), np.cumsum(x, 0) * 2)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, lengths))
        assert fn.counts.compiles == 1
        for _ in range(4):
            compiler.finish()
            assert all(pool.map(call, lengths))
    names = [t.name for t in threading.enumerate() if t.name.startswith("duotone_background")]
    assert len(names) == 1
    counts = fn.counts
    assert (counts.compiles, counts.programs) == (4, 4)
    assert counts.calls == counts.hits + counts.larger + 1 == 5 * len(lengths) + 1


def test_the_end_of_the_process_awaits_the_background() -> None:
    script = """
import threading
import jax, numpy as np
import duotone
from duotone.compiling import background

go, compile = threading.Event(), jax.stages.Lowered.compile
def held(lowered):
    if threading.current_thread() is not threading.main_thread():
        go.wait()
        print("compiling")
    return compile(lowered)
jax.stages.Lowered.compile = held
fn = duotone.bucketed(lambda x: x * 2, 0, background=True, verify=False)
fn(np.ones(8))
print(fn(np.ones(3)).shape, fn.counts.larger)
go.set()
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    assert run.stdout.split("\n") == ["(3,) 1", "compiling", ""]
    assert run.stderr == ""
