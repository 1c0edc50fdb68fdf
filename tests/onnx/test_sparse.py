"""Sparse initializers: the elements that are stored become half."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import duotone.onnx
from duotone.errors import OnnxError
from duotone.onnx.weights import magnitude
from tests.onnx import kinds
from tests.onnx.kinds import normal

FEED = {"x": normal(4, 16)}


def model(nodes, elements, *, name="w", result="float[4, 16] y", **dense):
    """A model whose weight of 16 by 16 has the given elements, and zeros between them."""
    made = kinds.built(f"f (float[4, 16] x) => ({result}) {{ {nodes} }}", dense)
    places = np.sort(np.arange(len(elements)) * 5)
    values = helper.make_tensor(name, TensorProto.FLOAT, [len(elements)], elements)
    indices = helper.make_tensor(f"{name}_at", TensorProto.INT64, [len(places)], places)
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [16, 16]))
    return made


def test_they_are_half_and_nothing_casts_them():
    before = model("h = MatMul(x, w)  y = Relu(h)", normal(40))
    made = duotone.onnx.rewrite(before)
    (sparse,) = made.model.graph.sparse_initializer
    assert (sparse.values.data_type, list(sparse.dims)) == (TensorProto.FLOAT16, [16, 16])
    assert sum(node.op_type == "Cast" for node in made.model.graph.node) == 2
    assert made.bytes_before - made.bytes_after == 40 * 2
    onnx.checker.check_model(made.model)
    assert kinds.error_of(before, FEED) < 5e-3


def test_one_read_in_both_precisions_is_stored_twice():
    nodes = "h = MatMul(x, w)  e = Exp(w)  s = ReduceSum(e)  y = Mul(h, s)"
    made = duotone.onnx.rewrite(model(nodes, normal(40)))
    types = {s.values.name: s.values.data_type for s in made.model.graph.sparse_initializer}
    assert types == {"w": TensorProto.FLOAT, "w_half": TensorProto.FLOAT16}


@pytest.mark.parametrize("policy", [None, "keep_full"])
def test_the_given_model_is_not_changed(policy):
    before = model("h = MatMul(x, w)  y = Relu(h)", normal(40))
    given = before.SerializeToString()
    duotone.onnx.rewrite(before, keep_io=False, keep_full=["h"] if policy else [])
    assert before.SerializeToString() == given


def test_elements_that_are_not_stored_are_zeros():
    (sparse,) = model("y = MatMul(x, w)", np.full(40, 2.0)).graph.sparse_initializer
    found = magnitude(sparse.values, None, sparse.dims)
    assert (found.low, found.high, found.largest) == (0.0, 2.0, 2.0)


def test_damaged_ones_are_named():
    before = model("y = MatMul(x, w)", normal(40))
    before.graph.sparse_initializer[0].values.dims[0] = 41
    with pytest.raises(OnnxError, match="'w' has 41 elements by its shape"):
        duotone.onnx.rewrite(before)
