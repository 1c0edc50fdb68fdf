"""The table of facts: what each trait is of, and that rows agree with what traits say."""

from __future__ import annotations

from types import ModuleType

import pytest

from duotone.ops import jax, onnx
from duotone.ops.entries import Entry, Kind, Pointwise, rows, traits_of
from duotone.ops.traits import UNDESCRIBED, Trait, Traits
from duotone.precision.ranges.facts import FACTS
from duotone.precision.ranges.intervals import INTERVAL_RULES
from duotone.precision.ranges.kernels import KERNEL_RULES

TABLES: dict[str, ModuleType] = {"jax": jax, "onnx": onnx}


def members(trait: Trait) -> dict[str, list[str]]:
    """The operations that have a trait, by framework; structural ones are in both."""
    return {
        framework: sorted(name for name, traits in table.TRAITS.items() if trait in traits)
        for framework, table in TABLES.items()
    }


@pytest.mark.parametrize("trait", [trait for trait in Trait if trait is not Trait.UNDESCRIBED])
def test_a_trait_has_members_and_its_example_is_one(trait: Trait) -> None:
    found = members(trait)
    for framework, names in found.items():  # shown with ``pytest -rP``
        print(f"{trait} ({trait.says}), {framework}: {' '.join(names)}")
    every = {name for names in found.values() for name in names}
    assert every
    assert trait.example in every
    first = trait.counterexample.split()[0].rstrip(",")
    assert first not in every, f"{first} is {trait}, of which it is the counterexample"


def test_only_host_code_and_what_has_no_row_is_undescribed() -> None:
    for table in TABLES.values():
        found = {name for name, traits in table.TRAITS.items() if Trait.UNDESCRIBED in traits}
        assert all("callback" in name or "debug" in name for name in found)
        assert traits_of(table.TRAITS, "no_such_operation") == UNDESCRIBED


@pytest.mark.parametrize("framework", TABLES)
def test_rows_of_one_operation_for_several_half_types_agree(framework: str) -> None:
    by_name: dict[str, list[Entry]] = {}
    for entry in TABLES[framework].ENTRIES:
        by_name.setdefault(entry.op, []).append(entry)
    several = {name: found for name, found in by_name.items() if len(found) > 1}
    assert several
    for name, found in several.items():
        assert len({(row.traits, row.interval, row.pointwise) for row in found}) == 1, name
        assert all(row.only for row in found), name
        assert not set.intersection(*(set(row.only) for row in found)), name


_PAIRS = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
    "Neg": "neg",
    "Abs": "abs",
    "Exp": "exp",
    "Log": "log",
    "Pow": "pow",
    "Square": "square",
    "Tanh": "tanh",
    "Sigmoid": "logistic",
    "Erf": "erf",
    "Sqrt": "sqrt",
    "Sin": "sin",
    "Cos": "cos",
    "Where": "select_n",
    "Max": "max",
    "Min": "min",
    "Floor": "floor",
    "Greater": "gt",
    "Cast": "convert_element_type",
    "CastExact": "convert_exact",
    "Reshape": "reshape",
    "Transpose": "transpose",
    "Expand": "broadcast_in_dim",
    "ReduceSum": "reduce_sum",
    "ReduceMax": "reduce_max",
    "sum_of_products": "sum_of_products",
    "short_dot": "short_dot",
}


def test_operations_of_one_meaning_have_the_same_traits_in_both_frameworks() -> None:
    for name, primitive in _PAIRS.items():
        assert onnx.TRAITS[name] == jax.TRAITS[primitive], name


def test_rows_name_every_interval_function() -> None:
    named = {name for table in TABLES.values() for name in table.INTERVALS.values()}
    assert not set(KERNEL_RULES) - named
    assert set(FACTS) <= set(INTERVAL_RULES) <= set(KERNEL_RULES)


def test_a_name_in_a_row_may_have_a_trait_and_a_function_of_its_own() -> None:
    made = rows(Kind.INFER, "add sub+subtracts", "adds", "safe", "tests", interval="one other")
    assert [row.interval for row in made] == ["one", "other"]
    wanted: list[Traits] = [frozenset({Trait.ADDS}), frozenset({Trait.ADDS, Trait.SUBTRACTS})]
    assert [row.traits for row in made] == wanted
    assert all(row.pointwise is Pointwise.NO for row in made)
    (alone,) = rows(Kind.INFER, "add", "adds", "safe", "tests")
    assert alone.interval == "add"
    with pytest.raises(ValueError, match="such_trait"):
        rows(Kind.INFER, "add", "no_such_trait", "safe", "tests")
