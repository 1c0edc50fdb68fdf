"""Every program in examples/ runs small, and says in one line what is wrong with its input."""

from __future__ import annotations

import gzip
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

EXAMPLES = Path(__file__).parents[1] / "examples"
OF_TENSORFLOW = ("keras_tensorflow.py", "tensorflow_gan.py")
"""They need TensorFlow; tests/adapters/tensorflow_live/test_page.py runs them."""
SCRIPTS = sorted(script for script in EXAMPLES.glob("*.py") if script.name not in OF_TENSORFLOW)
LONGEST = 200
"""Lines of a file that a user copies and changes."""
TINY = {
    "mnist.py": "--epochs 2 --batch 600",
    "cifar10.py": "--epochs 2 --batch 16 --width 2 --data cifar",
    "gan.py": "--steps 2 --batch 8",
    "language_model.py": "--steps 2 --batch 2 --data text.txt",
    # What these write and refuse: tests/test_examples_frameworks.py.
    "diffusion.py": "--epochs 1 --batch 512",
    "equinox_train.py": "--epochs 1 --batch 512",
    "fine_tune.py": "--steps 1 --batch 2 --base-steps 1 --data text.txt",
    "flax_nnx.py": "--epochs 1 --batch 512",
    "generate.py": "--steps 1 --batch 2 --tokens 2",
    "haiku_train.py": "--epochs 1 --batch 512",
    "keras_fit.py": "--epochs 1 --batch 512",
    "resnet50.py": "--steps 1 --batch 8 --size 32 --width 2 --blocks 1 1 1 1",
}
"""Arguments that make an example small; one without a line runs unchanged."""
LOGGED = {
    "mnist.py": ("loss", "loss_scale", "skipped_steps", "mistaken"),
    "cifar10.py": ("loss", "loss_scale", "skipped_steps", "mistaken"),
    "gan.py": ("generator/scale", "discriminator/scale", "skipped_steps", "drawn"),
    "language_model.py": ("loss", "loss_scale", "skipped_steps"),
}
"""Tags in TensorBoard; an image may come in parts."""


def run(name, arguments):
    """Runs an example as a command; its exit status."""
    before = sys.argv
    sys.argv = [name, *arguments.split()]
    try:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    except SystemExit as end:
        return end.code or 0
    finally:
        sys.argv = before
    return 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to run in, with small data files."""
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).integers(0, 256, (32, 3073), dtype=np.uint8)
    rows[:, 0] %= 10
    (tmp_path / "cifar").mkdir()
    rows[:16].tofile(tmp_path / "cifar" / "data_batch_1.bin")
    rows[16:].tofile(tmp_path / "cifar" / "test_batch.bin")
    (tmp_path / "text.txt").write_text("to be or not to be , that is the question . " * 70)
    return tmp_path


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_example_runs(script, capsys, folder):
    assert len(script.read_text().splitlines()) <= LONGEST
    assert run(script.name, TINY.get(script.name, "")) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", LOGGED)
def test_it_logs_and_goes_on_from_the_last_whole_checkpoint(name, folder, capsys):
    arguments = f"{TINY[name]} --precision float16 --checkpoints saved"
    assert run(name, f"{arguments} --logs logs") == 0
    first = capsys.readouterr().out.splitlines()[-1]
    events = EventAccumulator(str(folder / "logs")).Reload()
    tags = [*events.Tags()["scalars"], *(tag.split("/")[0] for tag in events.Tags()["images"])]
    assert set(LOGGED[name]) <= set(tags)
    assert list((folder / "logs" / "duotone").glob("events*"))  # the painted graph
    # What a killed process leaves: no whole second checkpoint, and a part of it.
    if (folder / "saved" / "1").exists():
        (folder / "saved" / "2").rename(folder / "saved" / "2.orbax-checkpoint-tmp-7")
    assert run(name, arguments) == 0
    assert capsys.readouterr().out.splitlines()[-1] == first
    assert run(name, arguments.replace("float16", "bfloat16")) == 2
    assert_one_line(capsys, "float16")


def assert_one_line(capsys, *words):
    """The last error is one line with these words, and no traceback."""
    error = capsys.readouterr().err.strip()
    assert "Traceback" not in error
    line = error.splitlines()[-1]
    assert line.split()[0].endswith(".py:")
    for word in words:
        assert word in line


@pytest.mark.parametrize("name", TINY)
def test_another_word_for_a_loss_scale_is_one_clear_line(name, folder, capsys):
    assert run(name, f"{TINY[name]} --loss-scale sometimes") == 2
    assert_one_line(capsys, "sometimes", "dynamic")


BAD = {
    "no folder": ("mnist.py", "--data nowhere", "train-images"),
    "no files": ("cifar10.py", "--data nowhere", "data_batch"),
    "no text": ("language_model.py", "--data nowhere.txt", "nowhere.txt"),
    "too large a batch": ("mnist.py", "--batch 100000", "--batch 100000"),
    "devices that do not divide it": ("cifar10.py", "--data cifar --batch 12", "8 devices"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(case, folder, capsys):
    name, arguments, word = BAD[case]
    assert run(name, arguments) == 2
    assert_one_line(capsys, word)


def test_a_checkpoint_that_is_damaged_is_one_clear_line(folder, capsys):
    arguments = "--steps 1 --batch 2 --data text.txt --precision float32 --checkpoints saved"
    assert run("language_model.py", arguments) == 0
    shutil.rmtree(folder / "saved" / "1" / "state")
    capsys.readouterr()
    assert run("language_model.py", arguments) == 2
    assert_one_line(capsys, "saved/1")


def test_mnist_reads_packed_files(folder, capsys):
    data = folder / "mnist"
    data.mkdir()
    for name, count in (("train", 12), ("t10k", 4)):
        images = bytes([0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(784 * count)
        (data / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        labels = bytes([0, 0, 8, 1, 0, 0, 0, count]) + bytes(range(count))[:10].ljust(count, b"\0")
        (data / f"{name}-labels-idx1-ubyte").write_bytes(labels)
    assert run("mnist.py", "--data mnist --batch 4 --epochs 1") == 0
    broken = data / "train-labels-idx1-ubyte"
    broken.write_bytes(broken.read_bytes()[:-1])
    assert run("mnist.py", "--data mnist --batch 4 --epochs 1") == 2
    assert_one_line(capsys, "train-labels-idx1-ubyte", "holds 11")


@pytest.mark.slow
def test_killed_in_ten_checkpoints_it_ends_as_if_it_had_not_been(tmp_path):
    arguments = ["--epochs", "16", "--batch", "600", "--precision", "float16"]

    def command(name):
        saved = tmp_path / name
        where = ["--checkpoints", str(saved), "--logs", str(tmp_path / f"{name}-logs")]
        return [sys.executable, str(EXAMPLES / "mnist.py"), *arguments, *where]

    subprocess.run(command("whole"), check=True, capture_output=True)
    for kill in range(10):
        running = subprocess.Popen(command("killed"), stdout=subprocess.DEVNULL)
        seen: set[str] = set()
        while len(seen) < 1 + kill % 2:  # during its first save, or its second
            assert running.poll() is None, "it ended before it could be killed"
            here = tmp_path / "killed"
            seen |= (
                {p.name for p in here.glob("*.orbax-checkpoint-tmp*")} if here.exists() else set()
            )
            time.sleep(0.0005)
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
    subprocess.run(command("killed"), check=True, capture_output=True)

    def losses(name):
        events = EventAccumulator(str(tmp_path / f"{name}-logs"), purge_orphaned_data=False)
        return {(e.step, e.value) for e in events.Reload().Scalars("loss")}

    def state(name):
        items = ocp.args.Composite(state=ocp.args.StandardRestore())
        return ocp.CheckpointManager(tmp_path / name).restore(16, args=items)["state"]

    assert len(losses("whole")) == 16
    assert losses("killed") == losses("whole")
    a, b = (json.dumps(jax_free(state(name))) for name in ("whole", "killed"))
    assert a == b


def jax_free(tree):
    """A tree as lists and numbers."""
    if isinstance(tree, dict):
        return {key: jax_free(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [jax_free(value) for value in tree]
    return None if tree is None else np.asarray(tree).tolist()
