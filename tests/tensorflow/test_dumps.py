"""What is written down: TensorFlow's file names, parsable graphs, lists, and lines of its log."""

from __future__ import annotations

import logging
import re

import pytest

from duotone import Policy
from duotone.ops.entries import Kind
from duotone.tensorflow import files
from duotone.tensorflow.lists import default_lists
from tests.tensorflow import graphs
from tests.tensorflow.painted import rewrite


def _files(folder):
    """Files by name without the time."""
    found = {}
    for path in folder.iterdir():
        kind = re.sub(r"_\d{13}", "", path.name)
        assert kind not in found
        found[kind] = path
    return found


@pytest.fixture(params=["float16", "bfloat16"])
def dtype(request):
    return request.param


def test_files_of_a_graph(tmp_path, dtype):
    result = rewrite(
        graphs.chain(), fetch=["result"], dtype=dtype, policy=Policy(log_path=tmp_path)
    )
    found = _files(tmp_path)
    assert set(found) == {
        "graphdef_preop_tf_graph.pb",
        "graphdef_preop_tf_graph.pb.txt",
        "graphdef_AutoMixedPrecision_tf_graph.pb",
        "graphdef_AutoMixedPrecision_tf_graph.pb.txt",
        "paintbuckets_AutoMixedPrecision_tf_graph.txt",
    }
    for suffix in ("", ".txt"):
        before = files.read_graph(found[f"graphdef_preop_tf_graph.pb{suffix}"])
        assert before == graphs.chain()
        after = files.read_graph(found[f"graphdef_AutoMixedPrecision_tf_graph.pb{suffix}"])
        assert after == result.graph_def
    blocks = found["paintbuckets_AutoMixedPrecision_tf_graph.txt"].read_text().split("\n\n")
    lists = default_lists(dtype)
    for block, name in zip(blocks, ("Allow", "Deny", "Infer", "Clear"), strict=True):
        title, *ops = block.split()
        assert title == f"{name}List:"
        assert set(ops) == lists.ops(Kind(name.lower()))


def test_without_allow_ops_there_is_nothing_after(tmp_path):
    graph = graphs.chain()
    del graph.node[2:]
    rewrite(graph, policy=Policy(log_path=tmp_path))
    assert set(_files(tmp_path)) == {"graphdef_preop_tf_graph.pb", "graphdef_preop_tf_graph.pb.txt"}


def test_each_function_has_its_files_and_none_leaves_the_folder(tmp_path):
    graph = graphs.chain()
    for number, name in enumerate(("f", "../../up")):
        graphs.add_function(graph, name)
        graph.node.add(name=f"call{number}", op=name, input=["x"])
    folder = tmp_path / "logs"
    folder.mkdir()
    rewrite(graph, policy=Policy(log_path=folder))
    found = _files(folder)
    assert "graphdef_AutoMixedPrecision_f.pb" in found
    assert "graphdef_preop_.._.._up.pb" in found
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_the_environment_asks_for_files(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LOG_PATH", str(tmp_path))
    rewrite(graphs.chain())
    rewrite(graphs.chain())
    assert len(list(tmp_path.glob("graphdef_preop_*.pb"))) == 2  # never one over another


def _lines(caplog, graph, **settings):
    with caplog.at_level(logging.INFO, logger="duotone.painter"):
        rewrite(graph, **settings)
    return [record.getMessage() for record in caplog.records]


def test_lines_have_tensorflows_wording(caplog, monkeypatch, dtype):
    monkeypatch.setenv("TF_CPP_VMODULE", "auto_mixed_precision=2")
    half = {"float16": "half", "bfloat16": "bfloat16"}[dtype]
    lines = _lines(caplog, graphs.chain(), fetch=["result"], dtype=dtype)
    mode = {"float16": "", "bfloat16": "_onednn_bfloat16"}[dtype]
    assert f"Running auto_mixed_precision{mode} graph optimizer" in lines[:2]
    assert lines[-2] == (
        f"Converted 2/5 nodes to {dtype} precision using 2 cast(s) to {dtype} "
        "(excluding Const and Variable casts)"
    )
    for line in (
        "Skipping Placeholder node x because it must be preserved",
        "Skipping Identity node result because it must be preserved",
        "Painting type T of node product ALLOW because its op MatMul is on the allowlist",
        "Painting type T of Exp node deny DENY",
        "Painting type T of Relu node relu ALLOW",
        f"Changing type T of MatMul node product to {half}",
        f"Inserting cast to {half} at Exp deny:0",
        "Inserting cast to DT_FLOAT at Relu relu:0",
    ):
        assert lines.count(line) == 1
    order = [line for line in lines if line.startswith(("Beginning pass", "Finished pass"))]
    assert [line.split()[2] for line in order] == list("112233445566")


def test_lines_of_other_things_that_happen(caplog):
    graph = graphs.chain()
    graphs.add(graph.node, "weights", "VariableV2", dtype=1)
    graphs.add(graph.node, "read", "Identity", "weights")
    graphs.add(graph.node, "second", "MatMul", "read", "read")
    graphs.add(graph.node, "elsewhere", "Relu", "x").device = "/device:CPU:0"
    norm = graph.node.add(name="norm", op="FusedBatchNorm", input=["x"] * 5)
    norm.attr["T"].type = 1
    graphs.add_function(graph, "f")
    graph.node.add(name="call", op="f", input=["x"])
    lines = _lines(caplog, graph, policy=Policy(log_decisions=True))
    for line in (
        "Changing op of FusedBatchNorm node norm to FusedBatchNormV2",
        "Inserting cast to half at Identity read:0",
        "Skipping Relu node elsewhere because it is not on the GPU, "
        "or the GPU arch is not suitable",
        "Running auto_mixed_precision graph optimizer on f",
    ):
        assert line in lines
    # The cast of a variable is not counted.
    casts = sum(line.startswith("Inserting cast to half") for line in lines)
    counted = [re.search(r"using (\d+) cast", line) for line in lines]
    assert sum(int(match[1]) for match in counted if match) == casts - 1


def test_nothing_to_do(caplog):
    graph = graphs.chain()
    del graph.node[2:]
    lines = _lines(caplog, graph, policy=Policy(log_decisions=True))
    assert lines[-1] == "No allowlist ops found, nothing to do"
