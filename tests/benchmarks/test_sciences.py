"""The table of scientific programs: what a row says, and that the page is that of the records."""

from __future__ import annotations

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import sciences
from benchmarks.science import PROGRAMS, measure
from benchmarks.science.case import Program

ROW = measure.Row(
    program="a solve",
    figure="solution",
    library="",
    float32=1e-7,
    yardstick=dict.fromkeys(measure.WAYS, 1e-7),
    ratios=dict.fromkeys(measure.WAYS, 1.0),
    half=dict.fromkeys(measure.WAYS, 0),
    total=9,
    network=False,
    chaotic=False,
)


def test_every_program_has_a_name_of_its_own_and_the_typed_ones_trace_for_every_seed():
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS) >= 36
    for program in PROGRAMS:
        if program.library:
            continue
        first, args = program.make(0, None)
        later = program.make(1, None)[1]
        shapes = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), one) for one in (args, later)]
        assert shapes[0] == shapes[1], program.name  # every seed runs the first one's function
        assert jax.eval_shape(first, *args), program.name


def ridge_head(seed, half):
    rng = np.random.default_rng(seed)

    def head(z, y, query):
        weights = jnp.linalg.solve(z.T @ z + 0.1 * jnp.eye(z.shape[1]), z.T @ y)
        return {"logits": query @ weights}

    return head, tuple(rng.normal(size=size).astype("f") for size in ((50, 16), (50, 5), (9, 16)))


def test_a_program_that_half_cannot_serve_is_float32():
    rows = measure.rows(Program("ridge head", ridge_head, seeds=1))
    assert [row.figure for row in rows] == ["logits"]
    assert rows[0].verdict == "float32"
    assert rows[0].ratios == dict.fromkeys(measure.WAYS, 1.0)
    assert rows[0].float32 < 1e-2


def test_a_network_is_judged_by_half_dtypes_set_by_hand():
    def make(seed, half):
        def predict(w, x):
            if half is None:
                return {"result": jnp.tanh(x @ w)}
            return {"result": jnp.tanh((x.astype(half) @ w.astype(half)).astype("float32"))}

        rng = np.random.default_rng(seed)
        return predict, (rng.normal(size=(8, 4)).astype("f"), rng.normal(size=(16, 8)).astype("f"))

    (row,) = measure.rows(Program("layer", make, network=True))
    assert row.verdict == "as by hand"
    assert row.half["bfloat16"] > 0
    assert row.yardstick["bfloat16"] > 100 * row.float32
    (plain,) = measure.rows(Program("layer", make))
    assert plain.verdict.startswith("worse in float16, bfloat16")


def test_what_is_chaotic_is_judged_by_a_perturbed_float32():
    def make(seed, half):
        return lambda x: {"result": jnp.sin(1e5 * x)}, (np.linspace(1, 2, 50, dtype="f"),)

    (row,) = measure.rows(Program("sine", make, chaotic=True, seeds=1))
    assert row.yardstick["float16"] > 2 * row.float32


def test_errors():
    exact = np.array([3.0, 4.0])
    assert measure.error(np.array([3.0, 5.0]), exact) == pytest.approx(0.2)
    assert measure.error(exact, exact) == measure.EPSILON
    assert measure.error(np.array([np.nan, 4.0]), exact) == math.inf
    assert measure.error(np.array([0.0, 2.0]), None) == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize(
    ("ratio", "half", "network", "verdict"),
    [
        (1.0, 0, False, "float32"),
        (1.9, 3, False, "as float32"),
        (1.9, 3, True, "as by hand"),
        (2.1, 3, False, "worse in float16"),
        (math.nan, 0, False, "worse in float16"),
    ],
)
def test_verdicts(ratio, half, network, verdict):
    row = dataclasses.replace(
        ROW,
        ratios=ROW.ratios | {"float16": ratio},
        half=ROW.half | {"float16": half},
        network=network,
    )
    assert row.verdict == verdict


def test_a_program_without_its_library_keeps_its_rows(capsys, monkeypatch):
    missing = Program("far", ridge_head, "no_such_library")
    monkeypatch.setattr(sciences, "PROGRAMS", (missing,))
    before = {"far": [dataclasses.asdict(ROW)]}
    assert list(sciences.measure([missing], before)) == []
    assert "far: no_such_library is not installed" in capsys.readouterr().out


def test_a_figure_that_is_worse_is_bold_and_missed():
    bad = dataclasses.replace(ROW, ratios=ROW.ratios | {"bfloat16": math.inf})
    figures = {"good": [dataclasses.asdict(ROW)], "bad": [dataclasses.asdict(bad)]}
    figures["bad"][0]["ratios"]["bfloat16"] = "inf"  # as JSON holds it
    data = {
        "figures": {"programs": figures, "libraries": {"lineax": "1"}},
        "environment": {"python": "3", "jax": "1"},
    }
    page = sciences.page(data)
    assert "**inf**" in page
    assert "**worse in bfloat16**" in page
    assert [bar.kept for bar in sciences.bars_of(figures)] == [True, False, True, False]


def test_the_page_is_the_one_that_the_records_make():
    data = json.loads(sciences.RECORDS.read_text())
    assert sciences.PAGE.read_text() == sciences.page(data), (
        "run python -m benchmarks.sciences --page"
    )
