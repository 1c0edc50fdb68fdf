"""A function exported as a TensorFlow SavedModel, which TensorFlow loads and runs.

``make test-tensorflow`` runs these in an environment of their own; elsewhere those that need
TensorFlow are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.cli.main import run
from duotone.errors import ArgumentError, MissingExtraError, RewriteError, WriteError
from duotone.exporting.export_saved_model import ABOUT
from duotone.exporting.exported import DESCRIPTION, RECORD

W = jax.random.normal(jax.random.key(0), (64, 256)) / 8
X = np.asarray(jax.random.normal(jax.random.key(1), (8, 64)))
EPS = float(jnp.finfo("bfloat16").eps)

needs_tensorflow = [
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None, reason="make test-tensorflow runs these"
    ),
    pytest.mark.filterwarnings("default"),  # TensorFlow's own are not ours to judge
]


def in_tensorflow(test):
    for mark in needs_tensorflow:
        test = mark(test)
    return test


def predict(weights, images, scale=None):
    scores = jax.nn.softmax(images @ weights)
    return {"scores": scores if scale is None else scores * scale}


def fast(dtype="bfloat16"):
    return duotone.autocast(predict, dtype=dtype, weights=W)


def export(function, *args, path, **options):
    return duotone.export(function, *args, path=path, format="saved_model", **options)


WITHOUT_DUOTONE = """
import sys
import numpy as np
sys.modules["jax"] = sys.modules["duotone"] = None  # an import of either fails
import tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
x = tf.constant(np.load(sys.argv[2]))
scores = model.signatures["serving_default"](images=x)["scores"]
np.testing.assert_array_equal(scores, model.call(x)["scores"])
np.save(sys.argv[3], scores)
"""


@in_tensorflow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_runs_in_tensorflow_without_duotone_and_jax(tmp_path, dtype):
    made = export(fast(dtype), X, path=tmp_path / "model", batch_argnums=0)
    more = np.concatenate([X, X[::-1], X])
    np.save(tmp_path / "x.npy", more)
    paths = [str(tmp_path / name) for name in ("model", "x.npy", "y.npy")]
    subprocess.run([sys.executable, "-c", WITHOUT_DUOTONE, *paths], check=True)
    found, own = np.load(tmp_path / "y.npy"), np.asarray(fast(dtype)(more)["scores"])
    eps = float(jnp.finfo(dtype).eps)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, own, atol=eps * own.max())
    full = np.asarray(predict(W, more)["scores"])
    assert np.abs(found - full).max() > 4 * np.abs(found - own).max()  # half, not float32
    assert made.description["half_dtype"] == dtype
    assert made.description["difference"] < eps


@in_tensorflow
def test_weights_are_inside_and_half(tmp_path):
    export(fast(), X, path=tmp_path / "half")
    export(fast("float32"), X, path=tmp_path / "full")
    half, full = ((tmp_path / n / "saved_model.pb").stat().st_size for n in ("half", "full"))
    assert full > W.nbytes
    assert full - half > 0.45 * W.nbytes


@in_tensorflow
def test_described_and_read_again(tmp_path):
    folder = tmp_path / "model"
    made = export(fast(), X, path=folder, batch_argnums=0)
    seen = json.loads((folder / DESCRIPTION).read_text())
    assert (seen["kind"], seen["arguments"], seen["results"]) == (
        "saved_model",
        ["images"],
        ["scores"],
    )
    files = {f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file()}
    assert set(seen["files"]) == files - {DESCRIPTION}
    assert {RECORD, ABOUT, "saved_model.pb"} <= files
    about = json.loads((folder / ABOUT).read_text())
    assert about["policy"] == "policy: all defaults"
    assert about["versions"]["duotone"] == duotone.__version__
    assert about["versions"]["jax"] == jax.__version__
    assert "differs by" in repr(made)
    read = duotone.read_export(folder)
    assert isinstance(read, duotone.ExportedSavedModel)
    np.testing.assert_array_equal(read.call(X)["scores"], made.call(X)["scores"])
    with pytest.raises(ArgumentError, match=r"takes 1 arrays \(images\); got 2"):
        read.call(X, X)
    (folder / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ArgumentError, match=r"saved_model\.pb was changed"):
        duotone.read_export(folder)


class Pair(NamedTuple):
    a: Any
    b: Any


@in_tensorflow
def test_names_of_pytrees_types_and_arguments_that_nothing_reads(tmp_path):
    def function(params, x, unused, *, count):
        made = (x @ params["w 1"]).astype(jnp.bfloat16)
        return Pair(made, (count + 1, x > 0)), params["w"]["1"]

    params = {"w 1": jnp.ones((64, 4)), "w": {"1": jnp.full(2, 3.0)}}
    given = (params, X, jnp.ones(3))
    made = export(
        function, *given, count=jnp.int32(2), path=tmp_path / "m", dtype="bfloat16", batch_argnums=1
    )
    inputs = ["params_w_1", "params_w_1_1", "x", "unused", "count"]
    results = ["result_0_a", "result_0_b_0", "result_0_b_1", "result_1"]
    assert (made.description["arguments"], made.description["results"]) == (inputs, results)
    own = jax.tree.leaves(function(*given, count=jnp.int32(2)))
    for found, expected in zip(made.call(*given, count=2).values(), own, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found.astype("f"), np.asarray(expected, "f"), rtol=2 * EPS)


@in_tensorflow
def test_other_open_sizes_and_shapes_in_place_of_arrays(tmp_path):
    b, n = jax.export.symbolic_shape("b, n")
    shape = jax.ShapeDtypeStruct((b, 2 * n, 64), jnp.float32)
    made = export(lambda x: x @ W, shape, path=tmp_path / "model", dtype="bfloat16")
    assert made.description["difference"] is None
    assert made.call(np.ones((3, 6, 64), np.float32))["result"].shape == (3, 6, 256)


@in_tensorflow
def test_for_another_device_and_not_for_the_cpu(tmp_path):
    chosen = duotone.autocast(predict, weights=W)
    made = export(chosen, X, path=tmp_path / "t4", target="t4")
    assert made.description["half_dtype"] == "float16"
    assert made.description["platforms"] == ["cuda", "cpu"]
    assert made.description["difference"] is not None
    made = export(fast(), X, path=tmp_path / "cuda", platforms=["cuda"])
    assert made.description["difference"] is None


@in_tensorflow
def test_another_program_is_not_written(tmp_path, monkeypatch):
    kept = duotone.ExportedSavedModel.call
    wrong = lambda self, *args: {k: v + 0.2 * v.max() for k, v in kept(self, *args).items()}  # noqa: E731
    monkeypatch.setattr(duotone.ExportedSavedModel, "call", wrong)
    with pytest.raises(RewriteError, match=r"differs from the function by 0\.2"):
        export(fast(), X, path=tmp_path / "model")
    assert not list(tmp_path.iterdir())


@in_tensorflow
def test_what_tensorflow_does_not_take_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    key = jax.random.key(0)
    with pytest.raises(ArgumentError, match=r"key of .* is key<fry>.*jax\.random\.key_data"):
        export(lambda key, x: x @ x.T, key, X, path=tmp_path / "model", dtype="bfloat16")
    import tensorflow as tf  # pyright: ignore[reportMissingModuleSource]

    def full(*args, **kwargs):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device\nat ...")

    monkeypatch.setattr(tf.saved_model, "save", full)
    with pytest.raises(WriteError, match=r"cannot write .*model: No space left on device\. Name"):
        export(fast(), X, path=tmp_path / "model")
    assert not list(tmp_path.iterdir())


TOO_NEW = """Graph execution error:

Detected at node XlaCallModule defined at (most recent call last):
<stack traces unavailable>
Cannot deserialize computation: UNKNOWN: a.py:1: error: unregistered operation 'vhlo.new_v9' found
a.py:1: error: failed to deserialize portable artifact using StableHLO_v1.13.7
"""


@in_tensorflow
@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            TOO_NEW,
            r"'vhlo\.new_v9': it reads StableHLO 1\.13\.7, and JAX .* Use a newer TensorFlow",
        ),
        ("Graph execution error:\n\nout of luck\nat ...", r"cannot run predict: out of luck\. "),
    ],
)
def test_a_program_that_tensorflow_cannot_run_is_not_written(tmp_path, monkeypatch, said, shown):
    import tensorflow as tf  # pyright: ignore[reportMissingModuleSource]

    def refuse(self, *args):
        raise tf.errors.InvalidArgumentError(None, None, said)

    monkeypatch.setattr(duotone.ExportedSavedModel, "call", refuse)
    with pytest.raises(ArgumentError, match=shown):
        export(fast(), X, path=tmp_path / "model")
    assert not list(tmp_path.iterdir())


@in_tensorflow
def test_a_rewrite_finds_nothing_to_do(tmp_path):
    pytest.importorskip("tensorboard")
    from duotone.tensorflow import rewrite_file

    made = export(fast(), X, path=tmp_path / "model")
    done = rewrite_file(tmp_path / "model", tmp_path / "again", dtype="bfloat16")
    assert not done.graphs[0].result.casts
    again = duotone.ExportedSavedModel(tmp_path / "again", made.description)
    np.testing.assert_array_equal(again.call(X)["scores"], made.call(X)["scores"])


@in_tensorflow
def test_from_the_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "served.py").write_text(
        "import jax.numpy as jnp\n"
        "def example():\n"
        "    return (lambda w, x: x @ w), jnp.ones((64, 16)), jnp.ones((4, 64))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    options = ["--out", "model", "--format", "saved_model", "--dtype", "bfloat16", "--batch", "1"]
    with pytest.raises(SystemExit) as ended:
        run(["export", "served.py:example", *options])
    assert not ended.value.code
    said = capsys.readouterr().out
    assert "bytes  model/saved_model.pb" in said
    assert "ExportedSavedModel(" in said


def test_without_tensorflow_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(
        MissingExtraError, match=r"SavedModel .* pip install 'duotone\[tensorflow\]"
    ):
        export(fast(), X, path=tmp_path / "model")
    assert not list(tmp_path.iterdir())
    with pytest.raises(MissingExtraError, match=r"duotone\[tensorflow\]"):
        duotone.ExportedSavedModel(tmp_path, {"arguments": ["images"]}).call(X)
