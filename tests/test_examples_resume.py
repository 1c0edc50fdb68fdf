"""A training that was cut off goes on as if it had not been: the same curves, the same metric."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.quick import slow_but

ROOT = Path(__file__).parents[1]
SMALL: dict[str, tuple[int, dict[str, Any]]] = {
    "cifar10": (1, {"epochs": 2, "batch": 512, "width": 2}),
    "diffusion": (1, {"epochs": 2, "batch": 512}),
    "equinox_train": (1, {"epochs": 2, "batch": 512}),
    "fine_tune": (51, {"steps": 52, "batch": 1, "base_steps": 1}),
    "flax_nnx": (1, {"epochs": 2, "batch": 512}),
    "gan": (51, {"steps": 52, "batch": 2}),
    "generate": (101, {"steps": 102, "batch": 1, "tokens": 2}),
    "haiku_train": (1, {"epochs": 2, "batch": 512}),
    "keras_fit": (1, {"epochs": 2, "batch": 256}),
    "mnist": (1, {"epochs": 2, "batch": 512}),
    "resnet50": (
        101,
        {"steps": 102, "batch": 8, "size": 32, "width": 1, "blocks": (1, 1, 1, 1)},
    ),
    "language_model": (11, {"steps": 12, "batch": 2}),
}
"""After how many steps or epochs it is cut off, downstream of a checkpoint; and its arguments."""
WITH_TEXT = ("fine_tune", "language_model")


def folder_of_images(folder: Path) -> Path:
    """Eight images of each of two classes, as PNG files."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 16, 16, 3), np.uint8)
    for label, images in enumerate(pixels):
        (folder / str(label)).mkdir(parents=True)
        for place, image in enumerate(images):
            Image.fromarray(image).save(folder / str(label) / f"{place}.png")
    return folder


class CutOff(Exception):  # noqa: N818
    """In the place of an end that no program sees coming."""


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cut_off(module: Any, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends the module's training before a step."""

    def end() -> None:
        for writer in writers:  # as at the end of a process
            writer.close()
        raise CutOff

    def track(steps: range, *_: Any) -> Any:
        for step in steps:
            if step == after:
                end()
            yield step

    def on_epoch_begin(self: Any, epoch: int, logs: Any = None) -> None:
        if epoch == after:
            end()

    class Writer(module.SummaryWriter):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            writers.append(self)

    writers: list[Any] = []
    monkeypatch.setattr(module, "SummaryWriter", Writer)
    if hasattr(module, "track"):
        monkeypatch.setattr(module, "track", track)
    else:  # Keras has the loop
        monkeypatch.setattr(module.ShowProgress, "on_epoch_begin", on_epoch_begin)


def curves(folder: Path) -> dict[str, dict[int, float]]:
    """The numbers in TensorBoard, of all runs that wrote there."""
    events = EventAccumulator(str(folder), purge_orphaned_data=False).Reload()
    tags = events.Tags()["scalars"]
    return {tag: {each.step: each.value for each in events.Scalars(tag)} for tag in tags}


@pytest.mark.parametrize("name", slow_but("equinox_train", SMALL))
def test_cut_off_it_goes_on_as_if_it_had_not_been(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after, small = SMALL[name]
    if name in WITH_TEXT:
        (tmp_path / "text.txt").write_text("to be or not to be , that is the question . " * 70)
        small = {**small, "data": tmp_path / "text.txt"}
    if name == "resnet50":
        small = {**small, "data": folder_of_images(tmp_path / "images")}
    example = load(name)

    def train(to: str) -> float:
        folder = tmp_path / to
        return example.train(
            precision="float16", logs=folder / "logs", checkpoints=folder / "saved", **small
        )

    whole = train("whole")
    with monkeypatch.context() as patch:
        cut_off(example, after, patch)
        with pytest.raises(CutOff):
            train("cut off")
    assert curves(tmp_path / "cut off" / "logs") != curves(tmp_path / "whole" / "logs")
    assert train("cut off") == whole
    assert curves(tmp_path / "cut off" / "logs") == curves(tmp_path / "whole" / "logs")


@pytest.mark.parametrize("name", slow_but("language_model", ["gan", "language_model"]))
def test_the_curve_is_in_the_checkpoint(name: str, tmp_path: Path) -> None:
    """What ``--picture`` draws of; a run that is taken up at its end has all of it."""
    example, settings = load(name), ("float32", "none", 2, 2, 0)
    (tmp_path / "text.txt").write_text("to be or not to be , that is the question . " * 70)
    given: tuple[Any, ...] = (settings,)
    if name == "language_model":
        given = ["words", "lstm", *settings], example.load_blocks(tmp_path / "text.txt")
    whole = example.fit(*given, checkpoints=tmp_path / "saved")[0]
    assert len(whole) > 0
    again = example.fit(*given, checkpoints=tmp_path / "saved")[0]
    np.testing.assert_array_equal(again, whole)
