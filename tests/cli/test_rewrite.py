"""``duotone rewrite`` and ``duotone view``: options, tables, errors in one line."""

from __future__ import annotations

import errno
import os
import sys

import jax.numpy as jnp
import pytest

import duotone
from duotone.cli import main
from duotone.cli.rewrite import parse_device
from duotone.cli.user_program import names
from duotone.devices import TARGETS
from duotone.errors import ArgumentError
from duotone.tensorflow import files
from duotone.tensorflow.devices import Device
from duotone.tensorflow.protos import BFLOAT16, FLOAT, HALF
from tests.tensorflow import graphs


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Runs the command line in a folder with a graph; gives (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    files.write(tmp_path / "graph.pb", graphs.chain())

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main.run(words)
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def _type(path, node):
    return graphs.node_named(files.read_graph(path), node).attr["T"].type


def test_rewrite_says_what_it_did(call):
    status, out, _ = call("rewrite", "graph.pb", "--out", "half.pb")
    assert status == 0
    rows = {line[:26].strip(): line[26:].strip() for line in out.splitlines()}
    assert rows["kept (nothing reads them)"] == "result"
    assert rows["nodes half"] == "1 of 5 with float32 types"
    assert rows["casts"] == "3: 2 to half, 1 to float32"
    assert rows["op changes"] == "none"
    assert "Rewritten in" in out
    assert "half.pb (GraphDef)" in out
    assert _type("half.pb", "product") == HALF


def test_paths_with_brackets(call, tmp_path):
    """Catches: names of files that Rich reads as markup, or refuses."""
    folder = tmp_path / "runs[v1]" / "a[" / "b]"
    folder.mkdir(parents=True)
    files.write(folder / "graph.pb", graphs.chain())
    status, out, _ = call("rewrite", "runs[v1]/a[/b]/graph.pb", "-o", "runs[v1]/a[/b]/half.pb")
    assert status == 0
    assert "runs[v1]/a[/b]/half.pb (GraphDef)" in out
    status, out, _ = call("view", "graph.pb", "--tensorboard", "runs[v1]/a[/b]/logs")
    assert status == 0
    assert "--logdir runs[v1]/a[/b]/logs," in out


def test_options_of_rewrite(call):
    words = ("--fetch", "relu, result", "--feed", "x", "--dtype", "bfloat16", "--device", "cpu")
    status, out, _ = call("rewrite", "graph.pb", "-o", "half.pbtxt", *words)
    assert status == 0
    assert "relu, result" in out
    assert _type("half.pbtxt", "relu") == FLOAT
    assert _type("half.pbtxt", "product") == BFLOAT16
    assert call("rewrite", "graph.pb", "-o", "cut.pb", "--painter", "mincut")[0] == 0


def test_a_policy_file(call, tmp_path):
    (tmp_path / "policy.toml").write_text('deny_add = ["MatMul"]')
    words = ("graph.pb", "--policy-file", "policy.toml")
    assert call("rewrite", *words, "--out", "same.pb")[0] == 0
    assert _type("same.pb", "product") == FLOAT
    assert "0 of 5 with float32 types" in call("view", *words)[1]
    (tmp_path / "policy.toml").write_text('dney_add = ["MatMul"]')
    status, _, err = call("rewrite", *words, "--out", "half.pb")
    assert status == 2
    assert "policy.toml: a policy has no field 'dney_add': did you mean 'deny_add'?" in err


def test_a_saved_model(call, tmp_path):
    (tmp_path / "model").mkdir()
    files.write(tmp_path / "model" / "saved_model.pb", graphs.saved_model())
    status, out, _ = call("rewrite", "model", "--out", "half")
    assert status == 0
    assert "serve" in out
    assert "half (SavedModel)" in out
    assert _type("half", "product") == HALF


def test_why_nothing_became_half(call, tmp_path):
    graph = graphs.chain()
    del graph.node[2:]
    files.write(tmp_path / "none.pb", graph)
    _, out, _ = call("rewrite", "none.pb", "--out", "half.pb")
    assert "why none" in out
    _, out, _ = call("rewrite", "graph.pb", "--out", "half.pb", "--device", "gpu:6.0", "--force")
    (reason,) = (line for line in out.splitlines() if line.startswith("why none"))
    assert reason.split(None, 2)[2].strip() == "the node is not on a device that gains"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("missing.pb",), "missing.pb does not exist"),
        (("graph.pb", "--fetch", "relo"), "graph.pb: fetch 'relo': the graph has no node 'relo'"),
        (("graph.pb", "--device", "banana"), "--device banana: it takes b200, h200, h100, a100, "),
        (("graph.pb", "--device", "a10o"), "--device a10o: did you mean 'a10'?"),
        (("graph.pb", "--dtype", "float8"), "float8"),
        (("graph.pb", "--painter", "van Gogh"), "van Gogh"),
    ],
)
def test_errors_are_one_line_and_write_nothing(words, says, call, tmp_path):
    status, out, err = call("rewrite", *words, "--out", "half.pb")
    assert status == 2
    assert says in err
    assert out == ""
    assert not (tmp_path / "half.pb").exists()


def test_nothing_is_overwritten_unasked(call, tmp_path):
    before = (tmp_path / "graph.pb").read_bytes()
    for words in ((), ("--force",)):
        status, _, err = call("rewrite", "graph.pb", "-o", "./graph.pb", *words)
        assert status == 2
        assert "is the graph that is read" in err
    assert (tmp_path / "graph.pb").read_bytes() == before
    assert call("rewrite", "graph.pb", "-o", "half.pb")[0] == 0
    status, _, err = call("rewrite", "graph.pb", "-o", "half.pb")
    assert status == 2
    assert "half.pb exists. Name another file, or have it replaced: --force" in err
    assert call("rewrite", "graph.pb", "-o", "half.pb", "--force")[0] == 0


def test_a_graph_that_is_half_already_is_called_so(call):
    call("rewrite", "graph.pb", "-o", "half.pb")
    for words in (("view", "half.pb"), ("rewrite", "half.pb", "-o", "again.pb")):
        _, out, _ = call(*words)
        assert "half already" in out
        assert "nodes as they were read: 4 of float16" in out
        assert "the graph is half already" in out
    assert "half already" not in call("view", "graph.pb")[1]


def test_a_full_disk_names_the_file_and_the_remedy(call, tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("duotone._files.os.fsync", full)
    status, _, err = call("rewrite", "graph.pb", "-o", "half.pb")
    assert status == 1
    assert err == (
        "error: cannot write half.pb: No space left on device. Free some space there, or name a "
        "file on another disk.\n"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["graph.pb"]


def test_long_names(call, tmp_path):
    assert call("rewrite", "graph.pb", "-o", "x" * 250)[0] == 0
    status, _, err = call("rewrite", "graph.pb", "-o", "x" * 300)
    assert status == 1
    assert "File name too long. Its name has 300 bytes: give it a shorter one." in err


def test_the_output_is_asked_for(call):
    status, _, err = call("rewrite", "graph.pb")
    assert status == 2
    assert "--out" in err


def test_help_says_what_need_not_be_installed(call):
    _, out, _ = call("rewrite", "--help")
    assert "TensorFlow need not be installed." in out


@pytest.mark.parametrize("command", ["rewrite", "view"])
def test_help_has_examples(command, call):
    _, out, _ = call(command, "--help")
    assert f"duotone {command} " in out
    assert "--dtype" in out


def test_view_by_op_and_by_node(call, tmp_path):
    status, out, _ = call("view", "graph.pb")
    assert status == 0
    assert "MatMul" in out
    assert "on the deny list: computes in float32" in out
    _, out, _ = call("view", "graph.pb", "--nodes", "re*", "--most", "1")
    assert "reaches an output of the function with no allow operation after it" in out
    assert "… and 1 more" in out
    _, out, _ = call("view", "graph.pb", "--nodes", "nothing*")
    assert "no node fits 'nothing*'" in out
    assert [p.name for p in tmp_path.iterdir()] == ["graph.pb"]


def test_view_of_all_painters(call):
    status, out, _ = call("view", "graph.pb", "--compare")
    assert status == 0
    names = [line.split()[0] for line in out.splitlines()]
    assert names == ["painter", "duotone", "tensorflow", "mincut"]


def test_view_for_tensorboard(call, tmp_path):
    status, out, _ = call("view", "graph.pb", "--tensorboard", "logs")
    assert status == 0
    assert "tensorboard --logdir logs" in out
    assert sorted(p.name for p in (tmp_path / "logs").iterdir()) == ["after", "before"]


def test_view_of_a_jax_program(call, tmp_path):
    seen = duotone.explain(lambda x: jnp.exp(x @ x), jnp.ones((8, 8)), dtype="float16")
    (tmp_path / "e.json").write_text(seen.to_json())
    status, out, _ = call("view", "e.json", "--tensorboard", "logs")
    assert status == 0
    assert "1 of 2 operations in half" in out
    assert [p.name for p in (tmp_path / "logs").iterdir()] == ["duotone"]
    status, out, _ = call("view", "e.json", "--nodes", "dot*")
    assert "dot_general" in out


@pytest.mark.parametrize("content", ["{", "{}", '{"summary": 1}', '{"a": [', "{\udcff"])
def test_json_of_something_else(content, call, tmp_path):
    (tmp_path / "e.json").write_text(content, errors="surrogateescape")
    status, _, err = call("view", "e.json")
    assert status == 2
    assert err.startswith("error: e.json: ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("graph.pb", "--compare", "--tensorboard", "logs"), "leave out --nodes and --tensorboard"),
        (("graph.pb", "--compare", "--nodes", "*"), "leave out --nodes and --tensorboard"),
        (("seen.json", "--compare"), "--compare is for graphs, and seen.json is not one"),
        (("seen.json", "--policy-file", "p.toml"), "--policy-file is for graphs, and"),
    ],
)
def test_options_of_view_that_would_say_nothing(words, says, call, tmp_path):
    (tmp_path / "seen.json").write_text("{}")
    status, out, err = call("view", *words)
    assert (status, out) == (2, "")
    assert says in err
    assert not (tmp_path / "logs").exists()


def test_without_the_protobuf_messages(call, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("duotone.tensorflow")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("duotone.tensorflow.graph_view", "duotone.explaining.tensorboard"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    status, _, err = call("rewrite", "graph.pb", "--out", "half.pb")
    assert status == 2
    assert "pip install 'duotone[tensorboard]'" in err


def test_devices():
    assert parse_device(None) == Device()
    assert parse_device("cpu") == Device("cpu")
    assert parse_device("GPU") == Device("gpu")
    assert parse_device("gpu:9.0") == Device("gpu", compute_capability=(9, 0))
    assert parse_device("A100") == Device("gpu", compute_capability=(8, 0))
    assert parse_device("v100") == Device("gpu", compute_capability=(7, 0))
    assert parse_device("v5e") == Device("tpu")
    for text in ("", "gpu:9", "gpu:a.b", "cpu:0", "cuda", "a100:8.0"):
        with pytest.raises(ArgumentError, match="--device") as error:
            parse_device(text)
        assert all(name in str(error.value) for name in TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_every_name_that_compile_for_knows(name, call):
    status, out, err = call("view", "graph.pb", "--device", name)
    assert status == 0
    gains = TARGETS[name].platform == "cuda"
    assert ("note: TensorFlow's passes change nothing to float16" in err) == (not gains)
    assert ("nodes half                 1 of 5" in out) == gains


def test_the_advice_for_another_device_holds(call):
    for name, dtype in (("cpu", "bfloat16"), ("gpu", "float16")):
        status, out, err = call("view", "graph.pb", "--device", name, "--dtype", dtype)
        assert (status, err) == (0, "")
        assert "1 of 5" in out
    assert (
        "change nothing to bfloat16 on h100"
        in (call("view", "graph.pb", "--compare", "--device", "h100", "--dtype", "bfloat16")[2])
    )


def test_names():
    assert names(" a, b:0 ,,") == ("a", "b:0")
