"""``duotone.tune`` and ``Policy(tuned=...)``: what is tried, what is kept, what it counts for."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import duotone
from duotone import _by_policy, _tuning
from duotone.errors import (
    ArgumentError,
    ArgumentTypeError,
    CompilationError,
    PolicyTypeError,
    TuningError,
)
from duotone.targets.specifications import find_target

W = jnp.ones((16, 32)) / 8
X = jnp.linspace(-1.0, 1.0, 8 * 16).reshape(8, 16)
SHAPES = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (W, X)]


def loss(w: Any, x: Any) -> Any:
    """Two layers whose activation is recomputed on a GPU."""
    with jax.named_scope("layer_0"):
        x = jax.nn.gelu(x @ w)
    with jax.named_scope("layer_1"):
        return jnp.mean(jax.nn.gelu(x @ w.T))


STEP = jax.value_and_grad(loss)


def judged(monkeypatch: pytest.MonkeyPatch, cost: Callable[[Any], tuple[float, float, int]]) -> Any:
    """Puts a made-up compiler in place; ``cost`` gives seconds, bytes and memory of a choice."""
    seen = []

    def compile_for(painted: Any, *args: Any, target: Any, **kwargs: Any) -> Any:
        tuned = duotone.api.settings_of(painted).policy.tuned
        seen.append(tuned)
        return SimpleNamespace(
            **dict(zip(("seconds", "bytes", "temporary_bytes"), cost(tuned), strict=True))
        )

    monkeypatch.setattr(_tuning, "compile_for", compile_for)
    return seen


def test_what_costs_less_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = judged(monkeypatch, lambda t: (9.0 if "recompute" in t.reforms else 8.0, 1.0, 5))
    found = duotone.tune(STEP, *SHAPES, target="h200")
    assert "recompute" not in found.reforms
    assert [trial.change for trial in found.trials if trial.kept] == [
        _tuning.OWN,
        "without recompute",
    ]
    assert len({(t.reforms, t.keep_full) for t in seen}) == len(seen)
    assert "weight_gradients" in found.reforms
    assert all("weight_gradients" in t.reforms for t in seen)


def test_nothing_is_kept_that_needs_more_memory_or_gains_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cost(tuned: Any) -> tuple[float, float, int]:
        own = "recompute" in tuned.reforms
        return (9.0 if own else 8.0) - 1e-6 * len(tuned.reforms), 1.0, 5 if own else 6

    judged(monkeypatch, cost)
    found = duotone.tune(STEP, *SHAPES, target="h200")
    assert [trial.change for trial in found.trials if trial.kept] == [_tuning.OWN]


def test_bytes_may_be_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, lambda t: (1.0, 2.0 if "recompute" in t.reforms else 1.0, 5))
    assert "recompute" in duotone.tune(STEP, *SHAPES, target="h200").reforms
    found = duotone.tune(STEP, *SHAPES, target="h200", by="bytes")
    assert "recompute" not in found.reforms


def test_changes_are_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    """What gains only after another change is found too."""

    def cost(tuned: Any) -> tuple[float, float, int]:
        second = "trilinear" in tuned.reforms
        first = "recompute" not in tuned.reforms
        return 9.0 - first - (second and first) + (second and not first), 1.0, 5

    judged(monkeypatch, cost)
    found = duotone.tune(STEP, *SHAPES, target="h200")
    assert "recompute" not in found.reforms
    assert "trilinear" in found.reforms


def test_no_compilation_is_begun_that_would_end_late(monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, lambda _: (1.0, 1.0, 5))
    search = _tuning.Search(STEP, tuple(SHAPES), {}, find_target("h200"), None, None, "seconds")
    left = iter([10.0, 6.0, 5.0, 3.0])  # the first takes 4 s, the second 2 s; 3 s are left … then 1
    remaining = [10.0]

    def clock() -> float:
        remaining[0] = next(left, 1.0)
        return remaining[0]

    assert len(list(search.trials(clock))) < 1 + len(search.changes)


def test_a_refused_change_is_no_error_and_a_refused_program_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cost(tuned: Any) -> tuple[float, float, int]:
        if "recompute" not in tuned.reforms:
            raise CompilationError("refused")
        return 1.0, 1.0, 1

    judged(monkeypatch, cost)
    found = duotone.tune(STEP, *SHAPES, target="h200")
    (refused,) = [trial for trial in found.trials if trial.bytes is None]
    assert refused.change == "without recompute"
    assert "refused" in str(found)

    def never(_: Any) -> tuple[float, float, int]:
        raise CompilationError("refused")

    judged(monkeypatch, never)
    with pytest.raises(CompilationError, match="refused"):
        duotone.tune(STEP, *SHAPES, target="h200")


def test_the_cpu_compiles_in_earnest_and_the_policy_paints_alike(tmp_path: Path) -> None:
    found = duotone.tune(STEP, *SHAPES, target="cpu", dtype="float16", minutes=0.2)
    assert found.trials[0].change == _tuning.OWN
    assert (found.trials[0].bytes or 0) > 0
    file = tmp_path / "tuned.json"
    found.save(file)
    assert duotone.Tuned.load(file) == found
    painted = duotone.autocast(STEP, dtype="float16", policy=duotone.Policy(tuned=file))
    value, gradient = painted(W, X)
    exact, direction = STEP(W, X)
    assert jnp.allclose(value, exact, rtol=1e-2)
    assert jnp.allclose(gradient, direction, atol=1e-3)


def _tuned_for_gpu(**changes: Any) -> duotone.Tuned:
    search = _tuning.Search(STEP, tuple(SHAPES), {}, find_target("h200"), None, None, "bytes")
    return dataclasses.replace(search.best, **changes)


def test_it_counts_for_its_program_type_and_device(caplog: pytest.LogCaptureFixture) -> None:
    tuned = _tuned_for_gpu(keep_full=("layer_*0/*",))
    tuned = dataclasses.replace(tuned, reforms=tuned.reforms - {"recompute"})
    policy = duotone.Policy(tuned=tuned)
    _by_policy._UNTUNED.clear()

    def reforms_of(step: Any, half: str, target: str) -> set[str]:
        seen = duotone.compiled.assuming(find_target(target).device())
        with seen:
            record = duotone.explain(step, W, X, dtype=half, policy=policy)
        assert ("pinned" in {o.rule for o in record.operations}) == (
            "recompute" not in {n for o in record.operations for n, _ in o.reforms}
            and (step, half, target) == (STEP, "bfloat16", "h200")
        )
        return {name for o in record.operations for name, _ in o.reforms}

    with caplog.at_level(logging.WARNING, logger="duotone"):
        assert "recompute" not in reforms_of(STEP, "bfloat16", "h200")
        assert not caplog.records
        assert "recompute" in reforms_of(STEP, "float16", "h200")
        assert "recompute" in reforms_of(STEP, "float16", "h200")
    (said,) = caplog.records
    assert "is for loss on GPU in bfloat16" in said.getMessage()


def test_another_function_is_painted_without_it() -> None:
    policy = duotone.Policy(tuned=_tuned_for_gpu(reforms=frozenset()))

    def other(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w)

    plain = duotone.explain(other, W, X, dtype="float16")
    tuned = duotone.explain(other, W, X, dtype="float16", policy=policy)
    assert (tuned.operations, tuned.casts) == (plain.operations, plain.casts)


def test_classes_of_scopes_move_together() -> None:
    record = duotone.explain(STEP, W, X, dtype="bfloat16")
    record = dataclasses.replace(
        record,
        operations=tuple(
            dataclasses.replace(o, scope=f"net/block{o.index % 3}/mlp" if o.index % 2 else "")
            for o in record.operations
        ),
    )
    assert "net/block*/mlp/*" in _tuning._scopes(record)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"minutes": 0}, ArgumentError, "minutes is 0"),
        ({"minutes": "10"}, ArgumentTypeError, "pass a number"),
        ({"by": "memory"}, ArgumentError, "'seconds' or 'bytes'"),
        ({"target": "h2000"}, ArgumentError, "h200"),
        ({"target": "v100", "dtype": None}, ArgumentError, None),
    ],
)
def test_bad_arguments(change: dict[str, Any], error: Any, message: str | None) -> None:
    if message is None:  # a device on which no half type is fast
        change, message = {"target": "cpu", "policy": duotone.Policy()}, "name one with dtype="
        if _tuning.Forms("tune", STEP, tuple(SHAPES), {}, None, None).half(find_target("cpu")):
            change, message = {"minutes": -1, "target": "cpu"}, "minutes is -1"
    with pytest.raises(error, match=message):
        duotone.tune(STEP, *SHAPES, **{"target": "h200", **change})


def test_what_holds_rewritten_parts_or_is_tuned_is_refused() -> None:
    inside = jax.grad(duotone.autocast(loss, dtype="bfloat16"))
    with pytest.raises(ArgumentError, match="rewrites already"):
        duotone.tune(inside, *SHAPES, target="h200")
    with pytest.raises(ArgumentError, match="tuned already"):
        duotone.tune(STEP, *SHAPES, target="h200", policy=duotone.Policy(tuned=_tuned_for_gpu()))


def test_a_file_that_is_no_tuning(tmp_path: Path) -> None:
    file = tmp_path / "tuned.json"
    with pytest.raises(TuningError, match="No such file"):
        duotone.Policy(tuned=file)
    whole = _tuned_for_gpu()
    whole.save(file)
    data = json.loads(file.read_text())
    for text, message in [
        ("{", "not JSON"),
        ("[]", "does not say"),
        (json.dumps(data | {"version": 9}), "version 9"),
        (json.dumps(data | {"reforms": ["recompte"]}), "no reform is called recompte"),
        (json.dumps(data | {"keep_full": "x"}), "damaged"),
        (json.dumps({k: v for k, v in data.items() if k != "half"}), "damaged"),
    ]:
        file.write_text(text)
        with pytest.raises(TuningError, match=message):
            duotone.Tuned.load(file)
    with pytest.raises(PolicyTypeError, match="tuned"):
        duotone.Policy(tuned=3)  # pyright: ignore[reportArgumentType]


def test_a_policy_file_names_it_relative_to_itself(tmp_path: Path) -> None:
    whole = _tuned_for_gpu()
    whole.save(tmp_path / "tuned.json")
    (tmp_path / "policy.toml").write_text('tuned = "tuned.json"\n')
    policy = duotone.Policy.from_file(tmp_path / "policy.toml")
    assert policy.tuned == whole
    assert "tuned: loss on h200" in policy.describe()
