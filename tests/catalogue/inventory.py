"""Every primitive that JAX exports, and what duotone says of it.

A primitive is on a list, has no half form (``FIXED``), is a nested program, or is named here with
the reason why it is on no list. A new JAX version's new primitive is in none of these, and
``test_inventory.py`` says so.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from duotone import _jax
from duotone.jaxpr.reading.operations import FIXED
from duotone.jaxpr.reading.scopes import NESTED
from duotone.ops.jax import ENTRIES

_INTEGERS = "integers or booleans only: nothing to paint"
_COLLECTIVE = "a collective with arithmetic: Policy(reduce_dtype=...) sets its dtype"
_KEYS = "random bits and keys: nothing to paint"
_TOKEN = "a token or an index, no array of numbers"
_REFERENCE = "a reference holds one dtype; opaque by decision"
_REGION = "carries a region built for float32 that JAX has no public way to build again"

UNLISTED: dict[str, str] = {
    **dict.fromkeys(
        "and or not xor clz mulhi population_count shift_left shift_right_arithmetic "
        "shift_right_logical reduce_and reduce_or reduce_xor".split(),
        _INTEGERS,
    ),
    **dict.fromkeys(
        "pmax pmin psum ragged_all_to_all psum_scatter reduce_scatter psend precv".split(),
        _COLLECTIVE,
    ),
    **dict.fromkeys(
        "random_bits random_fold_in random_seed random_split rng_bit_generator "
        "threefry2x32".split(),
        _KEYS,
    ),
    **dict.fromkeys("after_all create_token axis_index".split(), _TOKEN),
    **dict.fromkeys("get swap".split(), _REFERENCE),
    **dict.fromkeys("reduce reduce_window select_and_scatter".split(), _REGION),
    "iota": "makes numbers from nothing: cast where it is read",
    "empty2": "makes an array from nothing: cast where it is read",
    "call": "a nested program that JAX makes no longer; left alone",
    "eval_jaxpr": "a nested program that JAX makes no longer; left alone",
    "custom_lin": "inside differentiation only; never in a traced program",
    "dce_sink": "keeps a value alive; left alone",
    "stage": "marks a pipeline stage; left alone",
}
"""By name of the primitive: why it is on no list."""


def exported() -> frozenset[str]:
    """The names of the primitives in jax.extend, ``jax.lax`` and ``jax.lax.linalg``."""
    names = set(_jax.known_primitives())
    for module in (lax, jax.lax.linalg):
        for name in dir(module):
            if name.endswith("_p"):
                names.add(getattr(module, name).name)
    return frozenset(names)


def listed() -> frozenset[str]:
    """The names that are on a list, in ``FIXED``, or nested programs."""
    return frozenset({entry.op for entry in ENTRIES}) | FIXED.keys() | NESTED.keys()


def place_of(name: str) -> tuple[str, str]:
    """The list of a primitive, and why: ``("deny", reason)``, ``("fixed", …)`` …"""
    if name in FIXED:
        return "no half form", FIXED[name]
    if name in NESTED and name not in ("optimization_barrier", "device_put"):
        return "nested program", "its inside is part of the graph"
    entries: list[Any] = [entry for entry in ENTRIES if entry.op == name]
    if entries:
        kinds = [f"{e.kind.value}{f' ({e.only[0]})' if e.only else ''}" for e in entries]
        return ", ".join(kinds), "; ".join(e.reason for e in entries)
    return "unlisted", UNLISTED.get(name, "")
