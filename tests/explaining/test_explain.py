"""``explain``: what it takes, what it says, and that it agrees with what ``autocast`` does."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone import Explanation, Policy, _jax, explain
from duotone.errors import (
    ArgumentError,
    ArgumentTypeError,
    PolicyError,
    UnknownOperationError,
)
from duotone.jaxpr.running.inside import same_program
from duotone.jaxpr.running.jaxprs import programs_in
from duotone.precision.rules import Rule

X, W = np.ones((12, 8), np.float32), np.ones((8, 16), np.float32)


def _model(x: Any, w: Any) -> Any:
    with jax.named_scope("layer"):
        h = jax.nn.relu(x @ w)
    with jax.named_scope("head"):
        return jnp.sum(jnp.exp(h))


def _by_name(seen: Explanation) -> dict[str, Any]:
    return {operation.operation: operation for operation in seen.operations}


def test_it_says_what_where_and_why() -> None:
    ops = _by_name(explain(_model, X, W, dtype="float16"))
    dot, exp = ops["dot_general"], ops["exp"]
    assert (dot.paint, dot.rule, dot.scope, dot.list) == ("half", "allow", "layer", "allow")
    assert (exp.paint, exp.rule, exp.scope, exp.list) == ("full", "deny", "head", "deny")
    assert dot.shape == ("12", "16")
    assert "accumulates in float32" in dot.reason
    assert "overflows" in exp.reason
    assert dot.flops == 2 * 12 * 8 * 16
    assert dot.bytes * 2 == dot.bytes_full


def test_the_source_is_the_user_s_line() -> None:
    dot = _by_name(explain(_model, X, W, dtype="float16"))["dot_general"]
    file, line = dot.source.split(" ")[0].split(":")[:2]
    assert Path(file).name == Path(__file__).name
    assert "x @ w" in Path(__file__).read_text().splitlines()[int(line) - 1]


def test_every_rule_is_one_that_is_explained() -> None:
    for operation in explain(jax.grad(_model), X, W, dtype="bfloat16").operations:
        assert operation.reason.startswith(Rule(operation.rule).words)


def test_shapes_instead_of_arrays() -> None:
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (X, W)]
    assert explain(_model, *shapes, dtype="float16") == explain(_model, X, W, dtype="float16")


def test_keyword_arguments_and_static_ones() -> None:
    def model(x: Any, *, weights: Any, activation: str) -> Any:
        return getattr(jnp, activation)(x @ weights["w"])

    whole = functools.partial(model, weights={"w": W})
    seen = explain(whole, X, activation="tanh", dtype="float16")
    assert [o.operation for o in seen.operations] == ["dot_general", "tanh"]
    with pytest.raises(ArgumentTypeError, match=r"functools\.partial\(fn, weights=\.\.\.\)"):
        explain(model, X, weights={"w": W}, activation="tanh", dtype="float16")


def test_it_runs_nothing() -> None:
    def model(x: Any) -> Any:
        return jax.pure_callback(lambda x: 1 / 0, jax.ShapeDtypeStruct((), jnp.float32), x)

    (callback,) = explain(model, X, dtype="float16").operations
    assert (callback.operation, callback.rule) == ("pure_callback", "fixed")


def test_without_a_dtype_it_is_for_the_device_or_for_bfloat16() -> None:
    assert explain(_model, X, W).summary.half_dtype in ("float16", "bfloat16")


def test_it_agrees_with_what_runs() -> None:
    """Each dot that is said to be half is half in the program, and no other."""
    seen = explain(_model, X, W, dtype="float16")
    text = str(jax.make_jaxpr(duotone.autocast(_model, dtype="float16"))(X, W))
    assert text.count("preferred_element_type=float16") == seen.summary.allow_half == 1
    assert text.count("new_dtype=float16") == sum(c.to == "float16" for c in seen.casts)


def test_what_is_recomputed_shows() -> None:
    def loss(w: Any, x: Any) -> Any:
        return jnp.sum((jax.nn.gelu(x @ w) @ w.T) ** 2)

    gradient = jax.grad(loss)
    seen = explain(gradient, W, X, dtype="float16")
    again = [o.operation for o in seen.operations if "recompute" in dict(o.optimizations)]
    assert again.count("tanh") == 1
    assert len(again) == seen.summary.optimizations["recompute"]
    text = str(jax.make_jaxpr(duotone.autocast(gradient, dtype="float16"))(W, X))
    assert text.count("= tanh") == 2
    assert text.count("optimization_barrier") >= 1
    assert "recompute" not in explain(loss, W, X, dtype="float16").summary.optimizations
    reference = Policy(painter="tensorflow")
    seen = explain(gradient, W, X, dtype="float16", policy=reference)
    assert "recompute" not in seen.summary.optimizations


def test_policies_show() -> None:
    def rule_of(policy: Policy, operation: str = "exp") -> tuple[str, str]:
        found = _by_name(explain(_model, X, W, dtype="float16", policy=policy))[operation]
        return found.paint, found.rule

    assert rule_of(Policy(infer_add=["exp"])) == ("full", "full_readers")
    assert rule_of(Policy(clear_add=["exp"])) == ("half", "downstream")
    assert rule_of(Policy(deny_remove=["exp"])) == ("full", "unlisted")
    assert rule_of(Policy(keep_half=["head/*"])) == ("half", "pinned")
    assert rule_of(Policy(keep_full=["layer/*"]), "dot_general") == ("full", "pinned")
    assert rule_of(Policy(deny_add=["dot_general"]), "dot_general") == ("full", "deny")
    assert rule_of(Policy(level="UNSAFE_FORCE_ALL")) == ("half", "allow")
    assert rule_of(Policy(painter="tensorflow")) == ("full", "deny")


def test_patterns_that_disagree_name_the_user_s_line() -> None:
    with pytest.raises(PolicyError, match=r"exp in scope 'head' at .*test_explain\.py"):
        explain(
            _model, X, W, dtype="float16", policy=Policy(keep_full=["*exp"], keep_half=["head/*"])
        )


def test_it_takes_a_calibration_as_autocast_does() -> None:
    measured = duotone.calibrate(_model, [(X * 300, W)])
    plain = explain(_model, X, W, dtype="float16")
    seen = explain(_model, X, W, dtype="float16", calibration=measured)
    assert seen == explain(_model, X, W, dtype="float16", policy=Policy(calibration=measured))
    assert seen != plain
    fast = duotone.autocast(_model, dtype="float16", policy=Policy(keep_full=["layer/max"]))
    both = Policy(keep_full=["layer/max"], calibration=measured)
    want = explain(_model, X, W, dtype="float16", policy=both)
    assert explain(fast, X, W, calibration=measured) == want


def test_it_takes_weights_as_autocast_does() -> None:
    def predict(weights: Any, x: Any) -> Any:
        return jnp.exp(x @ weights["w"])

    weights = {"w": W}
    fast = duotone.autocast(predict, dtype="float16", weights=weights)
    seen = explain(predict, X, dtype="float16", weights=weights)
    assert seen == explain(fast, X) != explain(predict, weights, X, dtype="float16")
    record = duotone.cast_params(predict, weights, X, dtype="float16")
    assert explain(predict, X, weights=record) == seen
    measured = duotone.calibrate(predict, [(weights, X * 1e3)])
    policy = Policy(keep_full=["*exp"])
    record = duotone.cast_params(predict, weights, X, dtype="float16", policy=policy)
    mixed = duotone.autocast(predict, weights=record, calibration=measured)
    assert explain(mixed, X) == explain(predict, X, weights=record, calibration=measured)
    assert _by_name(explain(mixed, X))["exp"].rule == "pinned", "the policy of the record holds"


def _unmatched(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "matches no operation" in r.getMessage()]


@pytest.mark.parametrize("field", ["keep_full", "keep_half"])
@pytest.mark.parametrize("pattern", ["*/hedd/*", "*/head/*", "head/expp", "*expp"])
def test_a_pattern_that_matches_nothing_is_logged_once(
    pattern: str, field: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duotone.jaxpr.policy_of_program._LOGGED", set())
    policy = Policy().replace(**{field: [pattern, "layer/*"]})
    for _ in range(2):
        explain(_model, X, W, dtype="float16", policy=policy)
        duotone.autocast(_model, dtype="float16", policy=policy)(X, W)
    (said,) = _unmatched(caplog)
    assert said.startswith(f"Policy({field}=[{pattern!r}]) matches no operation")
    near = said.partition("the nearest is '")[2].partition("'")[0]
    caplog.clear()
    seen = explain(_model, X, W, dtype="float16", policy=Policy().replace(**{field: [near]}))
    assert any(o.rule == "pinned" for o in seen.operations)
    assert not _unmatched(caplog)


def test_a_pattern_like_no_name_is_logged_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duotone.jaxpr.policy_of_program._LOGGED", set())
    explain(_model, X, W, dtype="float16", policy=Policy(keep_full=["zzzz"]))
    assert "of this function. A name is" in _unmatched(caplog)[0]


def test_regions_and_derivative_rules_log_no_pattern(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duotone.jaxpr.policy_of_program._LOGGED", set())

    def model(x: Any, w: Any) -> Any:
        with jax.named_scope("first"), duotone.keep_full():
            x = x @ w
        with duotone.keep_half():
            return jnp.sum(jax.nn.silu(x))  # has a derivative of its own

    mixed = duotone.autocast(model, dtype="float16", policy=Policy(keep_full=["first/*"]))
    assert jax.grad(mixed)(X, W).shape == X.shape
    assert not _unmatched(caplog)


@pytest.mark.parametrize("dtype", ["float32", "fp32", jnp.float32, np.dtype("float32")])
def test_float32_is_off(dtype: Any) -> None:
    seen = explain(_model, X, W, dtype=dtype)
    assert {(o.paint, o.stored, o.rule) for o in seen.operations} == {("full", "full", "off")}
    assert (seen.summary.half_dtype, seen.summary.casts_inserted) == ("float32", 0)
    assert seen == explain(duotone.autocast(_model, dtype="half", enabled=False), X, W)
    assert _by_name(seen)["dot_general"].list == "allow"
    assert explain(duotone.autocast(_model, dtype=dtype), X, W, dtype="half").summary.allow_half


def test_json_is_the_record() -> None:
    seen = explain(_model, X, W, dtype="float16")
    data = json.loads(seen.to_json())
    assert len(data["operations"]) == len(seen.operations)
    assert data["summary"]["casts_inserted"] == len(data["casts"]) == seen.summary.casts_inserted
    assert data["summary"]["half_dtype"] == "float16"


def test_print_is_an_overview() -> None:
    text = str(explain(_model, X, W, dtype="float16"))
    for part in ("scope", "full by", "layer", "FLOPs in half"):
        assert part in text


def test_a_primitive_with_a_program_next_to_other_objects() -> None:
    """Equinox puts all that is static of a call into one tuple: jaxprs, strings, objects."""
    holder = _jax.Primitive("holder")
    holder.def_impl(lambda x, **_: x)
    holder.def_abstract_eval(lambda x, **_: x)
    _jax.mlir.register_lowering(
        holder, _jax.mlir.lower_fun(lambda x, **_: x, multiple_results=False)
    )
    program = jax.make_jaxpr(jnp.sin)(1.0)

    def loss(x: Any) -> Any:
        return holder.bind(x @ x, static=("name", (object(), program), program))

    x = np.ones((8, 8), np.float32)
    seen = explain(loss, x, dtype="bfloat16", policy=Policy(ignore_performance=True))
    assert [o.paint for o in seen.operations if o.operation == "dot_general"] == ["half"]
    (eqn,) = [e for e in jax.make_jaxpr(loss)(x).eqns if e.primitive is holder]
    assert list(programs_in(eqn)) == [program, program]
    assert same_program(jax.make_jaxpr(loss)(x), jax.make_jaxpr(loss)(x))


def test_an_empty_function() -> None:
    seen = explain(lambda x: x, X, dtype="float16")
    assert (seen.operations, seen.casts) == ((), ())
    assert "0 of 0 operations in half" in str(seen)


@pytest.mark.parametrize(
    ("function", "arguments", "error", "message"),
    [
        (3, {}, ArgumentTypeError, "explain: fn is 3, which is not callable"),
        (_model, {"dtype": "float64"}, ArgumentError, "explain: dtype is float64"),
        (_model, {"dtype": "float8_e4m3fn"}, ArgumentError, "not a half type"),
        (_model, {"dtype": "half-ish"}, ArgumentTypeError, "which is not a dtype"),
        (_model, {"policy": "fast"}, ArgumentTypeError, r"pass a duotone\.Policy"),
        (
            _model,
            {"policy": Policy(deny_add=["expp"])},
            UnknownOperationError,
            "expp",
        ),
    ],
)
def test_bad_arguments(function: Any, arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        explain(function, X, W, **arguments)
