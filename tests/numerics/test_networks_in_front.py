"""Front ends whose argument a network moved: as exact as with only that network in half.

The programs are those of ``test_front_ends.py``, which pass for given arguments. Here one argument
is the sum of the given array and the result of a dot, or the array scaled by such a result, and the
weights of that dot have a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone import Policy, autocast
from tests.numerics import front_ends
from tests.numerics.oracle import EPSILON, HALVES, reference, relative
from tests.numerics.test_everyday import by_hand
from tests.numerics.test_front_ends import results

PLACES, AUDIO, GEOMETRY = front_ends.PLACES, front_ends.AUDIO, front_ends.GEOMETRY
CASES = {
    "fourier features of 12": (PLACES["fourier features of 12"], 0),
    "frequencies of 12": (PLACES["fourier features of 12"], 1),
    "nerf encoding": (PLACES["nerf encoding"], 0),
    "timesteps": (PLACES["timesteps"], 0),
    "log mel": (AUDIO["log mel"], 0),
    "spectral flatness": (AUDIO["spectral flatness"], 0),
    "camera": (GEOMETRY["camera"], 0),
    "kabsch": (GEOMETRY["kabsch"], 0),
    "variance by dots": (front_ends.MOMENTS["variance by dots"], 0),
    "whitening": (front_ends.MOMENTS["whitening"], 0),
}
SCALED = [name for name in CASES if name.endswith("of 12")]


def added(given: Any, found: Any, size: float) -> Any:
    return given + 0.1 * size * found


def scaled(given: Any, found: Any, size: float) -> Any:
    return given * (1 + 0.05 * jnp.tanh(found))


MOVES = [(name, added) for name in CASES] + [(name, scaled) for name in SCALED]


def weigh(x: Any) -> Any:
    """The array times random numbers, so that its sum has a gradient that does not vanish."""
    return x * np.random.default_rng(1).standard_normal(x.shape).astype(x.dtype)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(("name", "move"), MOVES)
def test_a_moved_argument_is_as_exact_as_with_its_network_in_half(
    name: str, move: Callable[..., Any], half: str
) -> None:
    (program, args), slot = CASES[name]
    args = tuple(map(np.asarray, args))
    random, given = np.random.default_rng(0), args[slot]
    width = max(given.shape[-1], 8)
    codes = random.standard_normal((*given.shape[:-1], width)).astype(np.float32)
    w = (random.standard_normal((width, given.shape[-1])) / width**0.5).astype(np.float32)

    def moved(w: Any, codes: Any, *args: Any, dot: Callable[..., Any] = jnp.einsum) -> Any:
        def loss(w: Any) -> Any:
            made = move(args[slot], dot("...i,ij->...j", codes, w), float(np.std(given)))
            out = jax.tree.leaves(program(dot, *args[:slot], made, *args[slot + 1 :]))
            sizes = [jnp.sqrt(jnp.mean(jax.lax.stop_gradient(leaf) ** 2)) for leaf in out]
            parts = [jnp.sum(weigh(leaf)) / size for leaf, size in zip(out, sizes, strict=True)]
            return sum(parts), out

        return jax.grad(loss, has_aux=True)(w)

    want = jax.tree.leaves(reference(moved, w, codes, *args))
    by_user = results(lambda *a: moved(*a, dot=by_hand(half, True)), (w, codes, *args))
    painted = autocast(moved, dtype=half, policy=Policy(ignore_performance=True))
    for own, other, exact in zip(results(painted, (w, codes, *args)), by_user, want, strict=True):
        assert relative(own, exact) < max(2 * relative(other, exact), 2 * EPSILON[half])
