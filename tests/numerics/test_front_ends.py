"""Front ends of mainstream models: as exact as with only their networks in half.

The programs are in ``front_ends.py`` (positions, audio, geometry, images), ``front_loops.py``
(iterations) and ``front_whiles.py`` (loops that end by a number, adaptive solvers). Each takes
``dot``, an einsum for its network, and its arguments. By hand, only ``dot`` is half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from tests.numerics import front_ends, front_loops, front_whiles
from tests.numerics.oracle import EPSILON, HALVES, reference
from tests.numerics.test_everyday import by_hand

FORCE = duotone.Policy(ignore_performance=True)
NOISE = 100 * EPSILON["float32"]
"""Of the scale: what is below is as good as float32's."""
TURNS = 2
"""How many turns more or fewer than float32's a loop may take."""
CASES = {
    f"{kind}: {name}": case
    for kind, cases in {
        "positions": front_ends.PLACES,
        "audio": front_ends.AUDIO,
        "geometry": front_ends.GEOMETRY,
        "moments": front_ends.MOMENTS,
        "iteration": front_loops.ITERATIONS,
        "until": front_whiles.ENDS,
        "adaptive": front_whiles.ADAPTIVE,
    }.items()
    for name, case in cases.items()
}
_QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


def results(function: Callable[..., Any], args: tuple[Any, ...]) -> list[np.ndarray]:
    compiled = jax.jit(function).lower(*args).compile(_QUICK)  # type: ignore[arg-type]
    return [np.asarray(leaf) for leaf in jax.tree.leaves(compiled(*args))]


def errors(got: list[np.ndarray], want: list[np.ndarray]) -> list[float]:
    """The largest error of each floating point result, of its largest element."""
    pairs = [
        (x.astype(np.float64), y) for x, y in zip(got, want, strict=True) if y.dtype.kind == "f"
    ]
    return [float(np.max(np.abs(x - y)) / np.max(np.abs(y))) for x, y in pairs]


@pytest.mark.parametrize("name", CASES)
def test_a_front_end_is_as_exact_as_with_its_network_in_half(name: str) -> None:
    program, numbers = CASES[name]
    args = jax.tree.map(jnp.asarray, numbers)
    seen: list[str] = []

    def dot(spec: str, *operands: Any) -> Any:
        seen.append(spec)
        return jnp.einsum(spec, *operands)

    def plain(*args: Any) -> Any:
        return program(dot, *args)

    want = [np.asarray(leaf) for leaf in jax.tree.leaves(reference(plain, *args))]
    full = results(plain, args)
    own = errors(full, want)
    for half in HALVES:
        got = results(duotone.autocast(plain, dtype=half, policy=FORCE), args)
        limits = [max(NOISE, 4 * error) for error in own]
        if seen:
            hand = errors(results(lambda *a: program(by_hand(half, True), *a), args), want)  # noqa: B023
            limits = [max(limit, 2 * error) for limit, error in zip(limits, hand, strict=True)]
        found = errors(got, want)
        assert all(e <= limit for e, limit in zip(found, limits, strict=True)), (
            half,
            found,
            limits,
        )
        turns = [(x, y) for x, y in zip(got, full, strict=True) if y.dtype.kind == "i"]
        assert all(np.abs(x - y).max() <= TURNS for x, y in turns), (half, turns)
