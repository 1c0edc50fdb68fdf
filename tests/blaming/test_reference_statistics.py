"""Rows of values and their references: against NumPy, one by one and side by side."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from duotone.blaming import reference_statistics as rows
from duotone.blaming.reference_statistics import ERRORS, LOOK, Note


def numbers(seed, *shape):
    return np.asarray(np.random.default_rng(seed).normal(size=shape), np.float32)


def expected(plain, full, tick, iteration):
    """A row as NumPy has it, element by element."""
    kept, reference = np.float32(plain), np.float32(full)
    bad = np.isfinite(reference) & ~np.isfinite(kept)
    normal = ~(np.abs(reference) < np.finfo(np.float32).smallest_normal)
    half = plain.dtype != np.float32
    least = float(jnp.finfo(plain.dtype).smallest_normal)
    under = half & normal & (np.abs(kept) < least)
    zero = half & normal & (kept == 0)
    first = tick if bad.any() else np.inf
    ends = reference.min(), reference.max()
    lost = np.inf if np.isfinite(reference).all() else tick
    return [bad.sum(), first, iteration, *ends, under.sum(), zero.sum(), reference.size, lost]


def special(half):
    """Values whose half is not finite, lost or 0, and references that are not finite themselves."""
    full = numbers(1, 40)
    full[:8] = [1e30, -np.inf, 3e-6, -1e-9, 0.0, np.inf, 1e-40, 5e-8]
    return jnp.asarray(full).astype(half), full


CASES = {
    "alike": [numbers(k, 3, 5) for k in range(4)],
    "small": [numbers(k, 7) * 10.0 ** (k - 6) for k in range(6)],
    "large": [numbers(k, 90, 70) * 10.0 ** (4 * k - 4) for k in range(3)],
    "scalars": [numbers(k) for k in range(3)],
    "mixed": [numbers(k, *shape) for k, shape in enumerate([(4,), (9000,), (2, 2), (), (4,)])],
}


@pytest.mark.parametrize("half", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_numpy(name, half):
    fulls = CASES[name]
    plains = fulls if name == "alike" else [jnp.asarray(full).astype(half) for full in fulls]
    notes = [
        Note(plain, full, k) for k, (plain, full) in enumerate(zip(plains, fulls, strict=True))
    ]
    found = jax.jit(lambda: LOOK.rows(notes, 5))()
    pairs = [(np.asarray(note.plain), np.asarray(note.full)) for note in notes]
    one_by_one = [expected(*pair, k, 5) for k, pair in enumerate(pairs)]
    np.testing.assert_array_equal(found, np.array(one_by_one, np.float32))


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_what_does_not_fit_and_what_is_lost_is_counted(half):
    plain, full = special(half)
    found = jax.jit(lambda: LOOK.rows([Note(plain, full, 2)], -1))()
    np.testing.assert_array_equal(
        found[0], np.array(expected(np.asarray(plain), full, 2, -1), np.float32)
    )
    assert found[0, rows.BAD] == (1 if half == "float16" else 0)  # an infinite reference is fine
    assert found[0, rows.UNDERFLOW] == (3 if half == "float16" else 0)
    assert found[0, rows.ZERO] == (1 if half == "float16" else 0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_nan_of_either_sign_makes_both_ends_nan(sign):
    full = numbers(0, 6)
    full[3] = np.copysign(np.float32(np.nan), np.float32(sign))
    found = jax.jit(lambda full: LOOK.rows([Note(full, full, 0)], -1))(full)
    assert np.isnan(found[0, [rows.LOW, rows.HIGH]]).all()


def test_errors_are_those_of_numpy():
    fulls = [numbers(0, 6), numbers(1, 6), numbers(2, 9000), numbers(3, 6)]
    plains = [jnp.asarray(full).astype("float16") for full in fulls]
    notes = [Note(plain, full, 0) for plain, full in zip(plains, fulls, strict=True)]
    notes[3] = Note(fulls[3], fulls[3], 0)
    found = jax.jit(lambda: ERRORS.rows(notes, -1))()
    for row, plain, full in zip(found[:3], plains, fulls, strict=False):
        off = np.asarray(plain, np.float64) - full
        np.testing.assert_allclose(
            row, [np.sum(off * off), np.sum(np.float64(full) ** 2)], rtol=1e-5
        )
    np.testing.assert_array_equal(found[3], [0, 0])


def test_rows_of_two_iterations_are_joined():
    plain, full = special("float16")
    calm = numbers(4, 40)
    one = LOOK.rows([Note(calm.astype(np.float16), calm, 0)], 0)
    other = LOOK.rows([Note(plain, full, 1)], 1)
    found = LOOK.joined(LOOK.joined(LOOK.neutral(1), one), other)[0]
    assert (found[rows.BAD], found[rows.TICK], found[rows.ITERATION]) == (1, 1, 1)
    assert found[rows.LOW] == -np.inf
    assert found[rows.COUNT] == 80
    assert found[rows.FULL_TICK] == 1
    assert LOOK.neutral(1)[0, rows.FULL_TICK] == np.inf  # of a branch that is not taken
