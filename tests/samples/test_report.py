"""The report folder: what is in it, and that it can be read back."""

from __future__ import annotations

import json
import math
import sys

import pytest

import duotone
from duotone.errors import ArgumentError, MissingExtraError
from duotone.samples import digits
from duotone.samples.digits import Precision, TrainingRun
from duotone.samples.training_report import Result, picture, write_report

PNG = b"\x89PNG\r\n\x1a\n"


def a_run(precision, *, seed=0, accuracy=0.5, losses=(2.0, 1.0), scale=1.0, skipped=0):
    return TrainingRun(
        precision=precision,
        seed=seed,
        losses=losses,
        accuracies=(0.1, accuracy),
        scales=(scale,) * len(losses),
        skipped=skipped,
        step_ms=3.0,
        first_step_s=0.5,
    )


@pytest.fixture(scope="module")
def explanation():
    return digits.Trainer(Precision.FLOAT16, 1).explain()


@pytest.fixture
def results(explanation):
    full, half = Precision.FLOAT32, Precision.FLOAT16
    return [
        Result(full, (a_run(full, accuracy=0.9), a_run(full, seed=1, accuracy=0.8)), None),
        Result(half, (a_run(half, scale=2.0**15, skipped=3),), explanation),
    ]


def test_the_folder_holds_the_results_the_picture_and_the_reasons(tmp_path, results, explanation):
    files = write_report(tmp_path / "new", results)
    names = {"results.json", "loss.png", "explain-float16.txt", "explain-float16.json"}
    assert {file.name for file in files} == names
    assert {file.name for file in (tmp_path / "new").iterdir()} == names
    data = json.loads((tmp_path / "new" / "results.json").read_text())
    full, half = data["results"]
    assert full["accuracy"] == pytest.approx(0.85)
    assert full["accuracy_spread"] == pytest.approx(0.0707, abs=1e-4)
    assert full["explain"] is None
    assert half["skipped"] == [3]
    assert half["final_loss_scale"] == [2.0**15]
    assert half["explain"]["casts_inserted"] == explanation.summary.casts_inserted
    assert half["explain"]["flops_half_share"] == explanation.summary.flops_half_share
    assert half["runs"][0]["losses"] == [2.0, 1.0]
    assert (tmp_path / "new" / "loss.png").read_bytes().startswith(PNG)
    text = (tmp_path / "new" / "explain-float16.txt").read_text()
    assert "conv_general_d" in text
    assert json.loads((tmp_path / "new" / "explain-float16.json").read_text())


def test_a_report_replaces_the_one_before(tmp_path, results):
    write_report(tmp_path, results)
    write_report(tmp_path, results[:1])
    data = json.loads((tmp_path / "results.json").read_text())
    assert [result["precision"] for result in data["results"]] == ["float32"]


def test_a_training_that_went_wrong_still_has_a_report(tmp_path):
    full = Precision.FLOAT32
    run = a_run(full, losses=(1.0, math.inf, math.nan), skipped=2)
    write_report(tmp_path, [Result(full, (run,), None)])
    assert (tmp_path / "loss.png").read_bytes().startswith(PNG)

    def refuse(constant):
        raise ValueError(f"{constant} is not a JSON")

    text = (tmp_path / "results.json").read_text()
    (result,) = json.loads(text, parse_constant=refuse)["results"]
    assert result["runs"][0]["losses"] == [1.0, None, None]


def test_a_file_in_the_way_is_an_error(tmp_path, results):
    (tmp_path / "taken").write_text("")
    with pytest.raises(ArgumentError, match="is a file"):
        write_report(tmp_path / "taken", results)


def test_without_matplotlib_the_error_says_how_to_install_it(monkeypatch, results):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"matplotlib.*pip install 'duotone\[demo\]'"):
        picture(results)


def test_the_error_is_an_import_error_and_a_duotone_error():
    assert issubclass(MissingExtraError, ImportError)
    assert issubclass(MissingExtraError, duotone.DuotoneError)
