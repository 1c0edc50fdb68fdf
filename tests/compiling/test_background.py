"""``bucketed(background=True)``: what runs meanwhile, what takes over, and what goes wrong."""

from __future__ import annotations

import concurrent.futures
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
from duotone.compiling import background_compile as background
from duotone.errors import ArgumentError
from tests.compiling.test_bucketed import rows


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
from duotone.compiling import background_compile

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


def test_arguments_may_be_donated_or_written_to_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = HeldCompiler(monkeypatch)
    fn = duotone.bucketed(lambda w, x: jnp.sum(w * x), {1: 0}, sizes=[4, 8], background=True)
    w = jnp.float32(2)
    assert float(fn(w, jnp.ones(8))) == 16.0
    fn(w, jnp.ones(7))
    given = jnp.float32(2)
    assert float(fn(given, jnp.ones(3))) == 6.0
    given.delete()
    compiler.finish()
    assert float(fn(w, jnp.ones(3))) == 6.0
    assert fn.counts.compiles == 2

    compiler.go.clear()
    fn = duotone.bucketed(jnp.cumsum, 0, sizes=[64, 128], background=True)
    x = np.ones(65, np.float32)
    fn(x)
    fn(x[:60])
    x[:] = 5
    compiler.finish()
    assert fn(x[:60]).shape == (60,)


def test_a_bucket_that_was_not_padded_in_the_background_is_compared_later() -> None:
    def counts_zeros_of_four(x: Any) -> Any:
        return jnp.sum(x) + (jnp.sum(x == 0) if x.shape[0] == 4 else 0)

    fn = duotone.bucketed(counts_zeros_of_four, 0, sizes=[4, 8], background=True)
    for length in (8, 4, 4):
        assert float(fn(jnp.ones(length))) == length
        background._THREAD.submit(lambda: None).result()
    with pytest.raises(ArgumentError, match="padding axis 0 of argument 0 from 3"):
        fn(jnp.ones(3))
