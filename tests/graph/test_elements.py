"""The magnitude of constants: whether their elements cancel, and which operations keep that."""

from __future__ import annotations

import numpy as np
import pytest

from duotone.graph.elements import if_whole, magnitude_of
from duotone.ops.traits import Trait

STENCIL = np.array([1.0, -2.0, 1.0], np.float32)


def test_elements_cancel_only_if_they_add_up_to_0_exactly() -> None:
    assert magnitude_of([STENCIL]).cancels
    for other in (np.abs(STENCIL), STENCIL * 0.1 + 1e-6, 0 * STENCIL, STENCIL[:0]):
        assert not magnitude_of([other]).cancels
    assert not magnitude_of([np.array([np.inf, -np.inf], np.float32)]).cancels
    assert not magnitude_of([np.zeros(1, np.float32), STENCIL]).cancels  # parts of a sparse array


def test_axes_along_which_all_sums_are_0_are_found() -> None:
    laplacian = STENCIL[:, None] * np.eye(3, dtype=np.float32)[1]
    laplacian += laplacian.T
    assert magnitude_of([laplacian]).cancels
    assert magnitude_of([np.tile(laplacian[:, :, None, None], (1, 1, 8, 8))]).cancels
    assert magnitude_of([laplacian.ravel()], (3, 3, 1, 1)).cancels
    assert magnitude_of([(np.eye(63, 64) - np.eye(63, 64, k=1)).astype(np.float32)]).cancels


def test_weights_that_add_up_to_0_by_chance_are_no_difference() -> None:
    signs = np.ones((16, 16), np.float32)
    signs[np.tril_indices(16, -1)] = -1
    signs[np.arange(16), np.arange(16)] = np.tile([1.0, -1.0], 8)
    assert signs.sum() == 0.0
    assert not magnitude_of([signs]).cancels


@pytest.mark.parametrize(
    ("traits", "cancels"),
    [
        ({Trait.KEEPS, Trait.MOVES, Trait.REPEATS}, True),
        ({Trait.KEEPS, Trait.MOVES, Trait.TRANSPOSES}, True),
        ({Trait.KEEPS, Trait.NEGATES, Trait.FLIPS}, True),
        ({Trait.KEEPS, Trait.MOVES}, False),  # a slice of a stencil is none
        ({Trait.KEEPS, Trait.NEGATES}, False),  # the absolute value
    ],
)
def test_only_all_elements_of_a_constant_cancel(traits: set[Trait], cancels: bool) -> None:
    constant = magnitude_of([STENCIL])
    kept = if_whole(constant, frozenset(traits))
    assert kept.cancels is cancels
    assert (kept.low, kept.high) == (-2.0, 1.0)
