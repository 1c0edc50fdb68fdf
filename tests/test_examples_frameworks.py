"""The training programs of examples/ for frameworks and kinds of models, each run small.

Every one trains, resumes from its checkpoint, writes curves, and refuses bad input in one line.
"""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from duotone.errors import ArgumentError

FOLDER = Path(__file__).parents[1] / "examples"
SMALL = {
    "equinox_train": {"epochs": 1, "batch": 512},
    "flax_nnx": {"epochs": 1, "batch": 512},
    "haiku_train": {"epochs": 1, "batch": 512},
    "keras_fit": {"epochs": 1, "batch": 512},
    "diffusion": {"epochs": 1, "batch": 512},
    "generate": {"steps": 1, "batch": 2, "tokens": 2},
    "fine_tune": {"steps": 1, "batch": 2, "base_steps": 1, "data": FOLDER / "README.md"},
    "resnet50": {"steps": 1, "batch": 8, "size": 32, "width": 2, "blocks": (1, 1, 1, 1)},
}


def load(name):
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SMALL)
def test_trains_writes_and_refuses_another_precision(name, tmp_path, capsys):
    example, folders = load(name), {"logs": tmp_path / "logs", "checkpoints": tmp_path / "saved"}
    value = example.train(precision="float16", **SMALL[name], **folders)
    assert np.isfinite(value)
    assert "'dtype': 'float16'" in capsys.readouterr().out
    assert list(folders["logs"].iterdir())
    assert (folders["checkpoints"] / "1").is_dir()
    bad_input = getattr(example, "BadInput", ArgumentError)
    with pytest.raises(bad_input, match=r"float16.*this run of.*bfloat16"):
        example.train(precision="bfloat16", **SMALL[name], **folders)
    for file in (folders["checkpoints"] / "1" / "state").rglob("*"):
        if file.is_file():
            file.write_bytes(b"broken")
    with pytest.raises(bad_input, match=r"read"):
        example.train(precision="float16", **SMALL[name], **folders)


@pytest.mark.parametrize("name", SMALL)
def test_refuses_in_one_line(name, tmp_path, capsys, monkeypatch):
    taken = tmp_path / "file"
    taken.write_text("no folder")
    for wrong in (["--loss-scale", "wax"], ["--loss-scale", "1x"], ["--checkpoints", str(taken)]):
        small = ["--size", "32", "--width", "2"] if name == "resnet50" else []
        monkeypatch.setattr(sys, "argv", [name, "--batch", "8", *small, *wrong])
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        assert stop.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith(f"{name}.py: ")
        assert said.count("\n") == 1


def test_examples_are_at_most_200_lines():
    for name in SMALL:
        assert len((FOLDER / f"{name}.py").read_text().splitlines()) <= 200, name


def test_a_base_is_taken_up_and_one_that_is_none_refused(tmp_path, capsys):
    """A run's adapters, an empty folder and other adapters are refused as a base."""
    example, small = load("fine_tune"), SMALL["fine_tune"]
    one, two = tmp_path / "one", tmp_path / "two"
    example.train(precision="float32", checkpoints=one, **small)
    before = re.search(r"perplexity \d+", capsys.readouterr().out)
    assert before
    example.train(precision="float16", base=one / "base", checkpoints=two, **small)
    said = capsys.readouterr().out
    assert before[0] in said  # the same base, in another precision
    assert "14 of 20 arrays in float16" in said  # all projections are cast, once
    for wrong, words in ((one, "adapters"), (tmp_path / "none", "no checkpoint")):
        with pytest.raises(ArgumentError, match=words):
            example.train(precision="float16", base=wrong, **small)
    with pytest.raises(ArgumentError, match=r"'base': \d+.*this run of"):
        example.train(precision="float16", checkpoints=two, **small)  # on a base of its own


def test_few_bytes_to_fine_tune_on(tmp_path):
    few = tmp_path / "few.txt"
    few.write_text("too little")
    with pytest.raises(ArgumentError, match="10 bytes"):
        load("fine_tune").train(data=few)
