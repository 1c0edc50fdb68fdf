"""What the tests share: cases in turns, draws of random numbers."""

from __future__ import annotations

import sys

import jax
import numpy as np
import pytest

from tests.quick import in_turns


@pytest.mark.parametrize("shape", [(), (3,), (7, 13), (2, 3, 4), (64, 64), (65, 64)])
def test_small_draws_have_the_bits_of_jax(shape: tuple[int, ...]) -> None:
    key = jax.random.key(len(shape))
    of_jax = jax.jit(lambda key: jax.random.normal(key, shape))  # in a trace, it is JAX's own
    np.testing.assert_array_equal(jax.random.normal(key, shape), of_jax(key))


def test_draws_in_other_types_and_in_traces_are_those_of_jax() -> None:
    key = jax.random.key(1)
    assert jax.random.normal(key, (3,), np.float16).dtype == np.float16
    with jax.enable_x64(True):
        assert jax.random.normal(key, (3,)).dtype == np.float64
    assert str(jax.make_jaxpr(lambda: jax.random.normal(key, (3,)))()).count("erf_inv") == 1
    keys = jax.random.split(key, 2)
    assert jax.vmap(lambda each: jax.random.normal(each, (3,)))(keys).shape == (2, 3)


def test_two_pythons_run_all_combinations_and_each_has_every_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run: list[set[tuple[object, ...]]] = []
    for version in ((3, 11), (3, 12)):
        monkeypatch.setattr(sys, "version_info", version)
        run.append({case.values for case in in_turns("abc", range(4)) if not case.marks})
    assert not run[0] & run[1]
    assert len(run[0] | run[1]) == 12
    for each in run:
        assert {values[0] for values in each} == set("abc")
        assert {values[1] for values in each} == set(range(4))
