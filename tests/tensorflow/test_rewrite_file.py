"""Rewriting files: what is kept, what is written, and that a failure writes nothing."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from duotone.errors import ArgumentError, GraphDefError, WriteError
from duotone.tensorflow import files
from duotone.tensorflow.protos import FLOAT, HALF
from duotone.tensorflow.rewrite_file import rewrite_file
from duotone.tensorflow.saved_model import signature_nodes
from tests.tensorflow import graphs


def _saved(folder, message=None):
    """A SavedModel folder with variables, an asset and a fingerprint."""
    folder.mkdir()
    files.write(folder / "saved_model.pb", message or graphs.saved_model())
    for name in ("variables/variables.index", "assets/words.txt", "assets/saved_model.pb"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode())
    (folder / "fingerprint.pb").write_bytes(b"of the old graph")
    return folder


def _type(graph, node):
    return graphs.node_named(graph, node).attr["T"].type


def test_a_graph_without_signatures_keeps_what_nothing_reads(tmp_path):
    files.write(tmp_path / "in.pb", graphs.chain())
    done = rewrite_file(tmp_path / "in.pb", tmp_path / "out.pb")
    (graph,) = done.graphs
    assert (graph.fetch, graph.feed, graph.guessed) == (("result",), (), True)
    written = files.read_graph(tmp_path / "out.pb")
    assert written == graph.result.graph_def
    assert graph.before == graphs.chain()
    assert [_type(written, name) for name in ("product", "relu", "result")] == [HALF, FLOAT, FLOAT]
    assert len(graph.result.casts) == 3


def test_fetch_and_feed_keep_their_types(tmp_path):
    files.write(tmp_path / "in.pb", graphs.chain())
    done = rewrite_file(tmp_path / "in.pb", fetch=["relu:0"], feed=["x:0"])
    (graph,) = done.graphs
    assert (graph.fetch, graph.feed, graph.guessed) == (("relu",), ("x",), False)
    assert _type(graph.result.graph_def, "relu") == FLOAT
    assert done.out is None
    assert [file.name for file in tmp_path.iterdir()] == ["in.pb"]
    (none,) = rewrite_file(tmp_path / "in.pb", fetch=()).graphs
    assert none.fetch == ()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["../graph.pb", "../folder/../graph.pb", "symlink", "link"])
def test_the_input_is_never_overwritten(tmp_path, monkeypatch, name, overwrite):
    """Catches: the float32 original lost, though no rewrite can be undone."""
    path = tmp_path / "graph.pb"
    files.write(path, graphs.chain())
    before = path.read_bytes()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "symlink").symlink_to(path)
    (tmp_path / "folder" / "link").hardlink_to(path)
    monkeypatch.chdir(tmp_path / "folder")
    with pytest.raises(GraphDefError, match=r"graph that is read.*never overwritten.*Name another"):
        rewrite_file(path, name, overwrite=overwrite)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["folder", "graph.pb", "link", "symlink"]


def test_another_file_is_replaced_only_if_asked(tmp_path):
    files.write(tmp_path / "graph.pb", graphs.chain())
    (tmp_path / "half.pb").write_text("three weeks of work")
    with pytest.raises(GraphDefError, match=r"half\.pb exists\..*--force.*overwrite=True"):
        rewrite_file(tmp_path / "graph.pb", tmp_path / "half.pb")
    assert (tmp_path / "half.pb").read_text() == "three weeks of work"
    rewrite_file(tmp_path / "graph.pb", tmp_path / "half.pb", overwrite=True)
    assert _type(files.read_graph(tmp_path / "half.pb"), "product") == HALF


def test_the_graph_file_of_a_saved_model_is_an_input_too(tmp_path):
    _saved(tmp_path / "model")
    file = tmp_path / "model" / "saved_model.pb"
    with pytest.raises(GraphDefError, match="graph that is read"):
        rewrite_file(file, file, overwrite=True)
    with pytest.raises(ArgumentError, match="exists: it must be a new folder"):
        rewrite_file(tmp_path / "model", tmp_path / "model", overwrite=True)


def test_a_link_to_a_folder_that_is_made(tmp_path):
    """Catches: a link to another disk replaced by a folder on this one, or refused."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "half").symlink_to(tmp_path / "disk" / "half")
    rewrite_file(_saved(tmp_path / "model"), tmp_path / "half")
    assert (tmp_path / "half").is_symlink()
    assert (tmp_path / "disk" / "half" / "variables").is_dir()


@pytest.mark.parametrize("name", ["x" * 300, "circle"])
def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path, name):
    source = _saved(tmp_path / "model")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    message = r"cannot write .*shorter one|circle exists: .*Name another"
    with pytest.raises((ArgumentError, WriteError), match=message):
        rewrite_file(source, tmp_path / name)


def test_a_folder_with_a_long_name(tmp_path):
    rewrite_file(_saved(tmp_path / "model"), tmp_path / ("x" * 250))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "x" * 250]


def test_an_error_while_variables_are_copied_names_the_output(tmp_path, monkeypatch):
    source = _saved(tmp_path / "model")

    def full(here, there, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(there))

    # copytree gathers errors of files and raises one of its own, without a number
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(WriteError, match=r"cannot write .*/half: .*No space left.*Free some") as e:
        rewrite_file(source, tmp_path / "half")
    assert e.value.errno == errno.ENOSPC
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


REWRITES = """
import hashlib, sys
from pathlib import Path
from tests.tensorflow import graphs
from duotone import Policy
from duotone.tensorflow import files, rewrite_file

def of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()

folder = Path(sys.argv[1])
(folder / "log").mkdir(parents=True)
message = graphs.saved_model()
for number in range(40):
    message.meta_graphs[0].signature_def[f"s{number}"].inputs["x"].name = "x:0"
    for node in message.meta_graphs[0].graph_def.node:
        node.attr[f"_a{number}"].i = number
files.write(folder / "in.pb", message)
for painter in ("tensorflow", "mincut"):
    for ending in ("pb", "pbtxt"):
        out = folder / f"{painter}.{ending}"
        policy = Policy(log_path=folder / "log")
        rewrite_file(folder / "in.pb", out, painter=painter, policy=policy)
        print(painter, ending, of(out))
print(of(folder / "in.pb"), *sorted(of(path) for path in (folder / "log").iterdir()))
"""


def test_bytes_do_not_differ_from_run_to_run(tmp_path):
    """Catches: maps of protocol buffers and sets of Python in the order of their hashes."""
    seen = set()
    for seed in range(2):
        command = [sys.executable, "-c", REWRITES, str(tmp_path / str(seed))]
        environ = {
            **os.environ,
            "PYTHONHASHSEED": str(seed),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        seen.add(done.stdout)
    assert len(seen) == 1


def test_a_meta_graph_keeps_what_its_signature_names(tmp_path):
    files.write(tmp_path / "in.meta", graphs.meta_graph())
    done = rewrite_file(tmp_path / "in.meta", tmp_path / "out.meta")
    (graph,) = done.graphs
    assert (graph.tags, graph.fetch, graph.feed) == (("serve",), ("relu",), ("x",))
    out = files.read(tmp_path / "out.meta")
    assert out.kind == "MetaGraphDef"
    assert out.message.signature_def == graphs.meta_graph().signature_def
    assert _type(out.message.graph_def, "product") == HALF
    assert _type(out.message.graph_def, "relu") == FLOAT


def test_what_a_meta_graph_names_next_to_its_signatures():
    message = graphs.meta_graph()
    for name in ("save", "restore", "file", "init", "asset", "indices", "part", "train"):
        graphs.add(message.graph_def.node, name, "NoOp")
    message.saver_def.save_tensor_name = "save:0"
    message.saver_def.restore_op_name = "restore"
    message.saver_def.filename_tensor_name = "file:0"
    message.asset_file_def.add().tensor_info.name = "asset:0"
    message.collection_def["train_op"].node_list.value.extend(["train", "^init", "missing:0"])
    outputs = message.signature_def["other"].outputs
    outputs["sparse"].coo_sparse.indices_tensor_name = "indices:0"
    outputs["composite"].composite_tensor.components.add().name = "part:0"
    fetch, feed = signature_nodes(message)
    assert fetch == ("indices", "init", "part", "relu", "restore", "save", "train")
    assert feed == ("asset", "file", "x")


def test_a_saved_model_keeps_all_but_its_graphs(tmp_path):
    source = _saved(tmp_path / "model")
    done = rewrite_file(source, tmp_path / "half")
    assert done.kind == "SavedModel"
    before = {p.relative_to(source): p for p in source.rglob("*") if p.is_file()}
    after = {p.relative_to(tmp_path / "half"): p for p in (tmp_path / "half").rglob("*")}
    for name, path in before.items():
        if name.name == "fingerprint.pb":
            assert name not in after
        elif str(name) != "saved_model.pb":
            assert after[name].read_bytes() == path.read_bytes()
    (meta_graph,) = files.read(tmp_path / "half").meta_graphs()
    expected = graphs.meta_graph()
    assert _type(meta_graph.graph_def, "product") == HALF
    meta_graph.graph_def.CopyFrom(expected.graph_def)
    assert meta_graph == expected
    assert sorted(p.name for p in tmp_path.iterdir()) == ["half", "model"]


def test_a_node_that_one_of_several_graphs_has_may_be_fetched(tmp_path):
    """Catches: a training graph's nodes, which the serving graph of the same file lacks."""
    message = graphs.saved_model()
    training = message.meta_graphs.add()
    training.CopyFrom(message.meta_graphs[0])
    training.ClearField("signature_def")
    graphs.add(training.graph_def.node, "loss", "Relu", "product")
    source = _saved(tmp_path / "model", message)
    serve, train = rewrite_file(source, fetch=["loss", "product:0"], feed=["deny"]).graphs
    assert (serve.fetch, serve.feed) == (("product", "relu"), ("deny", "x"))
    assert (train.fetch, train.feed) == (("loss", "product"), ("deny",))
    serve, train = rewrite_file(source, fetch=["loss"]).graphs
    assert (serve.fetch, train.fetch) == (("relu",), ("loss",))
    message.meta_graphs[0].ClearField("signature_def")
    serve, train = rewrite_file(_saved(tmp_path / "bare", message), fetch=["loss"]).graphs
    assert (serve.fetch, serve.guessed, train.fetch) == (("result",), True, ("loss",))
    with pytest.raises(GraphDefError, match="fetch 'lost': the graph has no node 'lost'"):
        rewrite_file(source, fetch=["loss", "lost"])


def test_a_saved_model_that_nobody_may_write_to(tmp_path):
    """Catches: a model of a read-only store, whose folders are copied with their permissions."""
    source = _saved(tmp_path / "model")
    folders = [source, *(p for p in source.rglob("*") if p.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        rewrite_file(source, tmp_path / "half")
        copies = [tmp_path / "half", *(p for p in (tmp_path / "half").rglob("*") if p.is_dir())]
        assert all(copy.stat().st_mode & 0o700 == 0o700 for copy in copies)
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_functions_of_a_saved_model_are_kept_though_its_graph_calls_none(tmp_path):
    message = graphs.saved_model()
    graphs.add_function(message.meta_graphs[0].graph_def, "called_by_an_object")
    rewrite_file(_saved(tmp_path / "model", message), tmp_path / "half")
    library = files.read_graph(tmp_path / "half").library
    assert [function.signature.name for function in library.function] == ["called_by_an_object"]


@pytest.mark.parametrize(
    ("out", "says"),
    [("model", "exists"), ("model/inside", "into the SavedModel"), ("a/b", "mkdir -p")],
)
def test_where_a_saved_model_cannot_be_written(out, says, tmp_path):
    source = _saved(tmp_path / "model")
    with pytest.raises(ArgumentError, match=says):
        rewrite_file(source, tmp_path / out)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert not (source / "inside").exists()


def test_a_failed_copy_leaves_nothing(tmp_path, monkeypatch):
    source = _saved(tmp_path / "model")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copytree", full)
    with pytest.raises(OSError, match="No space"):
        rewrite_file(source, tmp_path / "half")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_bad_option_is_not_blamed_on_the_file(tmp_path):
    files.write(tmp_path / "in.pb", graphs.chain())
    with pytest.raises(ArgumentError, match=r"^dtype="):
        rewrite_file(tmp_path / "in.pb", tmp_path / "out.pb", dtype="float8")
    assert not (tmp_path / "out.pb").exists()


def test_stages_are_told_in_order(tmp_path):
    files.write(tmp_path / "in.pb", graphs.chain())
    stages: list[str] = []
    rewrite_file(tmp_path / "in.pb", tmp_path / "out.pb", on_stage=stages.append)
    assert stages == ["reading", "rewriting", "writing"]


def test_an_attribute_that_makes_no_sense_leaves_a_shape_unknown(tmp_path):
    graph = graphs.chain()
    product = graphs.node_named(graph, "product")
    product.op = "Einsum"
    product.attr["N"].i = 2
    product.attr["equation"].s = b"ab,bc->#"
    files.write(tmp_path / "in.pb", graph)
    (done,) = rewrite_file(tmp_path / "in.pb", painter="mincut").graphs
    assert done.result.painting["product"] == {"T": "f16"}
