"""A function exported as an ONNX model: painted, compared, described; jax2onnx or a stand-in."""

from __future__ import annotations

import importlib.util
import json
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import duotone
from duotone.errors import ArgumentError, ArgumentTypeError, MissingExtraError, RewriteError
from duotone.exporting.exported import DESCRIPTION, MODEL, RECORD

W = np.asarray(jax.random.normal(jax.random.key(0), (64, 16))) / 8
X = np.asarray(jax.random.normal(jax.random.key(1), (8, 64)))

MADE_WITH = {"w": W}
"""The weights of the model that replaces jax2onnx's."""


def predict(weights, images):
    return {"scores": jnp.exp(jnp.tanh(images @ weights))}


def converted(function, inputs, *, model_name, input_names, output_names):
    """What jax2onnx makes of ``predict``, by hand."""
    (asked,) = inputs
    (scores,) = jax.eval_shape(function, asked)
    sides = [
        [str(side) if not isinstance(side, int) else side for side in s.shape]
        for s in (asked, scores)
    ]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", [input_names[0], "w"], ["h"]),
            helper.make_node("Tanh", ["h"], ["t"]),
            helper.make_node("Exp", ["t"], [output_names[0]]),
        ],
        model_name,
        [helper.make_tensor_value_info(input_names[0], 1, sides[0])],
        [helper.make_tensor_value_info(output_names[0], 1, sides[1])],
        [numpy_helper.from_array(MADE_WITH["w"], "w")],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax2onnx", types.SimpleNamespace(to_onnx=converted))


def fast(dtype="float16", policy=None):
    return duotone.autocast(predict, dtype=dtype, weights=W, policy=policy)


def dtypes(folder):
    model = onnx.load(folder / MODEL)
    return [tensor.data_type for tensor in model.graph.initializer]


def test_the_model_is_half_described_and_read_again(tmp_path, stand_in):
    folder = tmp_path / "model"
    made = duotone.export(fast(), X, path=folder, format="onnx", batch_argnums=0)
    assert {file.name for file in folder.iterdir()} == {MODEL, RECORD, DESCRIPTION}
    assert dtypes(folder) == [onnx.TensorProto.FLOAT16]
    seen = json.loads((folder / DESCRIPTION).read_text())
    assert (seen["kind"], seen["half_dtype"]) == ("onnx", "float16")
    assert (seen["arguments"], seen["results"]) == (["images"], ["scores"])
    assert 0 < seen["difference"] < 1e-3
    told = {prop.key: prop.value for prop in onnx.load(folder / MODEL).metadata_props}
    assert told["duotone.duotone"] == duotone.__version__
    assert told["duotone.policy"] == "policy: all defaults"
    assert "differs by" in repr(made)
    more = np.concatenate([X, X])
    (scores,) = duotone.read_export(folder).call(more).values()
    np.testing.assert_allclose(scores, predict(W, more)["scores"], rtol=1e-2)
    with pytest.raises(ArgumentError, match=r"takes 1 arrays \(images\); got 2"):
        made.call(X, X)


def test_names_go_with_their_arrays(tmp_path, monkeypatch):
    """Catches: names in the order of the alphabet, arrays in that of the parameters."""
    seen = {}

    def note(function, inputs, *, model_name, input_names, output_names):
        seen.update(zip(input_names, inputs, strict=True))
        raise NotImplementedError("seen")

    monkeypatch.setitem(sys.modules, "jax2onnx", types.SimpleNamespace(to_onnx=note))
    with pytest.raises(ArgumentError, match="seen"):
        duotone.export(predict, W, X, path=tmp_path / "model", format="onnx")
    assert {name: kind.shape for name, kind in seen.items()} == {
        "weights": W.shape,
        "images": X.shape,
    }


def test_the_policy_speaks_of_jax_s_operations(tmp_path, stand_in):
    policy = duotone.Policy(deny_add=["dot_general"])
    made = duotone.export(fast(policy=policy), X, path=tmp_path / "full", format="onnx")
    assert dtypes(tmp_path / "full") == [onnx.TensorProto.FLOAT]
    assert made.description["half_dtype"] is None
    assert "dot_general" in made.description["policy"]


def test_the_environment_speaks_of_jax_s_operations(tmp_path, stand_in, monkeypatch):
    monkeypatch.setenv("DUOTONE_DENYLIST_ADD", "dot_general")
    made = duotone.export(fast(), X, path=tmp_path / "full", format="onnx")
    assert dtypes(tmp_path / "full") == [onnx.TensorProto.FLOAT]
    assert "dot_general" in made.description["policy"]


def test_float32_is_left_as_it_was_converted(tmp_path, stand_in):
    made = duotone.export(fast("float32"), X, path=tmp_path / "full", format="onnx")
    assert dtypes(tmp_path / "full") == [onnx.TensorProto.FLOAT]
    assert made.description["half_dtype"] is None


def test_another_function_is_found_and_nothing_written(tmp_path, stand_in, monkeypatch):
    monkeypatch.setitem(MADE_WITH, "w", 2 * W)
    with pytest.raises(RewriteError, match="differs from the function"):
        duotone.export(fast(), X, path=tmp_path / "other", format="onnx")
    assert not list(tmp_path.iterdir())


def test_shapes_are_exported_and_not_compared(tmp_path, stand_in):
    shape = jax.ShapeDtypeStruct(X.shape, jnp.float32)
    made = duotone.export(fast(), shape, path=tmp_path / "model", format="onnx")
    assert made.description["difference"] is None


def regional(weights, images):
    with duotone.keep_full():
        return images @ weights


def precise(weights, images):
    return jnp.dot(images, weights, precision="highest")


@pytest.mark.parametrize("function", [regional, precise])
def test_what_a_model_has_no_place_for_is_refused(tmp_path, stand_in, function):
    with pytest.raises(ArgumentError, match=r"dot_general of .* is kept full by a scope"):
        duotone.export(function, W, X, path=tmp_path / "model", format="onnx")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "onnx", "target": "h100"}, "target= is for the formats"),
        ({"format": "onnx", "platforms": ["cpu"]}, "platforms= is for the formats"),
        ({"format": "tflite"}, "no format 'tflite'"),
    ],
)
def test_bad_options_are_named(tmp_path, options, words):
    with pytest.raises(ArgumentError, match=words):
        duotone.export(fast(), X, path=tmp_path / "model", **options)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x @ x, "JAX cannot export .*contracting dimensions"),
        (lambda x: "text" @ x, "JAX cannot export .*unsupported operand"),
        (lambda x, missing: x, "JAX cannot export .*missing 1 required positional argument"),
        (lambda x: None, "returns no array: there is nothing to export"),
    ],
)
@pytest.mark.parametrize("format", ["jax", "onnx"])
def test_a_wrong_function_is_reported_in_one_line(tmp_path, stand_in, format, function, words):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=words) as caught:
        duotone.export(function, X, path=tmp_path / "model", format=format, dtype="float16")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_without_jax2onnx_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    with pytest.raises(MissingExtraError, match=r"duotone\[jax2onnx\]"):
        duotone.export(fast(), X, path=tmp_path / "model", format="onnx")


def test_what_jax2onnx_cannot_convert_is_named(tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise NotImplementedError("No plugins registered for primitive 'random_split'")

    monkeypatch.setitem(sys.modules, "jax2onnx", types.SimpleNamespace(to_onnx=refuse))
    with pytest.raises(ArgumentError, match="jax2onnx cannot convert predict: No plugins"):
        duotone.export(fast(), X, path=tmp_path / "model", format="onnx")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(
    importlib.util.find_spec("jax2onnx") is None, reason="jax2onnx is not installed"
)
def test_with_jax2onnx_itself(tmp_path):
    from benchmarks.onnx_agreement import functions

    for number, function in enumerate(functions()):
        made = duotone.export(
            function.call,
            *function.args,
            dtype="float16",
            path=tmp_path / str(number),
            format="onnx",
        )
        assert made.description["half_dtype"] == "float16"
        assert made.description["difference"] < 1e-2, function.name
