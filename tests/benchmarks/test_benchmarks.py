"""Every benchmark runs on tiny sizes. No time is asserted: that is what the benchmarks are for."""

from __future__ import annotations

import inspect
import json
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import (
    _common,
    _deep_nets,
    _painter_rows,
    _readme,
    _second_process,
    _stages,
    optimizer_overhead,
    painter,
    painter_error,
    profile_cost,
    rewrite_cost,
    second_call,
)
from benchmarks._deep_nets import unrolled_net
from benchmarks.zoo.case import INPUTS, Case, cross_entropy
from duotone.precision import pipeline


@pytest.mark.parametrize("inputs", INPUTS)
def test_inputs_are_finite_and_of_their_shape(inputs):
    drawn = INPUTS[inputs](jax.random.key(0), (4, 8, 3))
    assert drawn.shape == (4, 8, 3)
    assert bool(jnp.isfinite(drawn).all())


def test_cross_entropy_is_computed_in_float32():
    logits = jnp.asarray([[9.0, 0.0], [0.0, 9.0]], jnp.float16)
    loss = cross_entropy(logits, jnp.asarray([0, 0]))
    assert loss.dtype == jnp.float32
    assert float(loss) == pytest.approx((math.log1p(math.exp(-9)) * 2 + 9) / 2, rel=1e-3)


def perceptron(dtype=None):
    """The smallest model: what is measured of it compiles fast."""
    model = nn.Sequential(
        [nn.Dense(16, dtype=dtype), nn.LayerNorm(dtype=dtype), nn.Dense(4, dtype=dtype)]
    )

    def loss(params, data):
        logits = model.apply(params, data[0])
        assert isinstance(logits, jax.Array)
        return cross_entropy(logits, data[1])

    def draw(key, inputs):
        return INPUTS[inputs](key, (4, 8)), jax.random.randint(key, (4,), 0, 4)

    return Case("perceptron", loss, lambda key: model.init(key, jnp.zeros((1, 8))), draw)


@pytest.mark.slow
def test_rewrite_cost_of_a_step():
    rounds = [rewrite_cost.step_round(perceptron(), turn) for turn in range(2)]
    figures = rewrite_cost.step_figures(rounds)
    text = rewrite_cost.step_text(figures)
    assert all(name in text for name in (*rewrite_cost.ORDERS, *_stages.STAGES))


def test_every_stage_of_the_pipeline_is_clocked():
    functions = {
        name
        for name, f in vars(pipeline).items()
        if inspect.isfunction(f) and f.__module__ != pipeline.__name__
    }
    assert functions == {*_stages._NAMES, "path_alone"}


def test_rewrite_cost_grows():
    rows = [rewrite_cost.growth_row(count, 1) for count in (200, 500)]
    assert [row["equations"] for row in rows] == pytest.approx([200, 500], abs=60)
    assert "growth exponent" in rewrite_cost.growth_text(rows)


def test_first_lowering_by_layers():
    bars, text, data = _deep_nets.measure_layers({1: 1})
    assert len(bars) == 4
    assert set(data["1"]) == set(_deep_nets.FORMS)
    assert all(name in text for name in _deep_nets.FORMS)


@pytest.mark.slow
def test_second_processes_find_their_programs():
    bars, text, data = _second_process.measure({1: 1})
    assert len(bars) == 4
    assert set(data["1"]) == set(_deep_nets.FORMS)
    assert "over float32, Adam" in text


@pytest.mark.slow
def test_first_processes_find_nothing(tmp_path):
    assert not _second_process.load("float32", 1, str(tmp_path))["found"]


def test_exponent_of_a_line_is_one():
    rows = [{"equations": float(n), "painting": 3e-6 * n} for n in (10, 100, 1000)]
    assert rewrite_cost.exponent(rows, "painting") == pytest.approx(1.0)


def test_unrolled_net_is_as_long_as_asked():
    loss, shapes = unrolled_net(rewrite_cost.layers_for(1000))
    count = _common.equations(jax.make_jaxpr(jax.value_and_grad(loss))(*shapes))
    assert count == pytest.approx(1000, rel=0.05)


def test_second_call():
    bars, text, data = second_call.measure(calls=3, leaves=6)
    assert {"2 leaves", "6 leaves"} == set(data)
    assert len(bars) == 4
    assert "jit(autocast(f))" in text


@pytest.mark.slow
def test_profile_cost():
    bars, text, data = profile_cost.measure({"perceptron": perceptron()}, rounds=1, steps=4, runs=3)
    assert len(bars) == 3
    assert data["reading"]["iterations"] == 3
    assert data["reading"]["operations"] >= 3 * 240
    assert 0 < data["reading"]["peak MB before"] <= data["reading"]["peak MB"]
    assert "operations a step" in text


@pytest.mark.slow
def test_optimizer_overhead():
    cases = {
        "small CNN": lambda: optimizer_overhead.convolutional(batch=2, size=8),
        "perceptron": lambda: optimizer_overhead.perceptron(batch=2, width=8),
    }
    rounds = dict.fromkeys(cases, 2)
    bars, text, data = optimizer_overhead.measure(rounds, cases)
    assert len(bars) == 2
    assert all("small CNN" in bar.name for bar in bars)
    assert set(data) == set(cases)
    assert data["perceptron"]["bare"]["over bare %"] == 0
    assert "with select" in text


@pytest.mark.slow
def test_every_way_of_optimizer_overhead_takes_the_same_step():
    loss, params, batch = optimizer_overhead.perceptron(batch=2, width=8)
    ways = optimizer_overhead.ways(loss)
    found = [jax.jit(step)(params, begin(params), *batch)[0] for step, begin in ways.values()]
    for other in found[1:]:
        for a, b in zip(jax.tree.leaves(other), jax.tree.leaves(found[0]), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.slow
def test_errors_of_a_perceptron(monkeypatch):
    monkeypatch.setattr(painter_error, "INPUTS", {"ordinary": INPUTS["ordinary"]})
    rows = painter_error.summary(painter_error.errors(perceptron, seeds=2), "float16")
    (row,) = rows
    assert row["float32"] < row["by hand"] < 0.1
    assert all(0 < row[way] < 0.1 for way in painter_error.PAINTED)
    assert "autocast(grad(f))" in painter_error.text_of("perceptron", "float16", rows)


def test_relative_error_against_a_known_one():
    reference = [np.asarray([3.0, 4.0])]
    assert painter_error.relative_error([jnp.asarray([6.0, 8.5])], reference, 2.0) == 0.05
    infinite = painter_error.relative_error([jnp.asarray([jnp.inf, 0.0])], reference, 2.0)
    assert infinite == math.inf


@pytest.mark.parametrize(
    ("ours", "by_hand", "ratio"),
    [
        ([1.0], [2.0], 0.5),
        ([math.inf], [math.inf], math.nan),
        ([math.inf], [1.0], math.inf),
        ([1.0], [math.inf], 0.0),
    ],
)
def test_what_is_not_finite_is_worse_than_any_error(ours, by_hand, ratio):
    assert painter_error.mean_ratio(ours, by_hand)[0] == pytest.approx(ratio, nan_ok=True)


def test_a_result_is_written_next_to_a_generated_readme(tmp_path, capsys):
    bars = [_common.Bar("time", 1.0, 2.0, "s"), _common.Bar("error", math.nan, 1.0, "times")]
    result = _common.Result("x", "Is it fast?", "python -m benchmarks.x", bars, "a table", {"a": 1})
    _common.write(result, tmp_path / "results")
    data = json.loads((tmp_path / "results" / "x.json").read_text())
    assert [bar["kept"] for bar in data["bars"]] == [True, False]
    assert "MISSED error" in (tmp_path / "results" / "x.txt").read_text()
    page = (tmp_path / "README.md").read_text()
    assert "Is it fast?" in page
    assert "**missed**" in page
    assert "a table" in capsys.readouterr().out


def test_the_readme_is_the_one_that_the_results_make():
    assert (_common.RESULTS.parent / "README.md").read_text() == _readme.render(_common.RESULTS)


def test_every_benchmark_names_its_command_first_and_has_a_result():
    for file in sorted(_common.RESULTS.parent.glob("[a-z]*.py")):
        assert file.read_text().startswith(f"# python -m benchmarks.{file.stem}\n")
        assert (_common.RESULTS / f"{file.stem}.json").exists()


def test_no_benchmark_runs_where_its_help_is_asked_for():
    for file in sorted(_common.RESULTS.parent.glob("[a-z]*.py")):
        text = file.read_text()
        assert ".parse_args(" in text or "take_no_options(QUESTION)" in text, file


def test_a_step_too_large_for_a_target_is_no_failure_if_it_is_by_hand_as_well() -> None:
    said = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (20.12G) exceeds available HBM (15.75G).\n"
        "See https://openxla.org for more details.\n"
    )
    large = painter._refused(said)
    assert large["too large"].endswith("(20.12G) exceeds available HBM (15.75G)")
    ours, by_hand = "dlrm/v5e/bfloat16/duotone", "dlrm/v5e/bfloat16/by hand"

    def failures(records: dict[str, dict[str, Any]]) -> float:
        return _painter_rows.bars_of(records)[-1].value

    assert failures({ours: large, by_hand: large}) == 0
    assert failures({ours: large, by_hand: {"bytes": 1}}) == 1
    assert failures({ours: painter._refused("one\nValueError: two\n")}) == 1
    assert f"{ours}: does not fit: total memory required" in _painter_rows.text_of({ours: large})
