"""The environment variables: each under all its names, who wins, bad values, the docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duotone.errors import (
    EnvironmentVariableError,
    PolicyError,
    UnknownOperationError,
)
from duotone.policy.environment import LEVELS, MATH_VARIABLES, PAINTERS, VARIABLES, Variable
from duotone.policy.policy import LIST_FIELDS, Policy

TF = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"


def make(**fields: Any) -> Policy:
    """A policy from arguments that a type checker would not let through."""
    return Policy(**fields)


def merge(**environ: str) -> Policy:
    return Policy().merged_with_environment(environ)


def every_name() -> list[Any]:
    """(variable, one of its names) for every name of every variable."""
    return [
        pytest.param(variable, name, id=name)
        for variable in VARIABLES
        for name in (variable.original, variable.old, variable.duotone)
        if name is not None
    ]


def test_an_environment_that_says_nothing_changes_nothing():
    policy = Policy(deny_add=["exp"])
    assert policy.merged_with_environment({"HOME": "/", "TF_CPP_MIN_LOG_LEVEL": "2"}) is policy


def test_the_process_environment_is_read_by_default_and_at_each_call(monkeypatch):
    monkeypatch.setenv("DUOTONE_LEVEL", "TENSOR_CORES_ONLY")
    assert Policy().merged_with_environment().level == "TENSOR_CORES_ONLY"
    monkeypatch.setenv("DUOTONE_LEVEL", "UNSAFE_FORCE_ALL")
    assert Policy().merged_with_environment().level == "UNSAFE_FORCE_ALL"


@pytest.mark.parametrize(("variable", "name"), every_name())
def test_every_variable_sets_its_field_under_each_name(variable: Variable, name: str):
    expected: Any = {
        "level": "TENSOR_CORES_ONLY",
        "ignore_performance": True,
        "log_path": Path("/tmp"),
        "log_decisions": True,
        "painter": "tensorflow",
        "float32_math": "tf32",
        "convolution_math": "tf32",
        "reduce_dtype": "float32",
        "segment_sums": "half",
    }.get(variable.field, frozenset(variable.example.split(",")))
    policy = merge(**{name: variable.example})
    assert getattr(policy, variable.field) == expected
    assert policy == make(**{variable.field: expected})
    assert name in policy.describe()


def test_the_names_are_tensorflows():
    originals = {v.original for v in VARIABLES} - {None}
    olds = {v.old for v in VARIABLES} - {None}
    edits = ("ADD", "REMOVE")
    new_lists = {f"{TF}{x}LIST_{e}" for x in ("ALLOW", "INFER", "DENY", "CLEAR") for e in edits}
    rest = {TF + x for x in ("LEVEL", "IGNORE_PERFORMANCE", "LOG_PATH")} | {"TF_CPP_VMODULE"}
    assert originals == new_lists | rest
    assert olds == {f"{TF}{x}_{e}" for x in ("WHITELIST", "GRAYLIST", "BLACKLIST") for e in edits}
    for variable in VARIABLES:
        if variable.original is not None and variable.original.startswith(TF):
            assert variable.duotone == "DUOTONE_" + variable.original.removeprefix(TF)


@pytest.mark.parametrize(
    ("old", "field"),
    [("WHITELIST", "allow"), ("GRAYLIST", "infer"), ("BLACKLIST", "deny")],
)
def test_old_names_mean_the_same_lists(old, field):
    assert merge(**{f"{TF}{old}_ADD": "abs"}) == make(**{f"{field}_add": ["abs"]})
    assert merge(**{f"{TF}{old}_REMOVE": "abs"}) == make(**{f"{field}_remove": ["abs"]})


def test_both_tensorflow_names_of_a_list_are_united():
    environ = {f"{TF}DENYLIST_ADD": "exp", f"{TF}BLACKLIST_ADD": "log"}
    assert merge(**environ).deny_add == {"exp", "log"}


@pytest.mark.parametrize("variable", [v for v in VARIABLES if v.original], ids=lambda v: v.duotone)
def test_the_duotone_name_is_read_alone(variable: Variable):
    # Nonsense that would be an error if it were read.
    others = {n: "a|b" for n in (variable.original, variable.old) if n}
    if variable.field == "log_decisions":
        others = {"TF_CPP_VMODULE": "auto_mixed_precision=lots"}
    with pytest.raises(EnvironmentVariableError):
        merge(**others)
    alone = merge(**{variable.duotone: variable.example})
    assert merge(**others, **{variable.duotone: variable.example}) == alone


def test_an_empty_duotone_name_switches_tensorflows_off(tmp_path):
    environ = {
        f"{TF}DENYLIST_ADD": "exp",
        f"{TF}BLACKLIST_ADD": "log",
        f"{TF}LEVEL": "UNSAFE_FORCE_ALL",
        f"{TF}LOG_PATH": str(tmp_path),
        "TF_CPP_VMODULE": "auto_mixed_precision=2",
    }
    assert merge(**environ) != Policy()
    empty = ("DENYLIST_ADD", "LEVEL", "LOG_PATH", "VMODULE")
    assert merge(**environ, **{f"DUOTONE_{name}": "" for name in empty}) == Policy()


@pytest.mark.parametrize("field", LIST_FIELDS)
def test_list_edits_of_code_and_environment_are_united(field):
    variable = next(v for v in VARIABLES if v.field == field)
    policy = make(**{field: ["exp"]}).merged_with_environment({variable.duotone: "log, abs ,"})
    assert getattr(policy, field) == {"exp", "log", "abs"}


def test_a_scalar_set_in_code_wins(tmp_path):
    code = Policy(
        painter="tensorflow",
        level="TENSOR_CORES_ONLY",
        ignore_performance=True,
        log_path=tmp_path,
        log_decisions=True,
    )
    environ = {
        "DUOTONE_PAINTER": "duotone",
        "DUOTONE_LEVEL": "UNSAFE_FORCE_ALL",
        "DUOTONE_IGNORE_PERFORMANCE": "0",
        "DUOTONE_LOG_PATH": "/tmp",
        "DUOTONE_VMODULE": "auto_mixed_precision=0",
    }
    assert code.merged_with_environment(environ) == code
    assert " from " not in code.merged_with_environment(environ).describe()


def test_a_default_in_code_counts_as_not_set():
    code = Policy(painter="duotone", level=None, ignore_performance=False, log_decisions=False)
    environ = {
        "DUOTONE_PAINTER": "tensorflow",
        "DUOTONE_LEVEL": "UNSAFE_FORCE_ALL",
        "DUOTONE_IGNORE_PERFORMANCE": "1",
        "DUOTONE_VMODULE": "auto_mixed_precision=3",
    }
    assert code.merged_with_environment(environ) == Policy(
        painter="tensorflow",
        level="UNSAFE_FORCE_ALL",
        ignore_performance=True,
        log_decisions=True,
    )


def test_merging_twice_is_merging_once():
    environ = {"DUOTONE_LEVEL": "TENSOR_CORES_ONLY", "DUOTONE_DENYLIST_ADD": "tanh,nonsense"}
    once = Policy(deny_add=["exp"]).merged_with_environment(environ)
    twice = once.merged_with_environment(environ)
    assert twice == once
    assert twice.describe() == once.describe()
    with pytest.raises(UnknownOperationError) as caught:
        twice.check_names({"tanh", "exp"})
    assert "Policy(" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", False), ("1", True), ("true", True), ("TRUE", True), ("False", False)],
)
def test_booleans_are_read_as_tensorflow_reads_them(text, value):
    assert merge(DUOTONE_IGNORE_PERFORMANCE=text).ignore_performance is value


@pytest.mark.parametrize("text", LEVELS + tuple(level.lower() for level in LEVELS))
def test_levels_in_either_case(text):
    assert merge(DUOTONE_LEVEL=text).level == text.upper()


@pytest.mark.parametrize("text", [*PAINTERS, "TensorFlow"])
def test_painters_in_either_case(text):
    assert merge(DUOTONE_PAINTER=text).painter == text.lower()


@pytest.mark.parametrize(
    ("text", "logs"),
    [
        ("auto_mixed_precision=2", True),
        ("auto_mixed_precision=3", True),
        ("auto_mixed_precision=1", False),
        ("auto_mixed_precision=-1", False),
        ("gpu_device=1, auto_mixed_precision=2 ,bfc_allocator=x", True),
        ("auto_mixed_precision=2,auto_mixed_precision=0", False),
        ("auto_mixed_precision_lists=2", False),
        ("nonsense", False),
        ("", False),
    ],
)
def test_vmodule(text, logs):
    assert merge(TF_CPP_VMODULE=text).log_decisions is logs


# Errors: each message is followed, and then there is none.

BAD_VALUES = [
    # variable, bad value, what the message takes or says, a value that follows the advice
    ("LEVEL", "FAST", "TENSOR_CORES_ONLY, TREAT_INFER_AS_DENY or UNSAFE_FORCE_ALL", LEVELS[1]),
    ("IGNORE_PERFORMANCE", "yes", "0, 1, true or false", "true"),
    ("IGNORE_PERFORMANCE", "", "0, 1, true or false", "0"),
    ("LOG_PATH", "/no/such/folder", "a folder that exists", "/tmp"),
    ("LOG_PATH", __file__, "is a file and not a folder", str(Path(__file__).parent)),
    ("ALLOWLIST_ADD", "exp|log", "separated by commas", "exp,log"),
    ("CLEARLIST_REMOVE", "exp log", "separated by commas", "exp,log"),
    ("INFERLIST_ADD", "'exp'", "separated by commas", "exp"),
    ("VMODULE", "auto_mixed_precision", "auto_mixed_precision=2", "auto_mixed_precision=2"),
    ("VMODULE", "auto_mixed_precision=", "auto_mixed_precision=2", "auto_mixed_precision=2"),
    ("VMODULE", "auto_mixed_precision=two", "a whole number", "auto_mixed_precision=2"),
    ("VMODULE", "auto_mixed_precision=2=3", "a whole number", "auto_mixed_precision=2"),
]


@pytest.mark.parametrize("prefix", ["TF", "DUOTONE"])
@pytest.mark.parametrize(("suffix", "bad", "says", "good"), BAD_VALUES)
def test_a_bad_value_names_the_variable_the_value_and_what_it_takes(
    prefix, suffix, bad, says, good
):
    tensorflow_name = "TF_CPP_VMODULE" if suffix == "VMODULE" else TF + suffix
    name = tensorflow_name if prefix == "TF" else f"DUOTONE_{suffix}"
    with pytest.raises(EnvironmentVariableError) as caught:
        merge(**{name: bad})
    assert name in str(caught.value)
    assert repr(bad) in str(caught.value)
    assert says in str(caught.value)
    assert f"unset {name}" in str(caught.value)
    assert merge(**{name: good}) is not None
    assert merge() == Policy()


@pytest.mark.parametrize(("bad", "good"), [("tf", "tensorflow"), ("", "duotone")])
def test_a_bad_painter_variable(bad, good):
    says = r"DUOTONE_PAINTER .*duotone, mincut or tensorflow"
    with pytest.raises(EnvironmentVariableError, match=says):
        merge(DUOTONE_PAINTER=bad)
    assert merge(DUOTONE_PAINTER=good).painter == good


def test_a_misspelt_module_in_the_duotone_variable():
    with pytest.raises(EnvironmentVariableError, match="logs is auto_mixed_precision, not 'auto_m"):
        merge(DUOTONE_VMODULE="auto_mixed_precison=2")
    assert merge(DUOTONE_VMODULE="auto_mixed_precision=2").log_decisions


def test_a_bad_value_is_an_error_even_where_code_outranks_it():
    with pytest.raises(EnvironmentVariableError, match="DUOTONE_LEVEL"):
        Policy(level="TENSOR_CORES_ONLY").merged_with_environment({"DUOTONE_LEVEL": "FAST"})


def documented_row(variable: Variable) -> str:
    def code(name: str | None) -> str:
        return f"`{name}`" if name else "none"

    original, old, new = map(code, (variable.original, variable.old, variable.duotone))
    if variable.duotone.endswith(("LIST_ADD", "LIST_REMOVE")):  # the page says once what they do
        return f"| {original} | {old} | {new} | `{variable.example}` |"
    assert variable.old is None
    return f"| {original} | {new} | {variable.takes} | {variable.effect} | `{variable.example}` |"


def test_the_table_in_the_docs_is_the_table_in_the_code():
    page = (Path(__file__).parents[2] / "docs" / "environment.md").read_text(encoding="utf-8")
    page, _, _ = page.partition("## The algorithm of float32")  # what follows has other tables
    rows = [line for line in page.splitlines() if line.startswith(("| `", "| none"))]
    assert rows == [documented_row(variable) for variable in VARIABLES]


CUBLAS, CUDNN = "TF_ENABLE_CUBLAS_TENSOR_OP_MATH_FP32", "TF_ENABLE_CUDNN_TENSOR_OP_MATH_FP32"
NO_CUBLAS, NO_CUDNN = "TF_DISABLE_CUBLAS_TENSOR_OP_MATH", "TF_DISABLE_CUDNN_TENSOR_OP_MATH"
TF32 = "NVIDIA_TF32_OVERRIDE"


@pytest.mark.parametrize(
    ("environ", "dots", "convolutions"),
    [
        ({CUBLAS: "1"}, "float16", None),
        ({CUBLAS: "0"}, None, None),
        ({CUDNN: "true"}, None, "float16"),
        ({NO_CUBLAS: "1"}, "exact", None),
        ({NO_CUDNN: "1"}, None, "exact"),
        ({CUBLAS: "1", NO_CUBLAS: "1"}, "exact", None),
        ({TF32: "0"}, "exact", "exact"),
        ({TF32: "1"}, None, None),
        ({TF32: "anything"}, None, None),
        ({TF32: "0", CUBLAS: "1"}, "float16", "exact"),
        ({CUBLAS: "1", "DUOTONE_FLOAT32_MATH": "tf32"}, "tf32", None),
        ({CUBLAS: "1", "DUOTONE_FLOAT32_MATH": ""}, None, None),
        ({CUBLAS: "maybe", "DUOTONE_FLOAT32_MATH": "tf32"}, "tf32", None),
        ({"TF_ENABLE_CUDNN_RNN_TENSOR_OP_MATH_FP32": "1"}, None, None),
        ({"DUOTONE_FLOAT32_MATH": "TF32"}, "tf32", None),
    ],
    ids=str,
)
def test_float32_math(environ, dots, convolutions):
    policy = Policy().merged_with_environment(environ)
    assert (policy.float32_math, policy.convolution_math) == (dots, convolutions)


def test_code_wins_over_the_math_of_the_environment():
    policy = Policy(float32_math="bfloat16").merged_with_environment({CUBLAS: "1", TF32: "0"})
    assert (policy.float32_math, policy.convolution_math) == ("bfloat16", "exact")


@pytest.mark.parametrize(
    "name", [variable.name for variable in MATH_VARIABLES if variable.name.startswith("TF_")]
)
def test_a_math_variable_that_is_no_truth_value_is_an_error(name):
    with pytest.raises(EnvironmentVariableError, match=f"{name} is 'maybe'.*unset {name}"):
        merge(**{name: "maybe"})
    assert merge(**{name: "0"}) == Policy()


def test_an_arithmetic_that_does_not_exist_is_an_error():
    with pytest.raises(EnvironmentVariableError, match="tf32, float16, bfloat16 or exact"):
        merge(DUOTONE_FLOAT32_MATH="float8")
    with pytest.raises(PolicyError, match="did you mean 'tf32'"):
        make(float32_math="tf23")
    assert Policy(float32_math="tf32").describe() == "policy: float32 math tf32"


def test_the_docs_name_every_math_variable():
    text = Path(__file__).parents[2].joinpath("docs/environment.md").read_text()
    for variable in MATH_VARIABLES:
        assert f"| `{variable.name}` |" in text
