"""What the tests of the zoo's models share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks._common import nested_programs

DOTS = ("dot_general", "conv_general_dilated")


def slow_but(names: Iterable[str], quick: Collection[str]) -> list[Any]:
    """Returns test parameters, all marked slow but the quick ones."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yields the equations of a program and of the programs inside of it."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn
        for nested in nested_programs(eqn.params.values()):
            yield from equations(nested)


def dot_types(step: Any, shapes: Any) -> set[str]:
    """Returns the types of the left operands of dots and convolutions."""
    return {
        str(eqn.invars[0].aval.dtype)
        for eqn in equations(jax.make_jaxpr(step)(*shapes))
        if eqn.primitive.name in DOTS
    }


def check_steps(plain: Any, by_hand: Any) -> Any:
    """Checks that both steps keep the state, and that one computes in float32; returns shapes."""
    shapes = plain.step_shapes()
    assert shapes == by_hand.step_shapes()
    for case in (plain, by_hand):
        state, loss = jax.eval_shape(case.step, *shapes)
        assert (loss.shape, loss.dtype) == ((), jnp.float32)
        same = jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), state, shapes[0])
        assert all(jax.tree.leaves(same))
    assert dot_types(plain.step, shapes) == {"float32"}
    return shapes
