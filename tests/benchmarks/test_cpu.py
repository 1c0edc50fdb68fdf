"""The CPU benchmarks run on tiny sizes; no time is asserted."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import pytest

from benchmarks import _common, cpu_forms, cpu_steps
from benchmarks.cpu_forms import Dot

# They build whole models: what a user needs to trust the build is elsewhere.
pytestmark = pytest.mark.slow

MATMUL = (((1,), (0,)), ((), ()))


def test_forms_are_measured_and_shown():
    (row,) = cpu_forms.measure([Dot("tiny", (8, 16), (16, 4), MATMUL)], rounds=1)
    assert row["flops"] == 2 * 8 * 16 * 4
    assert row["intensity"] == row["flops"] / (8 * 16 + 16 * 4)
    assert row["float32"] > 0
    assert row["rows"] > 0
    assert not row["painted"]
    shown = cpu_forms._line({**row, "bf16 to f32": None})
    assert "fails" in shown
    assert shown[-1] == "no"


def test_the_table_has_every_dot_of_a_step_and_both_sides_of_the_threshold():
    painted = {dot.name: cpu_forms._painted(dot) for dot in cpu_forms.cases()}
    assert painted["weight gradient, as JAX writes it"]
    assert painted["128 rows by 1024 x 1024"]
    assert not painted["1 rows by 1024 x 1024"]
    assert not painted["square 32"]


def test_convolutions_and_their_gradients_are_measured():
    cases = [
        cpu_forms.Convolution("tiny", (1, 4, 4, 2), (3, 3, 2, 3), 2, gradient=gradient)
        for gradient in (None, 0, 1)
    ]
    rows = cpu_forms.measure_convolutions(cases, rounds=1)
    assert [row["bf16 to bf16"] > 0 for row in rows] == [True] * 3
    assert not any(row["painted"] for row in rows)
    shapes = [jax.eval_shape(case.function(), *case.operands()).shape for case in cases]
    assert shapes == [(1, 2, 2, 3), (1, 4, 4, 2), (3, 3, 2, 3)]


def test_a_form_that_fails_when_it_runs_is_none():
    def fails(lhs, rhs):
        def broken(_):
            raise ValueError("no such form")

        return jax.pure_callback(broken, jax.ShapeDtypeStruct(lhs.shape, lhs.dtype), lhs)

    x = jnp.ones((4, 4))
    found = cpu_forms.ratios({"float32": jnp.matmul, "broken": fails}, (x, x), rounds=1)
    assert found["broken"] is None
    assert found["float32"] is not None


@pytest.mark.parametrize("name", ["dlrm", "gpt2_wide"])
def test_steps_are_measured(name):
    row = cpu_steps.measure(name, "tiny", rounds=1)
    assert row["model"] == name
    assert row["speedups"]["float32"] == 1.0
    assert row["speedups"]["duotone"] > 0
    assert row["same"] in (True, False)
    assert not row["failures"]
    assert json.loads(json.dumps(row)) == row
    line = cpu_steps._line(row)
    assert len(line) == 3 + len(cpu_steps.WAYS)


def test_bars_are_the_issues():
    def part(model, speed, same=False):
        speedups = {"duotone": speed} if speed else {}
        return {"rows": [{"model": model, "name": model, "speedups": speedups, "same": same}]}

    found = {"JAX 0.10": part("gpt2", 1.25), "JAX 0.12": part("gpt2", 1.25)}
    assert [bar.kept for bar in cpu_steps.bars(found)] == [True, False]
    found = {"JAX 0.12": part("gan", 0.98)}
    assert cpu_steps.bars(found)[0].kept
    assert not cpu_steps.bars({"JAX 0.12": part("gan", 0.96)})[0].kept
    assert not cpu_steps.bars({"JAX 0.12": part("gan", None)})[0].kept
    assert cpu_steps.bars({"JAX 0.12": part("gan", 0.9, same=True)})[0].value == 1.0


def test_a_run_replaces_its_own_versions_part(tmp_path):
    file = tmp_path / "x.json"
    assert _common.with_part("x", 1, tmp_path) == {_common.THIS_VERSION: 1}
    old = {"JAX 0.9": "ninth", _common.THIS_VERSION: "old", "JAX 0.99": "later"}
    file.write_text(json.dumps({"figures": old}))
    found = _common.with_part("x", "new", tmp_path)
    assert list(found) == ["JAX 0.9", _common.THIS_VERSION, "JAX 0.99"]
    assert found[_common.THIS_VERSION] == "new"
