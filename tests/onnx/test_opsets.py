"""Opsets: misspelled operations, missing opsets, and what a newer opset takes in half."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import duotone.onnx
from duotone.errors import ArgumentError, OnnxError
from duotone.policy.policy import Policy
from tests.onnx.models import BRANCHES, CONVOLUTION, LOOP, MLP, model
from tests.onnx.test_rewrite import saved

ONE = "f (float[4, 8] x) => (float[4, 8] y) {{ y = {}(x) }}"


@pytest.mark.parametrize(("name", "meant"), [("Rellu", "Relu"), ("SoftMax", "Softmax")])
def test_a_misspelled_operation_is_named_with_the_nearest(name, meant):
    with pytest.raises(OnnxError, match=rf"node 'y' \({name}\): .* did you mean '{meant}'"):
        duotone.onnx.rewrite(model(ONE.format(name)))


def test_one_that_the_policy_lists_is_meant():
    made = duotone.onnx.rewrite(model(ONE.format("Rellu")), policy=Policy(deny_add=["Rellu"]))
    assert [node.op_type for node in made.model.graph.node] == ["Rellu"]


@pytest.mark.parametrize(
    "name", ["SimplifiedLayerNormalization", "EfficientNMS_TRT", "ImageScaler"]
)
def test_operations_of_runtimes_are_left_alone(name):
    (found,) = duotone.onnx.explain(model(ONE.format(name))).operations
    assert (found.paint, found.list) == ("full", "unlisted")


def test_a_missing_opset_is_named():
    made = model(MLP)
    del made.opset_import[:]
    with pytest.raises(OnnxError, match=r"names no opset of ONNX .*make_opsetid"):
        duotone.onnx.rewrite(made)


@pytest.mark.parametrize(
    ("text", "opset", "words"),
    [(MLP, 12, "MatMul from 13 on. opset=13"), (CONVOLUTION, 17, "Conv from 22 on. opset=22")],
)
def test_the_opset_that_has_bfloat16_is_named_and_converts(text, opset, words, caplog):
    before = model(text, opset=opset, ir=7)
    duotone.onnx.rewrite(before, dtype="bfloat16")
    assert words in caplog.records[0].getMessage()
    caplog.clear()
    newer = int(words.split("=")[1])
    made = duotone.onnx.rewrite(before, dtype="bfloat16", opset=newer)
    assert not caplog.records
    assert made.record.summary.allow_half == made.record.summary.allow_total > 0
    assert [found.version for found in made.model.opset_import] == [newer]
    onnx.checker.check_model(made.model, full_check=True)


@pytest.mark.parametrize("text", [BRANCHES, LOOP])
def test_graphs_inside_are_converted(text):
    made = duotone.onnx.rewrite(model(text, opset=12), opset=17)
    onnx.checker.check_model(made.model, full_check=True)
    assert made.record.summary.allow_half


def test_external_data_stays_where_it_is(tmp_path):
    source = saved(model(MLP, opset=12), tmp_path / "m.onnx", external=True)
    duotone.onnx.rewrite(source, tmp_path / "half.onnx", opset=17)
    written = onnx.load(tmp_path / "half.onnx")
    for tensor, first in zip(written.graph.initializer, model(MLP).graph.initializer, strict=True):
        expected = numpy_helper.to_array(first).astype(np.float16)
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), expected)


def test_an_opset_that_does_not_exist_and_one_without_a_rule():
    with pytest.raises(ArgumentError, match="opset=99: the installed onnx has the opsets 1 to"):
        duotone.onnx.rewrite(model(MLP), opset=99)
    upsample = """f (float[1, 1, 2, 2] x) => (float[1, 1, a, b] y)
        { s = Identity(x)  y = Upsample<scales = [1.0, 1.0, 2.0, 2.0]>(s) }"""
    with pytest.raises(OnnxError, match="cannot convert it to opset 6"):
        duotone.onnx.rewrite(model(upsample, opset=7), opset=6)
