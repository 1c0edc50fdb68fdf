"""``duotone demo``: options, table, chart and report, on an epoch of two steps."""

from __future__ import annotations

import importlib.util
import io
import json
import sys

import pytest
from rich.console import Console

from duotone.cli import main
from duotone.cli.demo import comparison
from duotone.samples import digits
from duotone.samples.digits import Precision, TrainingRun
from duotone.samples.training_report import Result


@pytest.fixture
def few_images(monkeypatch):
    data = digits.load_digits()
    few = digits.Digits(
        data.train_images[: 2 * digits.BATCH],
        data.train_labels[: 2 * digits.BATCH],
        data.test_images[:50],
        data.test_labels[:50],
    )
    monkeypatch.setattr(digits, "load_digits", lambda: few)


def call(*words):
    with pytest.raises(SystemExit) as ended:
        main.run(["demo", *words])
    return ended.value.code or 0


@pytest.mark.slow
def test_all_precisions_side_by_side(few_images, tmp_path, capsys):
    assert call("--epochs", "1", "--out", str(tmp_path)) == 0
    out = capsys.readouterr().out
    for shown in (
        "float32",
        "float16 (mixed)",
        "bfloat16 (mixed)",
        "test accuracy",
        "skipped steps",
        "final loss scale",
        "FLOPs in half",
        "casts inserted",
        "step time",
        "Report: ",
    ):
        assert shown in out
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [result["precision"] for result in results] == ["float32", "float16", "bfloat16"]


def test_one_precision_with_several_seeds(few_images, tmp_path, capsys):
    words = ["--precision", "float32", "--epochs", "1", "--seed", "5", "--seeds", "2"]
    assert call(*words, "--out", str(tmp_path / "new")) == 0
    (result,) = json.loads((tmp_path / "new" / "results.json").read_text())["results"]
    assert [run["seed"] for run in result["runs"]] == [5, 6]
    assert "±" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [("--epochs", "0"), ("--seeds", "0"), ("--seed", "-1"), ("--precision", "float64")]
)
def test_options_out_of_range_are_refused(words, capsys):
    assert call(*words) == 2
    assert words[0] in capsys.readouterr().err


def test_the_table_shows_what_the_runs_gave():
    half = Precision.FLOAT16
    run = TrainingRun(half, 0, (2.0, 0.5), (0.25, 0.875), (2.0**15, 2.0**14), 1, 12.5, 1.5)
    console = Console(file=io.StringIO(), width=100, color_system=None)
    with console.capture() as capture:
        console.print(comparison([Result(half, (run,), None)]))
    cells = [[c.strip() for c in line.split("│")] for line in capture.get().splitlines()]
    rows = {row[1]: row[2] for row in cells if len(row) == 4}
    assert rows["test accuracy"] == "87.5 %"
    assert rows["skipped steps"] == "1 of 2"
    assert rows["final loss scale"] == "2^14"
    assert rows["step time, median"] == "12.5 ms"


def test_without_the_libraries_that_draw_it_runs_all_the_same(
    few_images, tmp_path, capsys, monkeypatch
):
    """Catches: a plain installation whose first command asks for another one."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == "matplotlib" else real(name, *a),
    )
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["--precision", "float32", "--epochs", "1", "--out", str(tmp_path / "plain")]
    assert call(*words) == 0
    out = capsys.readouterr().out
    assert out.count("pip install") == 1
    assert not (tmp_path / "plain" / "loss.png").exists()
    assert (tmp_path / "plain" / "results.json").exists()
