"""Bad graphs: each is refused with the node, the function, and what is wrong."""

from __future__ import annotations

import pytest

from duotone.errors import GraphDefError
from duotone.tensorflow.checks import check_graph, check_names
from duotone.tensorflow.rewrite_file import rewrite_file
from tests.tensorflow import graphs


def _self_reading():
    graph = graphs.chain()
    graph.node[1].input[0] = "relu"
    return graph


def _with(change):
    graph = graphs.chain()
    change(graph)
    return graph


def _recursive(*names):
    graph = graphs.chain()
    for name, callee in zip(names, (*names[1:], names[0]), strict=True):
        graphs.add_function(graph, name, callee)
    return graph


def _function(change):
    graph = graphs.chain()
    change(graphs.add_function(graph, "f"))
    return graph


BAD = {
    "two of a name": (
        lambda: _with(lambda g: g.node.add(name="relu", op="NoOp")),
        "two nodes named 'relu'",
    ),
    "no name": (lambda: _with(lambda g: g.node.add(op="NoOp")), r"node 5 \(NoOp\) has no name"),
    "no op": (lambda: _with(lambda g: g.node.add(name="a")), "node 'a' has no op"),
    "dangling": (
        lambda: _with(lambda g: graphs.add(g.node, "a", "Relu", "nowhere:0")),
        r"node 'a' \(Relu\) reads 'nowhere:0', and there is no node 'nowhere'",
    ),
    "dangling control": (
        lambda: _with(lambda g: g.node[4].input.append("^nowhere")),
        r"node 'result' \(Identity\) reads '\^nowhere'",
    ),
    "data after control": (
        lambda: _with(lambda g: g.node[2].input.insert(0, "^x")),
        "node 'product' .* after a control input",
    ),
    "a circle": (_self_reading, "deny → product → relu → deny"),
    "reads itself": (
        lambda: _with(lambda g: graphs.add(g.node, "a", "Relu", "a")),
        "circle outside of any loop: a → a",
    ),
    "a loop without its end": (lambda: graphs.while_loop(end="Identity"), "circle outside"),
    "recursion": (lambda: _recursive("f"), "function recursion.*: f → f"),
    "recursion on the way": (lambda: _recursive("f", "g", "h"), "f → g → h → f"),
    "two functions of a name": (
        lambda: _with(lambda g: [graphs.add_function(g, "f") for _ in range(2)]),
        "two functions named 'f'",
    ),
    "a function without a name": (
        lambda: _with(lambda g: graphs.add_function(g, "")),
        "function without a name",
    ),
    "dangling in a function": (
        lambda: _function(lambda f: graphs.add(f.node_def, "b", "Relu", "nowhere:y:0")),
        r"function 'f': node 'b' \(Relu\) reads 'nowhere:y:0'",
    ),
    "named as an argument": (
        lambda: _function(lambda f: graphs.add(f.node_def, "a", "Relu", "a")),
        "function 'f': there are two nodes named 'a'",
    ),
    "unknown op": (
        lambda: _with(lambda g: g.node.add(name="a", op="FancyOp")),
        "node 'a'.*no op 'FancyOp'",
    ),
    "no type": (
        lambda: _with(lambda g: g.node[2].attr.pop("T")),
        r"node 'product' \(MatMul\) has no type attribute 'T'",
    ),
    "too many inputs": (
        lambda: _with(lambda g: g.node[3].input.append("x")),
        r"node 'relu' \(Relu\) has 2 data inputs",
    ),
    "a port that is not there": (
        lambda: _with(lambda g: graphs.add(g.node, "a", "Relu", "x:999999999999")),
        "node 'a' .*'x:999999999999'",
    ),
    "a hostile number of inputs": (
        lambda: _with(lambda g: setattr(_add_n(g).attr["N"], "i", 2**62)),
        "node 'many'",
    ),
    "a negative number of inputs": (
        lambda: _with(lambda g: setattr(_add_n(g).attr["N"], "i", -1)),
        "node 'many'",
    ),
}


def _add_n(graph):
    return graphs.add(graph.node, "many", "AddN", "x", "x")


@pytest.mark.parametrize("what", BAD)
def test_a_bad_graph_is_refused_with_file_and_node(what, tmp_path):
    make, says = BAD[what]
    path, out = tmp_path / "graph.pb", tmp_path / "out.pb"
    graph = make()
    path.write_bytes(graph.SerializeToString())
    with pytest.raises(GraphDefError, match=says) as caught:
        rewrite_file(path, out, fetch=())
    assert str(caught.value).startswith(f"{path}: ")
    assert [file.name for file in tmp_path.iterdir()] == ["graph.pb"]


def test_good_graphs_pass():
    check_graph(graphs.chain())
    check_graph(graphs.while_loop())
    graph = graphs.chain()
    graphs.add_function(graph, "g")
    graphs.add_function(graph, "f", "g")
    check_graph(graph)


def test_a_long_chain_and_a_long_circle_need_no_stack():
    graph = graphs.new_graph()
    graphs.add(graph.node, "n0", "Placeholder", dtype=1)
    for i in range(1, 5000):
        graphs.add(graph.node, f"n{i}", "Relu", f"n{i - 1}")
    check_graph(graph)
    graph.node[1].input[0] = "n4999"
    with pytest.raises(GraphDefError, match="n1 → n2 → n3 → … → n4998 → n4999 → n1"):
        check_graph(graph)


def test_names_that_do_not_exist():
    graph = graphs.chain()
    check_names(graph, "fetch", ["relu", "relu:0", "^relu"])
    with pytest.raises(GraphDefError, match=r"fetch 'relo:0'.*no node 'relo'.*mean 'relu'"):
        check_names(graph, "fetch", ["relo:0"])
    with pytest.raises(GraphDefError, match=r"feed 'zzz': .* no node 'zzz'; none is like it"):
        check_names(graph, "feed", ["zzz"])
