"""A primitive that a JAX version adds, or that a list names in vain, is noticed."""

from __future__ import annotations

import pytest

from tests.catalogue import inventory
from tests.catalogue.cases import CASES

_MEANINGS = {"convert_exact", "eq_calculated", "exact_power", "keep_precision", "sum_of_two"}
_NO_CASE: dict[str, str] = {
    "empty2": "jax.lax.empty makes another one",
    "call": "JAX has no public way to make one",
    "eval_jaxpr": "JAX has no public way to make one",
    "custom_lin": "inside differentiation only",
    "dce_sink": "JAX makes it inside explicit garbage collection only",
    "threefry2x32": "what the other random primitives are lowered to",
    "stage": "pipelines only",
    "eq_to": "total-order comparisons are made inside sort's regions only",
    "lt_to": "total-order comparisons are made inside sort's regions only",
    "le_to": "total-order comparisons are made inside sort's regions only",
    "closed_call": "JAX makes it inside other transformations only",
}
"""Exported primitives that no program of a user's can hold, and why."""


def test_every_exported_primitive_has_its_place():
    unknown = inventory.exported() - inventory.listed() - inventory.UNLISTED.keys()
    assert not unknown, (
        f"JAX exports primitives that are on no list: {sorted(unknown)}; put each on a list in "
        "duotone/jaxpr/reading/lists.py or, with a reason, in tests/catalogue/inventory.py"
    )


def test_no_listed_primitive_is_called_unlisted():
    assert not inventory.listed() & inventory.UNLISTED.keys()


def test_every_reason_is_given():
    assert all(inventory.UNLISTED.values())
    assert all(inventory.place_of(name)[1] for name in inventory.exported())


@pytest.mark.parametrize("name", sorted(inventory.exported() - _NO_CASE.keys()))
def test_every_exported_primitive_has_a_case(name: str):
    assert any(name in case.primitives for case in CASES), f"add a case for {name}"


def test_meanings_that_are_no_primitives_are_listed():
    assert inventory.listed() >= _MEANINGS
