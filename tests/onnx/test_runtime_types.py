"""Operations that ONNX Runtime has and ONNX has not: their neighbours become half, they stay."""

import numpy as np
import onnxruntime
import pytest

import duotone.onnx
from duotone.onnx.runtime_types import OPERAND_OF_RESULT, result_dtypes
from duotone.policy.policy import Policy
from tests.onnx.models import model, numbers

LAYER = """
f (float[2, 4, 8] x) => (float[2, 4, 8] y)
<float[8, 8] w = {W}, float[8] g = {B}, float[8] b = {B}>
{
    h = MatMul(x, w)
    n = CALL
    y = MatMul(n, w)
}
""".replace("{W}", "{" + numbers(64) + "}").replace("{B}", "{" + numbers(8) + "}")


def layer(call, opset):
    made = model(LAYER.replace("CALL", call), opset=opset)
    made.opset_import.add(domain="com.microsoft", version=1)
    return made


def ran(made):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    given = np.random.default_rng(0).standard_normal((2, 4, 8), np.float32)
    return np.asarray(session.run(None, {"x": given})[0])


CALLS = [
    ("LayerNormalization<axis = -1>(h, g, b)", 14, "half"),
    ("LayerNormalization<axis = -1>(h, g)", 11, "half"),
    ("SimplifiedLayerNormalization<axis = -1>(h, g)", 14, "full"),
    ("com.microsoft.SkipLayerNormalization(h, x, g, b)", 14, "full"),
    ("com.microsoft.FusedMatMul<alpha = 0.5>(h, w)", 17, "full"),
    ("com.microsoft.FastGelu(h, b)", 17, "full"),
]


@pytest.mark.parametrize(("call", "opset", "precision"), CALLS)
def test_neighbours_become_half_and_the_model_runs(call, opset, precision):
    before = layer(call, opset)
    done = duotone.onnx.rewrite(before)
    assert [o.paint for o in done.record.operations] == ["half", precision, "half"]
    reference = ran(before)
    error = np.max(np.abs(ran(done.model) - reference)) / np.max(np.abs(reference))
    assert error < 4e-3


def test_a_norm_of_an_older_opset_has_types_in_bfloat16():
    found = duotone.onnx.explain(layer(CALLS[0][0], 14), dtype="bfloat16").operations
    assert [operation.paint for operation in found] == ["half"] * 3


def test_one_that_the_policy_lists_becomes_half_with_its_readers():
    policy = Policy(allow_add=["com.microsoft.FusedMatMul"])
    done = duotone.onnx.rewrite(layer(CALLS[4][0], 17), policy=policy)
    assert [o.paint for o in done.record.operations] == ["half"] * 3
    assert sum(node.op_type == "Cast" for node in done.model.graph.node) == 2


def test_one_with_a_result_of_unknown_type_stays_although_the_policy_lists_it():
    """Its readers would be float32 and read half."""
    policy = Policy(allow_add=["own.Mine"])
    found = duotone.onnx.explain(layer("own.Mine(h, w)", 17), policy=policy).operations
    assert [operation.paint for operation in found] == ["half", "full", "full"]
    assert "add it to value_info" in found[1].reason


def test_the_type_in_the_file_lets_a_listed_one_become_half():
    made = layer("own.Mine(h, w)", 17)
    made.graph.value_info.extend(made.graph.output)
    made.graph.value_info[0].name = "n"
    policy = Policy(allow_add=["own.Mine"])
    found = duotone.onnx.explain(made, policy=policy).operations
    assert [operation.paint for operation in found] == ["half"] * 3


def test_results_have_the_types_of_operands_or_none():
    node = layer(CALLS[3][0], 14).graph.node[1]
    node.output.extend(["mean", "deviation", "sum"])
    types = ["float32"] * 4
    assert result_dtypes(node, types) == ["float32", "none", "none", "float32"]
    assert result_dtypes(node, []) == ["none"] * 4
    node.op_type = "EmbedLayerNormalization"
    types = ["int32", "int32", "float16", "float32"]
    assert result_dtypes(node, types) == ["float16", "none", "float16", "none"]


def test_runtime_operations_are_not_onnx_own():
    """A schema of ONNX would be used instead."""
    ours = {name for name in OPERAND_OF_RESULT if "." not in name}
    assert ours == {"SimplifiedLayerNormalization"}
