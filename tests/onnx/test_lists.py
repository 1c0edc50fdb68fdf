"""List edits of a policy and of the environment, by names of ONNX and of JAX."""

import logging

import pytest
from onnx import defs

import duotone.onnx
from duotone.errors import UnknownOperationError
from duotone.jaxpr.policy_of_program import known_names
from duotone.onnx.names import OF_JAX
from duotone.policy.policy import Policy
from tests.onnx.models import model

TEXT = """f (float[4, 8] x, float[8, 8] w) => (float[4, 8] y)
{ h = MatMul(x, w)  t = Sigmoid(h)  y = MatMul(t, w) }"""


def paints():
    record = duotone.onnx.explain(model(TEXT))
    return {one.operation: (one.paint, one.rule) for one in record.operations}


@pytest.mark.parametrize("name", ["Sigmoid", "logistic"])
@pytest.mark.parametrize(
    "variable", ["DUOTONE_DENYLIST_ADD", "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_DENYLIST_ADD"]
)
def test_the_environment_edits_lists(monkeypatch, variable, name):
    assert paints()["Sigmoid"][0] == "half"
    monkeypatch.setenv(variable, name)
    assert paints()["Sigmoid"] == ("full", "deny")


def test_several_operations_of_one_primitive(monkeypatch):
    monkeypatch.setenv("DUOTONE_ALLOWLIST_REMOVE", "dot_general")
    assert paints()["MatMul"][0] == "full"


def test_an_unknown_name_says_where_names_are_shown(monkeypatch):
    monkeypatch.setenv("DUOTONE_DENYLIST_ADD", "no_such_thing")
    with pytest.raises(UnknownOperationError, match=r"DUOTONE_DENYLIST_ADD: .*duotone view model"):
        paints()


def test_what_has_no_meaning_for_a_model_is_reported(monkeypatch, caplog):
    monkeypatch.setenv("DUOTONE_LEVEL", "TENSOR_CORES_ONLY")
    monkeypatch.setenv("DUOTONE_FLOAT32_MATH", "tf32")
    before = duotone.onnx.explain(model(TEXT), policy=Policy(deny_add=["Tanh"]))
    (told,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "level, float32_math" in told
    monkeypatch.delenv("DUOTONE_LEVEL")
    monkeypatch.delenv("DUOTONE_FLOAT32_MATH")
    assert duotone.onnx.explain(model(TEXT)).operations == before.operations


def test_both_sides_of_the_names_exist():
    schemas = {schema.name for schema in defs.get_all_schemas()} | {"Square", "CastExact"}
    assert {name for names in OF_JAX.values() for name in names} <= schemas
    assert OF_JAX.keys() - {"CumSum"} <= known_names()
