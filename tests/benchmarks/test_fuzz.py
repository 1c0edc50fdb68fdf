"""The fuzzer sees a fault that was planted, cuts it down, and computes as JAX does."""

from __future__ import annotations

import dataclasses
import json
import sys

import jax
import numpy as np
import pytest

import duotone
from benchmarks import fuzz
from benchmarks.fuzz import case_of
from benchmarks.fuzzing import judge as judging
from benchmarks.fuzzing.evaluate import AsWritten, Naive, Wide, evaluate
from benchmarks.fuzzing.judge import FORMS, WAYS, Case, judge
from benchmarks.fuzzing.minimise import minimised, reproducer
from benchmarks.fuzzing.programs import Input, Line, Program, draw, random_program

SUMS = Program(
    {
        "x0": Input((8, 16), "offset"),
        "w1": Input((16, 4096), "weight"),
        "w2": Input((8, 8), "weight"),
        "x3": Input((8, 8), "large"),
    },
    (
        Line("v0", "projection", "x0 @ w1", (8, 4096)),
        Line("v1", "relu", "jax.nn.relu(v0)", (8, 4096)),
        Line("v2", "sum", "jnp.sum(v1.reshape(8, 512, 8), axis=1)", (8, 8)),
        Line("v3", "dot", "v2 @ w2", (8, 8)),
        Line("v4", "multiply", "v3 * jnp.tanh(x3)", (8, 8)),
    ),
    ("v4",),
)

ROW = {"seed": 1, "kind": "good", "text": "", "steps": ["dot", "sum"], "ratio": 1.0}


@pytest.fixture
def sums_in_half(monkeypatch):
    """A painter with a wrong entry: large sums in half."""
    policy = duotone.Policy(ignore_performance=True, infer_add=["reduce_sum"])
    paint = lambda way: lambda f: duotone.autocast(f, dtype=way, policy=policy)  # noqa: E731
    monkeypatch.setattr(judging, "painter", paint)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_a_planted_fault_is_found(half, sums_in_half):
    verdict = judge(Case(SUMS, "forward", half, 3))
    assert verdict.kind == "worse"
    assert verdict.ratio > judging.LIMIT


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_without_it_nothing_is(half):
    assert judge(Case(SUMS, "forward", half, 3)).kind == "good"


def test_a_finding_is_cut_down_to_a_program_of_its_own(sums_in_half, capsys):
    case, verdict = minimised(Case(SUMS, "forward", "bfloat16", 3))
    assert verdict.kind == "worse"
    assert case.program.steps() == {"projection", "sum"}
    assert {given.kind for given in case.program.inputs.values()} == {"normal", "weight"}
    exec(compile(reproducer(case), "<reproducer>", "exec"), {})
    assert "painted" in capsys.readouterr().out


def test_an_exception_and_a_changed_type_are_findings(monkeypatch):
    def fails(_):
        raise RuntimeError("planted")

    monkeypatch.setattr(judging, "painter", lambda way: fails)
    assert "planted" in judge(Case(SUMS, "forward", "float16", 0)).text
    assert "planted" in judge(Case(SUMS, "forward", "float16", 0, compiled=True)).text
    narrow = lambda way: lambda f: lambda *args: tuple(x.astype(way) for x in f(*args))  # noqa: E731
    monkeypatch.setattr(judging, "painter", narrow)
    assert judge(Case(SUMS, "forward", "float16", 0)).kind == "changed type"


def test_what_float32_cannot_do_either_is_no_finding(monkeypatch):
    def fails(*_):
        raise RuntimeError("planted")

    monkeypatch.setattr(Program, "function", lambda self: fails)
    assert judge(Case(SUMS, "forward", "float16", 0)).kind == "exception"
    assert judge(Case(SUMS, "forward", "float16", 0, compiled=True)).kind == "skipped"


def test_what_is_not_finite_is_a_finding(monkeypatch):
    broken = lambda way: lambda f: lambda *args: tuple(x / 0.0 for x in f(*args))  # noqa: E731
    monkeypatch.setattr(judging, "painter", broken)
    assert judge(Case(SUMS, "forward", "float16", 0)).kind == "not finite"


def test_a_pole_that_naive_half_hits_as_often_is_no_finding():
    def verdict(painted: int, naive: int) -> str:
        def errors(not_finite: int) -> np.ndarray:
            return np.where(np.arange(15) < not_finite, np.inf, 1e-3)[:, None, None]

        draws = zip(errors(painted), errors(naive), strict=True)
        return judging._verdict(
            [judging._Draw(p, n, np.full_like(n, 1e-7), True) for p, n in draws]
        ).kind

    assert verdict(painted=7, naive=5) == "good"
    assert verdict(painted=4, naive=0) == "not finite"
    assert verdict(painted=15, naive=5) == "not finite"


@pytest.mark.parametrize("form", FORMS)
def test_a_reproducer_of_what_is_chosen_by_default_runs(form, capsys):
    exec(compile(reproducer(Case(SUMS, form, "default", 3)), "<reproducer>", "exec"), {})
    assert "painted" in capsys.readouterr().out


def test_a_program_is_the_same_for_the_same_seed():
    assert random_program(12) == random_program(12)
    assert random_program(12) != random_program(13)
    assert case_of(5).form in FORMS
    assert case_of(5).way in WAYS


@pytest.mark.parametrize("seed", range(40, 48))
def test_evaluated_as_jax_does(seed):
    program = random_program(seed)
    arguments = draw(program, [seed, 0])
    function = program.function()
    traced = jax.make_jaxpr(function)(*arguments)
    truth = evaluate(traced, arguments, Wide())
    found = evaluate(traced, arguments, AsWritten())
    by_jax = jax.jit(function)(*arguments)
    for a, b, exact in zip(found, by_jax, truth, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        size = np.max(np.abs(exact)) + 1e-6
        assert np.max(np.abs(a - np.asarray(b))) < 2e-3 * size
        assert np.max(np.abs(a - exact)) < 2e-3 * size


def test_naive_half_rounds_every_result():
    traced = jax.make_jaxpr(lambda x: (x + 1.0) - 1.0)(np.float32(2.0**-12))
    assert evaluate(traced, [np.float32(2.0**-12)], Naive("float16"))[0] == 0.0
    assert evaluate(traced, [np.float32(2.0**-12)], Wide())[0] == 2.0**-12


def test_a_process_that_ends_is_a_finding_that_names_the_seed(monkeypatch):
    monkeypatch.setattr(
        fuzz, "_worker_command", lambda *_: [sys.executable, "-c", "import os; os.abort()"]
    )
    rows = []
    fuzz.run([7], 1.0, 1, rows.append)
    assert [(row["seed"], row["kind"]) for row in rows] == [(7, "aborted")]


def test_a_process_that_hangs_is_one_too(monkeypatch):
    monkeypatch.setattr(fuzz, "_PATIENCE", 0.1)
    monkeypatch.setattr(
        fuzz, "_worker_command", lambda *_: [sys.executable, "-c", "while True: pass"]
    )
    rows = []
    fuzz.run([7], 1.0, 1, rows.append)
    assert [(row["seed"], row["kind"]) for row in rows] == [(7, "hung")]


def test_a_run_goes_on_from_the_rows_that_were_kept(monkeypatch, tmp_path):
    kept = tmp_path / "rows"
    kept.write_text(json.dumps({**ROW, "seed": 6}) + "\n")
    results = []
    monkeypatch.setattr(fuzz, "write", results.append)
    text = json.dumps({**ROW, "seed": 5})
    monkeypatch.setattr(fuzz, "_worker_command", lambda seeds: ["echo", text] if seeds else [])
    fuzz.main(["--seed", "5", "--programs", "2", "--workers", "1", "--rows", str(kept)])
    assert [json.loads(line)["seed"] for line in kept.read_text().splitlines()] == [6, 5]
    assert results[0].figures["programs"] == 2


def _attention_of_equals():
    """Seed 3671: rows that attend to equals, so that the second attention's gradients are 0."""
    (first, second) = [
        Line(
            made,
            "linear attention",
            f"linear_attention({seen}, {q}, {k})",
            (5, 4),
        )
        for made, seen, q, k in (("v1", "v0", "w2", "w3"), ("v2", "v1", "w5", "w6"))
    ]
    weights = {name: Input((4, 4), "weight") for name in ("w2", "w3", "w5", "w6")}
    return Program(
        {"x0": Input((5, 4), "normal"), **weights},
        (
            Line("v0", "exp of large", "jnp.exp(jnp.clip(x0, -8.0, 8.0)) * 1e-3", (5, 4)),
            first,
            second,
        ),
        ("v2",),
    )


def test_of_a_gradient_that_is_all_rounding_only_the_size_counts(monkeypatch):
    case = Case(_attention_of_equals(), FORMS[2], "float16", 0)
    assert judge(case).kind == "good"

    def planted(way):
        painted = lambda f: duotone.autocast(f, dtype=way)  # noqa: E731
        return lambda f: lambda *args: painted(f)(*args) + 1e-2 * args[-1].sum()

    monkeypatch.setattr(judging, "painter", planted)
    assert judge(case).kind == "worse"


def test_the_table_counts_operations_and_findings():
    worse = {**ROW, "seed": 2, "kind": "worse", "text": "ratio 9"}
    result = fuzz.result_of([ROW, worse], 1.0)
    assert [bar.kept for bar in result.bars] == [False]
    assert result.figures["operations"]["dot"]["in findings"] == 1
    assert result.figures["operations"]["sum"]["programs"] == 2
    assert "ratio 9" in result.text
    json.dumps(dataclasses.asdict(result))
