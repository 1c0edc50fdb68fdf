"""The small models outside the zoo, painted and by hand; and the benchmark that compiles them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import duotone
from benchmarks import _common, others
from benchmarks._painter_rows import Job
from benchmarks._ways import FORMS, SHORT
from benchmarks.other import OTHERS
from benchmarks.other.case import SIZES
from benchmarks.other.sequences import retained

DOTS = ("dot_general", "conv_general_dilated")
QUICK = ("autoencoder", "flow")
FORCED = duotone.Policy(ignore_performance=True)
models = pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in OTHERS],
)


def dot_types(step: Any, shapes: Any) -> set[str]:
    def equations(jaxpr: Any) -> Any:
        for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
            yield eqn
            for nested in _common.nested_programs(eqn.params.values()):
                yield from equations(nested)

    traced = jax.make_jaxpr(step)(*shapes)
    return {
        str(eqn.invars[0].aval.dtype) for eqn in equations(traced) if eqn.primitive.name in DOTS
    }


@models
@pytest.mark.parametrize("size", SIZES)
def test_a_step_keeps_the_state_and_is_the_same_by_hand_but_for_its_dots(name, size):
    plain, by_hand = (OTHERS[name].make(dtype, size) for dtype in (None, jnp.float16))
    shapes = plain.step_shapes()
    assert shapes == by_hand.step_shapes()
    for case in (plain, by_hand):
        state, loss = jax.eval_shape(case.step, *shapes)
        assert (loss.shape, loss.dtype) == ((), jnp.float32)
        same = jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), state, shapes[0])
        assert all(jax.tree.leaves(same))
    assert dot_types(plain.step, shapes) == {"float32"}
    assert "float16" in dot_types(by_hand.step, shapes)


@models
def test_a_painted_step_is_that_of_float32_within_half(name):
    case = OTHERS[name].make(None, "tiny")
    arguments = case.start(jax.random.key(0)), case.batch(jax.random.key(1), "ordinary")
    state, loss = jax.jit(case.step)(*arguments)
    for way in FORMS.values():
        painted = others.step_of(case, way, "bfloat16", FORCED)
        found_state, found_loss = jax.jit(painted)(*arguments)
        assert found_loss.dtype == jnp.float32
        np.testing.assert_allclose(found_loss, loss, rtol=0.01)
        # AdamW's first step has the size of its rate whatever the gradient: its moment tells.
        moment, found = (s.optimizer[0].mu for s in (state, found_state))
        apart = optax.tree.norm(optax.tree.sub(found, moment)) / optax.tree.norm(moment)
        assert 0 < apart < 0.2


def test_retention_in_chunks_is_a_decaying_sum():
    query, key, value = jax.random.normal(jax.random.key(0), (3, 1, 8, 2, 3))
    place = np.arange(8)
    apart = place[:, None] - place
    weights = jnp.einsum("bihd,bjhd->bhij", query, key) * np.where(apart >= 0, 0.9**apart, 0)
    expected = jnp.einsum("bhij,bjhd->bihd", weights, value)
    np.testing.assert_allclose(retained(query, key, value, 4), expected, atol=1e-5)


def test_a_way_without_a_rule_takes_it_out_of_the_policy():
    case = OTHERS["autoencoder"].make(None, "tiny")

    def half_results(way: str) -> int:
        step = others.step_of(case, way, "bfloat16", FORCED)
        return str(jax.make_jaxpr(step)(*case.step_shapes())).count(":bf16")

    assert half_results("without mixed") != half_results(others.WHOLE)
    assert half_results("without iteration") == half_results(others.WHOLE)


def test_a_small_model_is_measured_in_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = ["--only", "autoencoder", "--target", "h200", "--without", "iteration"]
    todo = [Job(job.model, "cpu", job.way, job.half) for job in others.jobs(asked)]
    compiled, real = [], duotone.compile_for

    def compile_for(step: Any, *arguments: Any, target: str) -> Any:
        compiled.append(target)
        return real(step, *arguments, target=target)

    monkeypatch.setattr(duotone, "compile_for", compile_for)
    others.run(todo[:2], tmp_path / "results", size="tiny")
    others.run(todo[2:], tmp_path / "results", size="tiny")
    records = others.load(tmp_path / "results")
    assert list(records) == [job.key for job in todo]
    assert all(record["bytes"] > 0 for record in records.values())
    without = "autoencoder/cpu/bfloat16/without iteration"
    assert records[without]["same program"]
    assert len(compiled) == len(todo) - 1
    assert others.ways_of(records, "cpu", "bfloat16") == [job.way for job in todo[1:]]


def records(whole: float, short: float) -> dict[str, dict[str, Any]]:
    sizes = {others.BY_HAND: 1.0, others.WHOLE: whole, SHORT: short, "without factors": 2.0}
    return {
        Job(model, "h200", way, "bfloat16").key: {"bytes": size * 1e9, "temporary": size * 1e9}
        for model in ("gru", "vae")
        for way, size in sizes.items()
    }


@pytest.mark.parametrize(
    ("ratio", "each", "bytes_mean", "memory_mean"),
    [(0.8, True, True, True), (0.9, True, True, False), (1.1, False, False, False)],
)
def test_bars_are_those_of_the_second_half_of_the_zoo(ratio, each, bytes_mean, memory_mean):
    bars = others.bars_of(records(ratio, 0.5))
    whole = [bar for bar in bars if ", whole: " in bar.name]
    assert [bar.kept for bar in whole] == [each, each, bytes_mean, memory_mean]
    assert all(bar.kept for bar in bars if ", short: " in bar.name)
    assert not any("factors" in bar.name for bar in bars)


def test_the_table_has_means_the_worst_and_what_failed():
    made = records(0.5, 0.25)
    made["gru/h200/bfloat16/duotone"] = {"failed": "no such kernel"}
    made["vae/h200/bfloat16/without factors"]["same program"] = True
    text = others.text_of(made)
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    assert lines["gru"].split("  ")[1:] != lines["vae"].split("  ")[1:]
    # The whole form, in the first column, has one model less: its mean is none of two.
    for row in ("geometric mean of 2", "worst"):
        assert lines[row].removeprefix(row).split() == "- 0.250 / 0.250 2.000 / 2.000".split()
    assert "= 2.000 / 2.000" in lines["vae"]
    assert "gru/h200/bfloat16/duotone: no such kernel" in text
    assert others.bars_of(made)[-1].value == 1


def test_resume_leaves_out_what_was_measured(monkeypatch: pytest.MonkeyPatch):
    known = records(0.5, 0.5)
    known["vae/h200/bfloat16/duotone"] = {"failed": "no such kernel"}
    monkeypatch.setattr(others, "load", lambda: known)
    asked = ["--only", "gru,vae", "--without", "factors,operand"]
    assert len(others.jobs(asked)) == 2 * 5
    assert [job.key for job in others.jobs([*asked, "--resume"])] == [
        "gru/h200/bfloat16/without operand",
        "vae/h200/bfloat16/duotone",
        "vae/h200/bfloat16/without operand",
    ]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--only", "no model x; there are vgg"),
        ("--without", "no rule or optimization x; there are iter"),
    ],
)
def test_a_name_that_is_not_there_is_an_error(option, message):
    with pytest.raises(SystemExit, match=message):
        others.jobs([option, "x"])
