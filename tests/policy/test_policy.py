"""Policy as a value, and every error it raises with the advice in it followed."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import duotone
from duotone.errors import (
    ArgumentTypeError,
    DuotoneError,
    EnvironmentVariableError,
    PolicyError,
    PolicyTypeError,
    UnknownOperationError,
)
from duotone.policy.calibration import Calibration
from duotone.policy.environment import LEVELS
from duotone.policy.policy import LIST_FIELDS, LISTS, PATTERN_FIELDS, Policy
from duotone.precision.removable import REMOVABLE

TF = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
KNOWN = frozenset({"dot_general", "exp", "log", "tanh", "reduce_sum", "scatter-add", "div", "sub"})


def make(**fields: Any) -> Policy:
    """A policy from arguments that a type checker would not let through."""
    return Policy(**fields)


def merge(**environ: str) -> Policy:
    return Policy().merged_with_environment(environ)


def test_equal_policies_hash_alike_whatever_collection_they_were_given():
    given: list[Any] = [["exp", "log"], ("log", "exp"), {"exp", "log"}, iter(["exp", "log", "exp"])]
    policies = [Policy(deny_add=names) for names in given]
    assert len(set(policies)) == 1
    assert policies[0].deny_add == frozenset({"exp", "log"})
    assert policies[0] != Policy(deny_remove=["exp", "log"])


def test_patterns_keep_their_order_once_each_and_sets_are_sorted():
    assert Policy(keep_full=["b", "a", "b"]).keep_full == ("b", "a")
    assert Policy(keep_half={"c", "a", "b"}).keep_half == ("a", "b", "c")


def test_a_policy_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().level = "UNSAFE_FORCE_ALL"  # pyright: ignore[reportAttributeAccessIssue]


def test_arguments_are_keyword_only():
    with pytest.raises(TypeError):
        Policy("duotone")  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
)
def test_copies_are_equal_and_remember_where_entries_came_from(copied, tmp_path):
    policy = Policy(painter="tensorflow", keep_full=["*/x"], log_path=tmp_path)
    policy = policy.merged_with_environment({"DUOTONE_DENYLIST_ADD": "nonsense"})
    reference = copied(policy)
    assert reference == policy
    assert hash(reference) == hash(policy)
    with pytest.raises(UnknownOperationError, match="DUOTONE_DENYLIST_ADD"):
        reference.check_names(KNOWN)


def test_origin_is_not_part_of_the_value():
    merged = merge(DUOTONE_DENYLIST_ADD="tanh", DUOTONE_LEVEL="TENSOR_CORES_ONLY")
    written = Policy(deny_add=["tanh"], level="TENSOR_CORES_ONLY")
    assert merged == written
    assert hash(merged) == hash(written)
    assert repr(merged) == repr(written)


def test_log_path_is_a_folder_made_absolute(tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    monkeypatch.chdir(tmp_path)
    policy = Policy(log_path="logs")
    assert policy.log_path == tmp_path / "logs"
    assert policy == Policy(log_path=tmp_path / "logs")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Policy(log_path="~/logs") == policy
    assert merge(DUOTONE_LOG_PATH="~/logs") == policy


def test_replace_checks_like_a_new_policy_and_forgets_nothing():
    policy = merge(DUOTONE_ALLOWLIST_ADD="nonsense", DUOTONE_CLEARLIST_ADD="rubbish")
    changed = policy.replace(painter="tensorflow", clear_add=["rubbish"])
    assert changed.painter == "tensorflow"
    with pytest.raises(UnknownOperationError) as caught:
        changed.check_names(KNOWN)
    assert "'nonsense' in environment variable DUOTONE_ALLOWLIST_ADD" in str(caught.value)
    assert "'rubbish' in Policy(clear_add=...)" in str(caught.value)
    with pytest.raises(PolicyError, match="DUOTONE_ALLOWLIST_ADD and by Policy"):
        policy.replace(deny_add=["nonsense"])


def test_describe_names_everything_that_is_not_default(tmp_path):
    policy = Policy(
        painter="tensorflow",
        level="TREAT_INFER_AS_DENY",
        ignore_performance=True,
        allow_add=["exp"],
        deny_remove=["pow", "log"],
        keep_full=["*/a/*", "*/b"],
        keep_half=["*/c"],
        log_path=tmp_path,
    ).merged_with_environment({"TF_CPP_VMODULE": "auto_mixed_precision=2"})
    assert policy.describe() == (
        "policy: painter tensorflow; level TREAT_INFER_AS_DENY; rewrites also where half is not "
        "faster; allow list + exp; deny list - log, pow; keeps full */a/*, */b; keeps half */c; "
        f"writes graphs to {tmp_path}; logs decisions (partly from TF_CPP_VMODULE)"
    )


def test_describe_has_a_phrase_for_every_field(tmp_path):
    values = {
        "painter": "tensorflow",
        "level": "UNSAFE_FORCE_ALL",
        "rules_remove": ["solve"],
        "optimizations_remove": ["factors"],
        "float32_math": "tf32",
        "convolution_math": "exact",
        "reduce_dtype": "float32",
        "segment_sums": "half",
        "ranges": {"x": (0, 1)},
        "calibration": Calibration("f", "0", 1, ()),
        "log_path": tmp_path,
    }
    for field in dataclasses.fields(Policy):
        if not field.name.startswith("_"):
            is_list = field.name in LIST_FIELDS + PATTERN_FIELDS
            value = ["exp"] if is_list else values.get(field.name, True)
            assert make(**{field.name: value}).describe() != Policy().describe(), field.name


def test_an_optimization_that_there_is_not_is_named_with_the_nearest():
    with pytest.raises(
        PolicyError, match=r"'factor': there is no such optimization to .*mean 'factors'"
    ):
        Policy(optimizations_remove=["factor"])
    with pytest.raises(
        EnvironmentVariableError, match=r"OPTIMIZATIONS_REMOVE.*'pick' is.*mean 'picks'"
    ):
        merge(DUOTONE_OPTIMIZATIONS_REMOVE="factors,pick")
    environ = {"DUOTONE_OPTIMIZATIONS_REMOVE": "factors, materialize_parts"}
    merged = Policy(optimizations_remove=["picks"]).merged_with_environment(environ)
    assert merged.optimizations_remove == {"picks", "factors", "materialize_parts"}
    assert "without factors, materialize_parts, picks" in merged.describe()


def test_a_missing_log_folder_can_be_made_as_the_message_says(tmp_path):
    folder = tmp_path / "a" / "b"
    for attempt in (lambda: Policy(log_path=folder), lambda: merge(DUOTONE_LOG_PATH=str(folder))):
        with pytest.raises(DuotoneError) as caught:
            attempt()
        assert f"mkdir -p {folder}" in str(caught.value)
    folder.mkdir(parents=True)
    assert Policy(log_path=folder) == merge(DUOTONE_LOG_PATH=str(folder))


@pytest.mark.parametrize(
    ("bad", "error", "says", "good"),
    [
        (
            {"painter": "tf"},
            PolicyError,
            "'duotone', 'mincut', 'tensorflow'",
            {"painter": "tensorflow"},
        ),
        (
            {"painter": None},
            PolicyError,
            "'duotone', 'mincut', 'tensorflow'",
            {"painter": "duotone"},
        ),
        ({"segment_sums": "hlf"}, PolicyError, "did you mean 'half'?", {"segment_sums": "half"}),
        ({"level": "FAST"}, PolicyError, "'UNSAFE_FORCE_ALL' or None", {"level": None}),
        (
            {"level": "tensor_core_only"},
            PolicyError,
            "did you mean 'TENSOR_CORES_ONLY'?",
            {"level": "TENSOR_CORES_ONLY"},
        ),
        ({"level": ["TENSOR_CORES_ONLY"]}, PolicyError, "it takes", {"level": LEVELS[0]}),
        (
            {"ignore_performance": 1},
            PolicyTypeError,
            "True or False",
            {"ignore_performance": True},
        ),
        ({"log_decisions": "0"}, PolicyTypeError, "True or False", {"log_decisions": False}),
        (
            {"compiler_options": "off"},
            PolicyTypeError,
            "True, False or None",
            {"compiler_options": False},
        ),
        ({"log_path": 3}, PolicyTypeError, "the path of a folder", {"log_path": "/tmp"}),
        ({"log_path": ""}, PolicyError, "None for no files", {"log_path": None}),
        ({"log_path": __file__}, PolicyError, "not a folder", {"log_path": Path(__file__).parent}),
    ],
)
def test_a_bad_scalar(bad, error, says, good):
    with pytest.raises(error) as caught:
        make(**bad)
    assert f"Policy({next(iter(bad))}=" in str(caught.value)
    assert says in str(caught.value)
    make(**good)


@pytest.mark.parametrize("field", LIST_FIELDS + PATTERN_FIELDS)
def test_a_bare_string_is_not_a_list(field):
    for bare in ("exp", b"exp"):
        with pytest.raises(PolicyTypeError) as caught:
            make(**{field: bare})
        advised = re.search(r"Write (Policy\(.*\))\.", str(caught.value))
        assert advised is not None
        assert eval(advised[1]) == make(**{field: ["exp"]})


@pytest.mark.parametrize("field", LIST_FIELDS + PATTERN_FIELDS)
def test_bad_entries_of_a_list(field):
    with pytest.raises(
        PolicyTypeError, match=rf"Policy\({field}=5\): it takes a list, tuple or set"
    ):
        make(**{field: 5})
    with pytest.raises(PolicyTypeError, match=rf"Policy\({field}=...\) holds None"):
        make(**{field: ["exp", None]})
    for empty in ("", "  "):
        with pytest.raises(PolicyError, match=r"empty string .*: leave it out"):
            make(**{field: ["exp", empty]})
    make(**{field: ["exp"]})


def test_a_primitive_is_named_by_its_name():
    with pytest.raises(PolicyTypeError, match=r"a primitive by its \.name"):
        make(deny_add=[jax.lax.exp_p])
    assert make(deny_add=[jax.lax.exp_p.name]).deny_add == {"exp"}


def test_errors_are_also_the_built_in_ones():
    assert issubclass(PolicyTypeError, (PolicyError, ArgumentTypeError))
    with pytest.raises(TypeError):
        make(deny_add="exp")
    with pytest.raises(ValueError, match="it takes"):
        make(painter="tf")


@pytest.mark.parametrize(
    ("one", "other"), [(a, b) for i, a in enumerate(LISTS) for b in LISTS[i + 1 :]]
)
def test_an_operation_added_to_two_lists(one, other):
    edits = {f"{one}_add": ["exp", "log"], f"{other}_add": ["exp", "abs"]}
    with pytest.raises(PolicyError) as caught:
        make(**edits)
    assert "'exp' is added to more than one list" in str(caught.value)
    assert f"Policy({one}_add=...) and by Policy({other}_add=...)" in str(caught.value)
    make(**{**edits, f"{other}_add": ["abs"]})  # "keep it in one of these only"


@pytest.mark.parametrize("which", LISTS)
def test_an_operation_added_to_and_removed_from_one_list(which):
    edits = {f"{which}_add": ["exp", "log"], f"{which}_remove": ["exp"]}
    with pytest.raises(PolicyError) as caught:
        make(**edits)
    assert f"'exp' is both added to the {which} list and removed" in str(caught.value)
    assert f"Policy({which}_add=...) and by Policy({which}_remove=...)" in str(caught.value)
    make(**{**edits, f"{which}_add": ["log"]})  # "drop it from one of these"
    make(**{**edits, f"{which}_remove": []})


def test_moving_an_operation_is_no_conflict():
    Policy(allow_add=["exp"], deny_remove=["exp"], infer_remove=["exp"])


def test_a_pattern_kept_both_ways():
    with pytest.raises(PolicyError, match=r"'\*/b' is in Policy\(keep_full=...\) and in Policy\(k"):
        Policy(keep_full=["*/a", "*/b"], keep_half=["*/b"])
    Policy(keep_full=["*/a", "*/b"])
    Policy(keep_full=["*/a", "*/b"], keep_half=["*/b/c"])


def test_code_and_environment_contradict_each_other():
    with pytest.raises(PolicyError) as caught:
        Policy(allow_add=["exp"]).merged_with_environment({f"{TF}BLACKLIST_ADD": "exp"})
    says = f"Policy(allow_add=...) and by environment variable {TF}BLACKLIST_ADD"
    assert says in str(caught.value)
    Policy(allow_add=["exp"]).merged_with_environment({f"{TF}BLACKLIST_ADD": ""})
    Policy().merged_with_environment({f"{TF}BLACKLIST_ADD": "exp"})


def test_two_variables_contradict_each_other():
    environ = {f"{TF}ALLOWLIST_ADD": "exp", f"{TF}WHITELIST_REMOVE": "exp"}
    with pytest.raises(PolicyError) as caught:
        merge(**environ)
    assert " and by ".join(f"environment variable {name}" for name in environ) in str(caught.value)
    for name, value in environ.items():
        merge(**{name: value})


def test_replace_with_a_name_that_is_no_field():
    with pytest.raises(PolicyTypeError, match="did you mean 'keep_full'"):
        Policy().replace(keepfull=["*"])
    with pytest.raises(PolicyTypeError, match="it has painter, level, ignore_performance"):
        Policy().replace(zzz=1)
    with pytest.raises(PolicyTypeError, match="'_origins'"):
        Policy().replace(_origins=())
    assert Policy().replace(keep_full=["*"]).keep_full == ("*",)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"keep_ful": ["a"]}, "no field 'keep_ful': did you mean 'keep_full'"),
        ({"deny": ["exp"]}, "did you mean 'deny_add'"),
        ({"colour": 1}, "no field 'colour': it has painter, level"),
    ],
)
def test_a_misspelt_field_is_named_with_the_nearest(fields: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        Policy(**fields)
    with pytest.raises(PolicyTypeError, match=says):
        Policy().replace(**fields)


def test_a_field_by_position_says_how_to_write_it() -> None:
    wrong: Any = Policy
    with pytest.raises(TypeError, match="takes its fields by name"):
        wrong(["exp"])


def test_a_painter_of_saved_graphs_is_an_error_for_functions():
    policy = Policy(painter="mincut")
    with pytest.raises(PolicyError, match=r"saved graphs \(duotone rewrite\).*DUOTONE_PAINTER"):
        duotone.explain(lambda x: x @ x, np.ones((8, 8), np.float32), policy=policy)


def test_rules_are_switched_off_by_name():
    x = np.ones((64, 64), np.float32)

    def ridge(z, y):
        return jax.numpy.linalg.solve(z.T @ z, z.T @ y)

    def dots(policy):
        seen = duotone.explain(ridge, x, x, dtype="float16", policy=policy)
        return [(o.paint, o.rule) for o in seen.operations if o.operation == "dot_general"][:2]

    assert dots(Policy()) == [("full", "solve")] * 2
    assert {paint for paint, _ in dots(Policy(rules_remove=["solve"]))} == {"half"}
    assert dots(merge(DUOTONE_RULES_REMOVE="solve")) == dots(Policy(rules_remove=["solve"]))


def test_a_step_of_the_painter_is_switched_off_by_name():
    x = np.ones((16, 16), np.float32)

    def network(x, w, bias):
        return (x @ w + bias) @ w

    def rules(policy):
        seen = duotone.explain(network, x, x, x[0], dtype="float16", policy=policy)
        return {o.operation: o.rule for o in seen.operations}

    assert rules(Policy())["add"] == "mixed"
    assert rules(Policy(rules_remove=["mixed"]))["add"] == "downstream"


@pytest.mark.parametrize("name", ["solv", "taint", "picks"])
def test_a_rule_that_cannot_be_switched_off_is_named(name):
    with pytest.raises(PolicyError, match=f"names {name!r}: there is no such rule to switch off"):
        Policy(rules_remove=[name])


@pytest.mark.parametrize("name", REMOVABLE["rules_remove"])
def test_a_program_is_painted_without_any_one_rule(name):
    x = np.ones((16, 16), np.float32)
    policy = Policy(rules_remove=[name])
    step = jax.grad(lambda w, x: (jax.nn.softmax(jax.nn.gelu(x @ w) @ w) ** 2).sum())
    full = step(x, x)
    got = duotone.autocast(step, dtype="bfloat16", policy=policy)(x, x)
    assert np.allclose(got, full, atol=1e-3)
