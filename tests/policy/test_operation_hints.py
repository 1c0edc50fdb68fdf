"""Unknown operation names: what is meant, where it came from, and the advice followed."""

from __future__ import annotations

import gc
import importlib
import re

import jax
import jax.numpy as jnp
import pytest

import duotone
from duotone import _jax
from duotone.errors import (
    UnknownOperationError,
)
from duotone.jaxpr.policy_of_program import known_names
from duotone.jaxpr.reading import indices, operations
from duotone.jaxpr.reading.scopes import NESTED
from duotone.jaxpr.rules import half_rules
from duotone.ops.jax import ENTRIES, FIXED
from duotone.policy.operation_hints import TENSORFLOW_OPERATIONS
from duotone.policy.policy import Policy

TF = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
KNOWN = known_names()
_MEANINGS = {
    "convert_exact",
    "eq_calculated",
    "exact_power",
    "keep_precision",
    "scatter_once",
    "sum_of_products",
    "short_dot",
    "sum_of_two",
}
_OF_OTHERS = {"custom_root", "linear_solve"}
"""Primitives of libraries on JAX (Lineax), and what goes by another name in a jaxpr."""
_OF_ONE_VERSION = {"log2", "one_minus_square", "polynomial", "closed_call"}
"""Primitives that of JAX 0.10 and 0.12 only one has."""


def merge(**environ: str) -> Policy:
    return Policy().merged_with_environment(environ)


def test_known_names_pass():
    Policy().check_names([])
    Policy(allow_add=["exp"], deny_remove=["scatter-add"]).check_names(KNOWN)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("expp", "exp"),
        ("dot_genral", "dot_general"),
        ("EXP", "exp"),
        ("scatter_add", "scatter-add"),
        ("ReduceSum", "reduce_sum"),
    ],
)
def test_a_slip_gets_the_name_that_was_meant(name, meant):
    with pytest.raises(UnknownOperationError) as caught:
        Policy(deny_add=[name]).check_names(KNOWN)
    says = re.search(
        r"in Policy\(deny_add=...\): .*?(?:did you mean|JAX primitive is) '(.*?)'",
        str(caught.value),
    )
    assert says is not None
    assert says[1] == meant
    Policy(deny_add=[says[1]]).check_names(KNOWN)


@pytest.mark.parametrize("name", ["MatMul", "BatchMatMulV2", "matmul", "batch_mat_mul", "Einsum"])
def test_a_tensorflow_name_gets_its_primitive(name):
    with pytest.raises(UnknownOperationError, match="JAX primitive is 'dot_general'") as caught:
        merge(**{f"{TF}ALLOWLIST_ADD": name}).check_names(KNOWN)
    assert f"'{name}' in environment variable {TF}ALLOWLIST_ADD" in str(caught.value)
    merge(**{f"{TF}ALLOWLIST_ADD": "dot_general"}).check_names(KNOWN)


def test_a_variable_can_be_left_to_tensorflow_as_the_message_says():
    environ = {f"{TF}ALLOWLIST_ADD": "MatMul"}
    with pytest.raises(UnknownOperationError, match="set DUOTONE_ALLOWLIST_ADD, which duotone rea"):
        merge(**environ).check_names(KNOWN)
    merge(**environ, DUOTONE_ALLOWLIST_ADD="").check_names(KNOWN)
    merge(**environ, DUOTONE_ALLOWLIST_ADD="exp").check_names(KNOWN)


def test_a_tensorflow_name_of_several_primitives():
    with pytest.raises(UnknownOperationError) as caught:
        Policy(deny_remove=["Softmax"]).check_names(KNOWN)
    assert "no single JAX primitive" in str(caught.value)
    assert "'exp', 'reduce_sum', 'div'" in str(caught.value)
    assert "keep_full or keep_half" in str(caught.value)
    Policy(deny_remove=["exp", "reduce_sum", "div"]).check_names(KNOWN)
    Policy(keep_half=["*softmax*"]).check_names(KNOWN)


def test_a_name_like_no_other_says_where_to_look():
    with pytest.raises(UnknownOperationError, match=r"jax.make_jaxpr\(fn\)\(\*args\)"):
        Policy(deny_add=["qqqq"]).check_names(KNOWN)
    assert "exp" in str(jax.make_jaxpr(jnp.exp)(1.0))


def test_all_unknown_names_are_in_one_error_with_every_source():
    policy = Policy(deny_add=["expp"], allow_add=["Conv2D"])
    policy = policy.merged_with_environment({"DUOTONE_DENYLIST_ADD": "expp,logg"})
    with pytest.raises(UnknownOperationError) as caught:
        policy.check_names(KNOWN)
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert "'conv_general_dilated'" in lines[1]
    both = "'expp' in Policy(deny_add=...) and environment variable DUOTONE_DENYLIST_ADD"
    assert both in lines[2]
    assert "'logg' in environment variable DUOTONE_DENYLIST_ADD: did you mean 'log'" in lines[3]


def test_a_front_end_that_knows_tensorflow_names_takes_them():
    Policy(allow_add=["MatMul"]).check_names({"MatMul", "Conv2D"})


def test_tables_name_primitives_that_a_jax_has():
    """An edit of another name would be taken and do nothing."""
    importlib.import_module("jax.scipy.special")
    made = {o.name for o in gc.get_objects() if issubclass(type(o), _jax.Primitive)}
    tables = [
        {entry.op for entry in ENTRIES},
        FIXED,
        operations._DESCRIPTION_RULES,
        half_rules._BINDING_RULES,
        indices._FOLDING_RULES,
        NESTED,
    ]
    for table in tables:
        assert set(table) - made <= _MEANINGS | _OF_ONE_VERSION | _OF_OTHERS
    for name in ("scatter_add", "scatter_max", "expand_dims", "copy_p"):
        with pytest.raises(UnknownOperationError, match=re.escape(repr(name))):
            explained(Policy(allow_add={name}))


def explained(policy):
    return duotone.explain(jnp.tanh, 1.0 + jnp.arange(3.0), dtype="float16", policy=policy)


@pytest.mark.parametrize(
    "name", ["tile", "split", "ragged_dot_general", "log2", *sorted(_MEANINGS)]
)
def test_a_primitive_that_jax_keeps_to_itself_and_a_meaning_are_known(name):
    assert explained(Policy(deny_add={name})).operations


def test_every_hint_names_a_primitive_of_this_jax():
    hinted = {p for primitives in TENSORFLOW_OPERATIONS.values() for p in primitives}
    missing = {p for p in hinted if not hasattr(jax.lax, f"{p.replace('-', '_')}_p")}
    assert not missing
    assert {getattr(jax.lax, f"{p.replace('-', '_')}_p").name for p in hinted} == hinted
