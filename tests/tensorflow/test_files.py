"""Graph files: kind and form by content, all that can be wrong with a file, whole writes."""

from __future__ import annotations

import os

import pytest
from google.protobuf import text_format

from duotone.errors import GraphDefError, WriteError
from duotone.tensorflow import files
from tests.tensorflow import graphs

MESSAGES = {
    "GraphDef": graphs.chain,
    "MetaGraphDef": graphs.meta_graph,
    "SavedModel": graphs.saved_model,
}


@pytest.mark.parametrize("name", ["graph.pb", "graph.pbtxt", "graph", "graph.txt"])
@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("kind", MESSAGES)
def test_kind_and_form_are_recognised_by_content(kind, text, name, tmp_path):
    message = MESSAGES[kind]()
    content = text_format.MessageToString(message).encode()
    path = tmp_path / name
    path.write_bytes(content if text else message.SerializeToString())
    found = files.read(path)
    assert found.kind == kind
    assert found.message == message
    assert [len(graph.node) for graph in found.graphs()] == [5]


def test_a_dump_of_tensorflow_begins_with_a_line_that_is_no_field(tmp_path):
    path = tmp_path / "graphdef_preop.pb.txt"
    path.write_text("goo.gle/debugonly   \n" + text_format.MessageToString(graphs.chain()))
    assert files.read_graph(path) == graphs.chain()
    path.write_text("# by hand\n\n" + text_format.MessageToString(graphs.chain()))
    assert files.read_graph(path) == graphs.chain()


@pytest.mark.parametrize("name", ["out.pb", "out.pbtxt", "out.pb.txt"])
def test_what_is_written_is_read_again(name, tmp_path):
    files.write(tmp_path / name, graphs.chain())
    assert files.read_graph(tmp_path / name) == graphs.chain()
    is_text = (tmp_path / name).read_bytes().startswith(b"node {")
    assert is_text is (name != "out.pb")


def _content(what: str) -> bytes:
    good = graphs.chain().SerializeToString()
    # A node whose name claims 2^60 bytes, and a field that claims 2^34.
    return {
        "empty": b"",
        "truncated": good[:-3],
        "cut in half": good[: len(good) // 2],
        "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        "zeros": bytes(1000),
        "words": b"hello, this is not a graph\n",
        "words with a field": b"node { name: 'x' op: }\n",
        "a wrong number": b"versions { producer: 99999999999999999999 }\n",
        "broken text": b"node { name: '\\xff' op: 'NoOp' }\n",
        "huge size": b"\x0a\x0b\x0a" + b"\xff" * 8 + b"\x0f" + b"x",
        "huge field": b"\x0a\x80\x80\x80\x80\x40node",
        "node without a name": b"\x0a\x06\x12\x04NoOp",
        "no node": b"\x22\x02\x08\x01",
    }[what]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("empty", "is empty"),
        ("truncated", "cut short, damaged"),
        ("cut in half", "cut short, damaged"),
        ("a picture", "not a TensorFlow graph"),
        ("zeros", "not a TensorFlow graph"),
        ("words", "text, not a graph"),
        ("words with a field", "line 1:22"),
        ("a wrong number", "not a valid GraphDef"),
        ("broken text", "not a valid GraphDef"),
        ("huge size", "not a TensorFlow graph"),
        ("huge field", "cut short, damaged"),
        ("node without a name", "not a TensorFlow graph"),
        ("no node", "without a single node"),
    ],
)
def test_bad_content_is_refused_with_the_name_of_the_file(what, says, tmp_path):
    path = tmp_path / "bad.pb"
    path.write_bytes(_content(what))
    with pytest.raises(GraphDefError, match=says) as caught:
        files.read(path)
    assert str(path) in str(caught.value)


def _field(number: int, content: bytes) -> bytes:
    """A field of a protocol buffer that holds bytes or a message."""
    size, digits = len(content), b""
    while size > 127:
        digits, size = digits + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + digits + bytes([size]) + content


def _nested(depth: int) -> tuple[bytes, str]:
    """A node with an attribute that holds a function with an attribute and so on."""
    binary, text = b"\x10\x01", "s: 'end'"
    for _ in range(depth):
        binary = _field(10, _field(2, _field(1, b"k") + _field(2, binary)))
        text = f"func {{ attr {{ key: 'k' value {{ {text} }} }} }}"
    node = _field(1, b"n") + _field(2, b"NoOp") + _field(5, _field(1, b"k") + _field(2, binary))
    text = f"node {{ name: 'n' op: 'NoOp' attr {{ key: 'k' value {{ {text} }} }} }}"
    return _field(1, node), text


@pytest.mark.parametrize("form", [0, 1])
def test_deep_nesting_is_refused(form, tmp_path):
    path = tmp_path / "deep"
    for depth in (20, 5000):
        binary, text = _nested(depth)
        path.write_bytes(text.encode() if form else binary)
        if depth == 20:
            assert files.read_graph(path).node[0].name == "n"
    with pytest.raises(GraphDefError, match="deep"):
        files.read(path)


def test_a_file_beyond_2_gb_is_refused_unread(tmp_path):
    path = tmp_path / "big.pb"
    path.write_bytes(graphs.chain().SerializeToString())
    os.truncate(path, 2**31 + 10)  # sparse: no disk, no memory
    with pytest.raises(GraphDefError, match=r"big\.pb has 2\.1 GB"):
        files.read(path)


def test_a_result_beyond_the_limit_is_refused_and_nothing_written(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 20)
    with pytest.raises(GraphDefError, match=r"cannot write .*out\.pb: the graph has 2 GB"):
        files.write(tmp_path / "out.pb", graphs.chain())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["missing.pb", "/dev/zero", "bad\0name"])
def test_what_is_no_file_is_refused(path):
    with pytest.raises(GraphDefError, match=r"does not exist|regular file|cannot read|null"):
        files.read(path)


def test_what_is_no_file_is_not_replaced(tmp_path):
    """Catches: ``--out /dev/null`` by root, which left a graph in the place of the device."""
    os.mkfifo(tmp_path / "pipe")
    source = files.GraphFile(tmp_path / "in.pb", "GraphDef", graphs.chain(), tmp_path / "in.pb")
    with pytest.raises(WriteError, match="pipe: it is not a regular file"):
        files.write(tmp_path / "pipe", source.message, source)
    assert (tmp_path / "pipe").is_fifo()


def test_text_of_an_editor_that_begins_files_with_a_mark(tmp_path):
    files.write(tmp_path / "graph.pbtxt", graphs.chain())
    text = (tmp_path / "graph.pbtxt").read_text()
    (tmp_path / "marked.pbtxt").write_text(text, encoding="utf-8-sig")
    assert files.read_graph(tmp_path / "marked.pbtxt") == graphs.chain()


def test_a_folder_without_a_saved_model(tmp_path):
    with pytest.raises(GraphDefError, match=r"folder without saved_model\.pb"):
        files.read(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(graphs.chain().SerializeToString())
    with pytest.raises(GraphDefError, match="is a GraphDef, not a SavedModel"):
        files.read(tmp_path)


@pytest.mark.parametrize(
    ("out", "says"), [("no/folder/out.pb", "mkdir -p"), (".", "it is a folder")]
)
def test_an_output_that_cannot_be_written(out, says, tmp_path):
    source = files.GraphFile(tmp_path / "in.pb", "GraphDef", graphs.chain(), tmp_path / "in.pb")
    with pytest.raises(WriteError, match=says):
        files.write(tmp_path / out, source.message, source)
    assert not list(tmp_path.iterdir())
