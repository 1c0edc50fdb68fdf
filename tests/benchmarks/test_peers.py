"""The processes of ``peers_cpu`` run on tiny sizes; no time is asserted."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys

import pytest

from benchmarks import _peers, peers_cpu
from benchmarks._peers_jax import ONE_LINE, WAYS, WEIGHTS, made

# They build whole models: what a user needs to trust the build is elsewhere.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["resnet", "lstm", "dit"])
def test_every_way_of_a_model_runs(name):
    peer = peers_cpu.PEERS[name]("tiny")
    case = json.loads(json.dumps(dataclasses.asdict(peer)))
    counts = set()
    for task, batch in (("predict", 2), ("train", peer.batch)):
        for way in WAYS[task]:
            run, parameters = made(case, way, task, batch)
            run()
            run()
            counts.add(parameters)
    assert len(counts) == 1


def test_tokens_are_generated_in_a_process_of_each_way():
    torch = ["torch"] if importlib.util.find_spec("torch") else []
    rows = peers_cpu.measure(peers_cpu.PEERS["generate"]("tiny"), sys.executable, torch, rounds=1)
    assert [row["batch"] for row in rows] == [1]
    for row in rows:
        assert not row["failures"]
        assert row["over float32"]["float32"] == 1.0
        assert {WEIGHTS, "duotone", "by hand"} <= {*row["seconds"]}
        assert all(megabytes > 0 for megabytes in row["megabytes"].values())
    part = {"jax": "0", "rows": rows}
    text = peers_cpu._text(part)
    assert "tokens/s, batch 1" in text
    assert ONE_LINE not in text
    bars = peers_cpu.bars({"JAX 0": part})
    assert [bar.limit for bar in bars if "over float32's" in bar.name] == [1.03] * 2


@pytest.mark.parametrize("name", ["keras transformer", "keras MobileNetV2"])
def test_a_keras_model_is_compared_with_its_own_float32(name):
    rows = peers_cpu.measure(peers_cpu.PEERS[name]("tiny"), sys.executable, [], rounds=1)
    assert [row["task"] for row in rows] == ["predict", "predict", "train"]
    for row in rows:
        assert not row["failures"]
        assert [*row["over float32"]] == [*peers_cpu.KERAS_WAYS]
        assert row["over float32"]["Keras"] == 1.0
    part = {"jax": "0", "rows": rows}
    assert "Keras ms" in peers_cpu._text(part)
    assert len(peers_cpu.bars({"JAX 0": part})) == 3


def test_a_task_that_raises_is_answered_with_its_error(monkeypatch, capsys):
    def make(**task):
        raise ValueError(f"no {task['task']}")

    monkeypatch.setattr(_peers.os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(_peers.sys, "stdin", ['{"task": "predict"}\n'])
    _peers.serve(make)
    assert json.loads(capsys.readouterr().out) == {"failed": "ValueError: no predict"}


def test_the_processs_end_is_an_error_that_names_the_way():
    worker = peers_cpu.Worker(sys.executable, peers_cpu.PEERS["vit"]("tiny"), "duotone")
    worker._process.kill()
    with pytest.raises(RuntimeError, match="vit, duotone ended"):
        worker.ask(task="predict", batch=1)
    worker.end()


def test_a_missing_library_is_printed_with_its_remedy(capsys, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    assert peers_cpu.versions_of(str(python)) == {}
    printed = capsys.readouterr().out
    assert printed.count("--torch PYTHON") == 2
    assert "pip install torch onnx onnxscript onnxruntime" in printed
