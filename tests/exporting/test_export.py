"""An exported program computes what the function does, in a process without duotone."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone.errors import ArgumentError, ArgumentTypeError, RewriteError, UnknownTargetError
from duotone.exporting.exported import DESCRIPTION, PROGRAM, RECORD, STABLEHLO

KEYS = jax.random.split(jax.random.key(0), 3)
PARAMS = {
    "hidden": jax.random.normal(KEYS[0], (64, 128)) / 8,
    "head": jax.random.normal(KEYS[1], (128, 16)) / 11,
}
X = jax.random.normal(KEYS[2], (8, 64))


def predict(params, x, *, activation="gelu", scale=None):
    hidden = getattr(jax.nn, activation)(x @ params["hidden"])
    scores = jax.nn.softmax(hidden @ params["head"])
    return {"scores": scores if scale is None else scores * scale}


def fast(dtype="bfloat16"):
    return duotone.autocast(predict, dtype=dtype, weights=PARAMS)


WITHOUT_DUOTONE = """
import sys
import jax, numpy as np
with open(sys.argv[1], "rb") as file:
    program = jax.export.deserialize(bytearray(file.read()))
x = np.load(sys.argv[2])
np.save(sys.argv[3], program.call(x)["scores"])
assert "duotone" not in sys.modules
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_runs_in_a_process_without_duotone(tmp_path, dtype):
    made = duotone.export(fast(dtype), X, path=tmp_path / "model", batch_argnums=0)
    more = np.concatenate([X, X[::-1]])
    np.save(tmp_path / "x.npy", more)
    paths = [str(tmp_path / name) for name in (f"model/{PROGRAM}", "x.npy", "y.npy")]
    subprocess.run([sys.executable, "-c", WITHOUT_DUOTONE, *paths], check=True)
    found, own = np.load(tmp_path / "y.npy"), np.asarray(fast(dtype)(more)["scores"])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, own, atol=4 * float(jnp.finfo(dtype).eps) * own.max())
    assert made.description["half_dtype"] == dtype
    assert made.description["arguments"] == ["float32[batch,64]"]
    assert made.description["difference"] < float(jnp.finfo(dtype).eps)


def test_weights_are_in_the_program_and_half(tmp_path):
    duotone.export(fast(), X, path=tmp_path / "half")
    duotone.export(fast("float32"), X, path=tmp_path / "full")
    half, full = ((tmp_path / name / PROGRAM).stat().st_size for name in ("half", "full"))
    weights = sum(leaf.nbytes for leaf in PARAMS.values())
    assert full > weights
    assert full - half > 0.45 * weights


def test_all_files_are_there_and_described(tmp_path):
    duotone.export(fast(), X, path=tmp_path / "model", platforms=["cpu", "cuda", "tpu"])
    folder = tmp_path / "model"
    assert {f.name for f in folder.iterdir()} == {PROGRAM, STABLEHLO, RECORD, DESCRIPTION}
    seen = json.loads((folder / DESCRIPTION).read_text())
    assert seen["platforms"] == ["cpu", "cuda", "tpu"]
    assert seen["versions"]["duotone"] == duotone.__version__
    assert json.loads((folder / RECORD).read_text())["summary"]["half_dtype"] == "bfloat16"
    assert (folder / STABLEHLO).read_bytes().startswith(b"ML\xefR")


def test_painted_for_a_device_that_is_not_here(tmp_path):
    chosen = duotone.autocast(predict, weights=PARAMS)
    made = duotone.export(chosen, X, path=tmp_path / "t4", target="t4")
    assert made.description["half_dtype"] == "float16"
    assert made.description["painted_for"] == "t4"
    assert made.description["platforms"] == ["cuda", "cpu"]


def test_read_again(tmp_path):
    made = duotone.export(fast(), X, path=tmp_path / "model")
    read = duotone.read_export(tmp_path / "model")
    assert read.description == made.description
    assert "bfloat16, for cpu" in repr(read)
    np.testing.assert_array_equal(read.call(X)["scores"], made.call(X)["scores"])


def test_arguments_without_arrays_are_part_of_the_program(tmp_path):
    scale = jnp.full(16, 2.0)
    made = duotone.export(fast(), X, activation="relu", scale=scale, path=tmp_path / "model")
    assert made.description["fixed"] == {"activation": "'relu'"}
    own = fast()(X, activation="relu", scale=scale)["scores"]
    np.testing.assert_allclose(made.call(X, scale=scale)["scores"], own, rtol=1e-2)


def test_a_random_key_is_an_argument(tmp_path):
    def dropped(key, x):
        now, later = jax.random.split(key)
        return later, jax.random.bernoulli(now, 0.5, x.shape) * (x @ x.T @ x)

    key = jax.random.key(3)
    made = duotone.export(dropped, key, X, path=tmp_path / "model", dtype="bfloat16")
    other = jax.random.key(4)
    _, own = duotone.autocast(dropped, dtype="bfloat16")(other, X)
    later, found = made.call(other, X)
    np.testing.assert_array_equal(found, own)
    assert jax.random.key_impl(later) == jax.random.key_impl(key)


def test_shapes_in_place_of_arrays_are_not_compared(tmp_path):
    shape = jax.ShapeDtypeStruct((8, 64), jnp.float32)
    made = duotone.export(fast(), shape, path=tmp_path / "model")
    assert made.description["difference"] is None
    assert "not compared" in repr(made)
    assert made.call(X)["scores"].shape == (8, 16)


def test_integers_and_results_that_are_not_finite(tmp_path):
    def function(x, n):
        return jnp.log(x @ x.T - 1e9), n // 2, x > 0

    made = duotone.export(
        duotone.autocast(function, dtype="bfloat16"), X, jnp.arange(4), path=tmp_path / "model"
    )
    assert made.description["difference"] == 0
    assert made.description["results"] == ["float32[8,8]", "int32[4]", "bool[8,64]"]


def test_any_function_is_painted_unless_float32_is_asked_for(tmp_path):
    function = lambda x: x @ x.T  # noqa: E731
    half = duotone.export(function, X, path=tmp_path / "half", dtype="bfloat16")
    full = duotone.export(function, X, path=tmp_path / "full", dtype="float32")
    assert half.description["half_dtype"] == "bfloat16"
    assert full.description["half_dtype"] is None
    np.testing.assert_array_equal(full.call(X), jax.jit(function)(X))
    assert (half.call(X) != full.call(X)).any()


def test_settings_given_here_win(tmp_path):
    policy = duotone.Policy(keep_full=("*",))
    own = duotone.autocast(lambda x: x @ x.T, dtype="bfloat16")
    made = duotone.export(own, X, path=tmp_path / "model", dtype="float16")
    assert made.description["half_dtype"] == "float16"
    made = duotone.export(own, X, path=tmp_path / "full", policy=policy)
    assert made.description["half_dtype"] is None
    assert made.description["policy"] == "policy: keeps full *"
    with pytest.raises(ArgumentError, match="has its weights already"):
        duotone.export(fast(), X, path=tmp_path / "other", dtype="float16")


def test_functions_around_a_painted_one(tmp_path):
    mapped = jax.jit(jax.vmap(duotone.autocast(lambda x: x @ x.T, dtype="bfloat16")))
    many = jnp.stack([X, X])
    made = duotone.export(mapped, many, path=tmp_path / "model", dtype="bfloat16")
    np.testing.assert_array_equal(made.call(many), mapped(many))


@pytest.mark.parametrize("asked", [None, True])
def test_a_file_carries_no_compiler_options_so_it_is_painted_for_them_only_if_asked(
    tmp_path, on_fast_cpu, asked
):
    order = ("NHWC", "HWIO", "NHWC")
    images, kernel = jnp.ones((4, 16, 16, 32)), jnp.full((3, 3, 32, 32), 0.01)

    def convolve(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=order)

    step = duotone.autocast(convolve, policy=duotone.Policy(compiler_options=asked))
    made = duotone.export(step, images, kernel, path=tmp_path / "model")
    assert made.description["compiler_options"] is bool(asked)
    assert made.description["half_dtype"] == ("bfloat16" if asked else None)
    program = str(made.program.mlir_module())
    assert ("bf16" in program) is bool(asked)
    read = duotone.read_export(tmp_path / "model")
    np.testing.assert_allclose(read.call(images, kernel), convolve(images, kernel), rtol=1e-2)
    np.testing.assert_allclose(
        jax.jit(read.call)(images, kernel), read.call(images, kernel), rtol=1e-2
    )


def test_another_program_is_not_written(tmp_path, monkeypatch):
    def wrong(self, *args, **kwargs):
        return jax.tree.map(lambda x: x + 0.2 * x.max(), self._compiled(*args, **kwargs))

    monkeypatch.setattr(duotone.Exported, "call", wrong)
    with pytest.raises(RewriteError, match=r"differs from the function by 0\.2"):
        duotone.export(fast(), X, path=tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_program_larger_than_its_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("duotone.exporting.refusals.LARGEST", 1000)
    with pytest.raises(ArgumentError, match="Make the weights an argument"):
        duotone.export(fast(), X, path=tmp_path / "model")
    assert not list(tmp_path.iterdir())


class Pair(NamedTuple):
    a: jax.Array
    b: jax.Array


def test_what_cannot_be_exported_is_an_error_and_leaves_nothing(tmp_path):
    path = tmp_path / "model"
    pairs = duotone.autocast(lambda x: Pair(x @ x.T, x), dtype="bfloat16")
    with pytest.raises(ArgumentError, match="dicts, lists and tuples"):
        duotone.export(pairs, X, path=path)

    with pytest.raises(ArgumentTypeError, match="returns 'text': an exported program returns arr"):
        duotone.export(lambda x: ("text", x @ x.T), X, path=path, dtype="bfloat16")

    by_size = duotone.autocast(lambda x: x @ x.T if x.shape[0] > 4 else x, dtype="bfloat16")
    with pytest.raises(ArgumentError, match="depends on the value of an open size"):
        duotone.export(by_size, X, path=path, batch_argnums=0)

    def calls_python(x):
        kind = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda a: a, kind, x @ x.T @ x)

    with pytest.raises(ArgumentError, match="cannot export"):
        duotone.export(duotone.autocast(calls_python, dtype="bfloat16"), X, path=path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"target": "h201"}, UnknownTargetError, "h201"),
        ({"platforms": ["gpu"]}, ArgumentError, "'gpu'; name some of cpu, cuda"),
        ({"platforms": []}, ArgumentError, "at least one platform"),
        ({"batch_argnums": 1}, ArgumentError, "names argument 1"),
        ({"batch_argnums": (0, -2)}, ArgumentError, "names argument -2"),
    ],
)
def test_bad_arguments(tmp_path, arguments, error, text):
    with pytest.raises(error, match=text):
        duotone.export(fast(), X, path=tmp_path / "model", **arguments)
    assert not list(tmp_path.iterdir())


def test_no_function(tmp_path):
    with pytest.raises(ArgumentTypeError):
        duotone.export(PARAMS, X, path=tmp_path / "model")  # type: ignore[arg-type]


def test_a_folder_with_files_is_left_alone(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(ArgumentError, match="exists: it must be a new folder"):
        duotone.export(fast(), X, path=tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["notes"]
    (tmp_path / "empty").mkdir()
    duotone.export(fast(), X, path=tmp_path / "empty")
    assert (tmp_path / "empty" / PROGRAM).is_file()


def test_a_damaged_folder_is_named(tmp_path):
    folder = tmp_path / "model"
    duotone.export(fast(), X, path=folder)
    program = (folder / PROGRAM).read_bytes()
    (folder / PROGRAM).write_bytes(program[:-10])
    with pytest.raises(ArgumentError, match=r"program\.jax was changed"):
        duotone.read_export(folder)
    (folder / PROGRAM).unlink()
    with pytest.raises(ArgumentError, match=r"program\.jax is missing"):
        duotone.read_export(folder)
    description = json.loads((folder / DESCRIPTION).read_text())
    (folder / DESCRIPTION).write_text(json.dumps({**description, "format": 2}))
    with pytest.raises(ArgumentError, match="format 2"):
        duotone.read_export(folder)
    for text in ("[]", "{", "{}"):
        (folder / DESCRIPTION).write_text(text)
        with pytest.raises(ArgumentError, match="not what duotone"):
            duotone.read_export(folder)
    with pytest.raises(ArgumentError, match="cannot be read"):
        duotone.read_export(tmp_path / "nowhere")
