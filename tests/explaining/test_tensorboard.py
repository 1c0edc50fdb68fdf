"""Graphs for TensorBoard: read back by TensorBoard's own reader, with colours and reasons."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

import duotone
from duotone.errors import ArgumentError
from duotone.explaining.tensorboard import write_record
from duotone.precision.record import Record
from duotone.tensorflow import rewrite
from duotone.tensorflow.graph_view import write_tensorboard
from duotone.tensorflow.protos import new_graph
from tests.tensorflow import graphs


def _read(path):
    (graph,) = [e.graph_def for e in EventFileLoader(str(path)).Load() if e.HasField("graph_def")]
    return new_graph().FromString(graph)


def _devices(graph):
    return {node.name: node.device for node in graph.node}


def test_a_tensorflow_graph_before_and_after(tmp_path):
    graph = graphs.chain()
    graph.node[2].device = "/device:GPU:0"
    result = rewrite(graph, fetch=["result"], painter="tensorflow")
    before, after = map(_read, write_tensorboard(tmp_path / "logs", graph, result))
    full, half = "full (float32)", "half (float16)"
    assert set(_devices(before).values()) == {full}
    painted = {"x": full, "deny": full, "product": half, "relu": half, "result": full}
    shown = _devices(after)
    assert {name: shown[name] for name in painted} == painted
    assert [shown[cast.name] for cast in result.casts] == ["cast"] * 3
    product = graphs.node_named(after, "product")
    assert product.attr["_XlaCluster"].s == b"allow list"
    assert product.attr["_paint_T"].s == b"f16: allow; its op is on the allow list"
    assert product.attr["_device"].s == b"/device:GPU:0"
    assert graph.node[2].device == "/device:GPU:0"  # the graph itself is not touched


def test_a_precision_has_the_same_colour_in_every_graph(seen, tmp_path):
    graph = graphs.chain()
    result = rewrite(graph, fetch=["result"], painter="tensorflow")
    _, after = map(_read, write_tensorboard(tmp_path, graph, result))
    jax_graph = _read(write_record(tmp_path, seen))
    # TensorBoard hands out colours in the order in which it meets the names.
    for found in (after, jax_graph):
        names = list(dict.fromkeys(node.device for node in found.node))
        assert names[:3] == ["full (float32)", "half (float16)", "cast"]


def test_functions_are_coloured_and_large_constants_left_out(tmp_path):
    graph = graphs.chain()
    graphs.add_function(graph, "f")
    graph.node.add(name="call", op="f", input=["x"])
    graphs.add(graph.node, "big", "Const", dtype=1)
    graph.node[-1].attr["value"].tensor.tensor_content = bytes(5000)
    _, after = map(_read, write_tensorboard(tmp_path, graph, rewrite(graph)))
    (function,) = after.library.function
    devices = {node.name: node.device for node in function.node_def}
    assert (devices["deny"], devices["inner"]) == ("full (float32)", "half (float16)")
    assert "value" not in graphs.node_named(after, "big").attr
    assert len(after.SerializeToString()) < 4000


def _step(w, x):
    def body(carry, _):
        return jnp.tanh(carry @ w), None

    with jax.named_scope("recurrent net"):
        out, _ = jax.lax.scan(body, x, None, length=3)
    return jax.nn.log_softmax(out)


@pytest.fixture(scope="module")
def seen():
    return duotone.explain(_step, jnp.ones((8, 8)), jnp.ones((12, 8)), dtype="float16")


def test_a_jax_program(seen, tmp_path):
    seen.to_tensorboard(str(tmp_path))
    (file,) = (tmp_path / "duotone").iterdir()
    graph = _read(file)
    assert len(graph.node) == len(seen.operations) + len(seen.casts)
    names = {node.name for node in graph.node}
    assert len(names) == len(graph.node)
    for node in graph.node:
        assert set(node.input) <= names
    dot = next(node for node in graph.node if node.op == "dot_general")
    assert dot.name.startswith("recurrent_net/")
    assert (dot.device, dot.attr["_XlaCluster"].s) == ("half (float16)", b"allow list")
    assert dot.attr["_output_shapes"].list.shape[0].dim[1].size == 8
    casts = [node for node in graph.node if node.op == "cast"]
    assert {node.device for node in casts} == {"cast"}
    assert any(node.name in other.input for node in casts for other in graph.node)
    # The loop reads what it made: the dot leads to the tanh, and the tanh back to the dot.
    readers = {node.name: set(node.input) for node in graph.node}
    tanh = next(node for node in graph.node if node.op == "tanh")
    assert dot.name in readers[tanh.name]
    assert tanh.name in readers[dot.name]


def test_a_record_survives_json(seen):
    again = duotone.Explanation.from_json(seen.to_json())
    assert again == seen
    assert isinstance(again, duotone.Explanation)
    with pytest.raises(ArgumentError, match=r"not the JSON of an explanation.*to_json\(\)"):
        Record.from_json("[]")


def test_two_graphs_in_one_folder_and_a_folder_that_is_a_file(seen, tmp_path):
    assert write_record(tmp_path, seen) != write_record(tmp_path, seen)
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="is a file"):
        write_record(tmp_path / "file", seen)
