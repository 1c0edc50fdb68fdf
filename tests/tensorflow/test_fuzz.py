"""Corrupted graphs: a result or an error of duotone that names the file, and never half a file."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duotone.errors import DuotoneError
from duotone.tensorflow import files
from duotone.tensorflow.rewrite_file import rewrite_file
from tests.tensorflow import graphs


def _with_function():
    graph = graphs.chain()
    graphs.add_function(graph, "g")
    graphs.add_function(graph, "f", "g")
    graph.node.add(name="call", op="f", input=["x"])
    switch = graphs.add(graph.node, "many", "IdentityN", "x", "relu", T=0)
    switch.attr["T"].list.type.extend([1, 1])
    return graph


GOOD = {
    "chain": graphs.chain().SerializeToString(),
    "loop": graphs.while_loop().SerializeToString(),
    "functions": _with_function().SerializeToString(),
    "meta graph": graphs.meta_graph().SerializeToString(),
    "saved model": graphs.saved_model().SerializeToString(),
    "text": text_format.MessageToString(_with_function()).encode(),
}

# Where, how many bytes go, what comes in their place.
_EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 8), st.binary(max_size=8)), min_size=1, max_size=4
)


def _survives(content, folder):
    path, out = folder / "graph.pb", folder / "out.pb"
    path.write_bytes(content)
    out.unlink(missing_ok=True)
    refused = None
    try:
        rewrite_file(path, out)
    except DuotoneError as error:
        refused = str(error)
    if refused is None:
        files.read(out)
    else:
        assert str(path) in refused
        assert not out.exists()
    assert {file.name for file in folder.iterdir()} <= {"graph.pb", "out.pb"}


_MANY = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)


@pytest.mark.parametrize("kind", GOOD)
@_MANY
@given(edits=_EDITS)
def test_edited_bytes(kind, tmp_path, edits):
    content = GOOD[kind]
    for share, removed, inserted in edits:
        position = int(share * len(content))
        content = content[:position] + inserted + content[position + removed :]
    _survives(content, tmp_path)


@pytest.mark.parametrize("kind", GOOD)
def test_every_truncation(kind, tmp_path):
    for end in range(0, len(GOOD[kind]), 7):
        _survives(GOOD[kind][:end], tmp_path)


_FIELDS = st.sampled_from(["name", "op", "input", "type", "list", "number", "drop", "copy", "attr"])


@_MANY
@given(
    edits=st.lists(
        st.tuples(_FIELDS, st.integers(0, 99), st.integers(-(2**31), 2**31 - 1)),
        min_size=1,
        max_size=4,
    )
)
def test_graphs_that_parse_and_make_no_sense(tmp_path, edits):
    graph = _with_function()
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    for field, where, value in edits:
        nodes = bodies[where % len(bodies)]
        if not nodes:
            continue
        node = nodes[where % len(nodes)]
        other = nodes[value % len(nodes)]
        attributes = sorted(node.attr)
        name = attributes[where % len(attributes)] if attributes else "T"
        if field == "name":
            node.name = other.name
        elif field == "op":
            node.op = ["AddN", "While", "NextIteration", "If", "f", "Nowhere"][value % 6]
        elif field == "input":
            node.input.append(f"{'^' * (value % 2)}{other.name}:{value}")
        elif field == "type":
            node.attr[name].type = value % 200
        elif field == "list":
            node.attr[name].list.type.extend([value % 200] * (value % 5))
        elif field == "number":
            node.attr["N"].i = value * 2**30
        elif field == "drop":
            del nodes[where % len(nodes)]
        elif field == "copy":
            nodes.add().CopyFrom(node)
        else:
            node.attr.pop(name, None)
    _survives(graph.SerializeToString(), tmp_path)
