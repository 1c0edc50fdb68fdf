"""The training programs of examples/ for frameworks and kinds of models, each run small.

Every one trains, resumes from its checkpoint, writes curves, and refuses bad input in one line.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "examples"
SMALL = {
    "equinox_train": {"epochs": 1, "batch": 512},
    "flax_nnx": {"epochs": 1, "batch": 512},
    "haiku_train": {"epochs": 1, "batch": 512},
    "keras_fit": {"epochs": 1, "batch": 512},
    "diffusion": {"epochs": 1, "batch": 512},
    "generate": {"steps": 1, "batch": 2, "tokens": 2},
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
    with pytest.raises(example.BadInput, match=r"float16.*this run of.*bfloat16"):
        example.train(precision="bfloat16", **SMALL[name], **folders)
    for file in (folders["checkpoints"] / "1" / "state").rglob("*"):
        if file.is_file():
            file.write_bytes(b"broken")
    with pytest.raises(example.BadInput, match=r"read"):
        example.train(precision="float16", **SMALL[name], **folders)


@pytest.mark.parametrize("name", SMALL)
def test_refuses_in_one_line(name, tmp_path, capsys, monkeypatch):
    taken = tmp_path / "file"
    taken.write_text("no folder")
    for wrong in (["--loss-scale", "wax"], ["--checkpoints", str(taken)]):
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
