"""Lines of the log, against logs of TensorFlow 2.21's own pass."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from duotone import Policy
from duotone.tensorflow.journal import walk
from duotone.tensorflow.protos import new_graph
from tests.tensorflow.painted import rewrite
from tests.tensorflow.test_cases import CASES, DTYPES
from tests.tensorflow.test_more_cases import NAMES, read

FOLDER = Path(__file__).parents[1] / "data" / "tensorflow_logs"
LOGS = sorted(file.stem for file in FOLDER.glob("*.txt"))
# TensorFlow takes the order of a node's types and ports, and of a list's ops, from hash tables.
UNORDERED = {
    "allow_other_types.cuda",
    "list_implicit_edges.bf16",
    "list_op_allowed.cuda",
    "quantized_beside_float.cuda",
    "u_fused_batch_norm_v1.bf16",
    "u_multi_output_partial.cuda",
    "u_recurrent_preserved.bf16",
    "u_tensorlist_fetched_member.cuda",
}


def log_of(caplog, graph, **settings):
    """The lines that a rewrite logs."""
    with caplog.at_level(logging.INFO, logger="duotone.painter"):
        rewrite(graph, policy=Policy(log_decisions=True), **settings)
    lines = [r.getMessage() for r in caplog.records if r.name == "duotone.painter"]
    caplog.clear()
    return lines


def case(name):
    """The graph of a case, what is fetched and fed, and the environment."""
    if name in NAMES:
        graph, answer = read(name)
        settings = {"fetch": answer["fetch"], "feed": answer["feed"]}
        return graph, settings, answer["environment"]
    text, answer = CASES[name]
    return new_graph.FromString(text), {"fetch": answer["fetch"]}, {}


@pytest.mark.parametrize("log", LOGS)
def test_the_lines_are_tensorflow_s(log, caplog, monkeypatch):
    name, mode = log.split(".")
    graph, settings, environment = case(name)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    ours = log_of(caplog, graph, dtype=DTYPES[mode], **settings)
    theirs = (FOLDER / f"{log}.txt").read_text().splitlines()
    assert sorted(ours) == sorted(theirs)
    if log not in UNORDERED:
        assert ours == theirs


def test_the_logs_show_all_that_there_is():
    text = "\n".join((FOLDER / f"{log}.txt").read_text() for log in LOGS)
    for words in (
        "\nUnPainting type",
        "DENY to match the color of its sibling Merge nodes",
        "DENY to match the color of its output Merge node",
        "because at least one of its siblings is DENY",
        "Painting type Tidx of Sum node sum DENY",
        "Adding ephemeral float32 edge",
        "Changing op of FusedBatchNorm node",
        "because its op MatMul is on the allowlist",
        "No allowlist ops found, nothing to do",
        "graph optimizer on __inference",
    ):
        assert words in text, words


def test_a_minimum_cut_logs_what_it_changes(caplog):
    graph, settings, _ = case("r_transformer_train")
    lines = log_of(caplog, graph, painter="mincut", **settings)
    start = lines.index("Choosing the colors that move the fewest bytes through casts")
    end = lines.index("Finding existing casts that can be made allow")
    chosen = lines[start + 1 : end]
    assert chosen
    assert all(line.startswith("Painting type ") for line in chosen)
    usual = log_of(caplog, graph, **settings)
    assert lines[:start] == usual[:start]


def test_a_walk_goes_back_to_its_starts_only_once():
    edges = [[1, 2], [0], [3], [], [2, 5], []]
    assert walk([0, 4, 1], edges.__getitem__, lambda unit: unit != 3) == [0, 2, 1, 4, 5]
