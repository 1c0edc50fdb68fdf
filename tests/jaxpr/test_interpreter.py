"""What CPython does with memory while a program is traced."""

from __future__ import annotations

import gc
import resource
import weakref
from collections.abc import Callable

import jax.numpy as jnp
import pytest

from duotone.jaxpr.running.interpreter import with_long_stack
from tests.jaxpr.programs import half

X = jnp.ones((4, 8))
DEPTHS = range(200)
CALLS = 300


def call_often() -> int:
    """Page faults of a loop of calls."""
    before = page_faults()
    for _ in range(CALLS):
        some_frames()
    return page_faults() - before


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def some_frames(count: int = 3) -> int:
    return 0 if count == 0 else some_frames(count - 1)


def at_depth(frames: int, function: Callable[[], int]) -> int:
    return function() if frames == 0 else at_depth(frames - 1, function)


def test_no_depth_of_the_stack_costs_memory_at_every_call() -> None:
    plain = max(at_depth(depth, call_often) for depth in DEPTHS)
    long = max(with_long_stack(lambda d=depth: at_depth(d, call_often)) for depth in DEPTHS)
    assert plain >= CALLS, "CPython no longer does what with_long_stack is there for"
    assert long < CALLS / 10


def test_results_and_errors_pass_through_the_long_stack() -> None:
    assert with_long_stack(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        with_long_stack(lambda: 1 // 0)


def test_the_long_stack_holds_what_recursion_fills() -> None:
    assert with_long_stack(lambda: at_depth(800, lambda: 5)) == 5


def test_the_collector_goes_on_and_frees_what_a_trace_left() -> None:
    class Thing:
        pass

    seen = []

    def function(x):
        thing = Thing()
        thing.itself = thing  # type: ignore[attr-defined]
        seen.append(weakref.ref(thing))
        return x @ x.T

    half(function)(X)
    assert gc.isenabled()
    gc.collect()
    assert seen[0]() is None


def test_what_a_user_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        half(lambda x: x @ x.T)(X)
        assert gc.get_freeze_count() > count / 2
    finally:
        gc.unfreeze()
