"""What is written down: graphs before and after, paint buckets, a log line for each decision."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import duotone
from duotone import Policy

X, W = np.ones((4, 8), np.float32), np.ones((8, 16), np.float32)


def _model(x: Any, w: Any) -> Any:
    return jnp.exp(jnp.tanh(x @ w)) @ w.T


def _files(folder: Path) -> dict[str, str]:
    """Kind of each file and its content; fails on two of a kind."""
    found: dict[str, str] = {}
    for path in folder.iterdir():
        kind = re.sub(r"_\d+_\d+", "", path.name)
        assert kind not in found
        found[kind] = path.read_text()
    return found


def test_the_graph_before_and_after(tmp_path: Path) -> None:
    policy = Policy(log_path=tmp_path)
    duotone.autocast(_model, dtype="float16", policy=policy)(X, W)
    files = _files(tmp_path)
    assert set(files) == {
        "graphdef_preop.jaxpr.txt",
        "graphdef_AutoMixedPrecision.jaxpr.txt",
        "paintbuckets.txt",
    }
    assert "f16" not in files["graphdef_preop.jaxpr.txt"]
    assert "f16" in files["graphdef_AutoMixedPrecision.jaxpr.txt"]
    for text in files.values():
        assert text.endswith("\n")


def test_paint_buckets(tmp_path: Path) -> None:
    policy = Policy(log_path=tmp_path)
    duotone.autocast(_model, dtype="float16", policy=policy)(X, W)
    text = _files(tmp_path)["paintbuckets.txt"]
    assert "ALLOW painted half (2)" in text
    assert "DENY painted full (1)" in text
    assert re.search(r"^\d+ exp - deny$", text, re.MULTILINE)


def test_one_set_for_each_signature_and_none_for_a_second_call(tmp_path: Path) -> None:
    model = duotone.autocast(_model, dtype="float16", policy=Policy(log_path=tmp_path))
    model(X, W)
    model(X + 1, W)
    assert len(list(tmp_path.iterdir())) == 3
    model(X[:2], W)
    assert len(list(tmp_path.iterdir())) == 6


def test_a_program_in_which_nothing_is_half_is_written_too(tmp_path: Path) -> None:
    policy = Policy(log_path=tmp_path)
    duotone.autocast(jnp.exp, dtype="float16", policy=policy)(X)
    files = _files(tmp_path)
    same = files["graphdef_preop.jaxpr.txt"] == files["graphdef_AutoMixedPrecision.jaxpr.txt"]
    assert same
    assert "DENY painted full (1)" in files["paintbuckets.txt"]


def test_the_folder_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LOG_PATH", str(tmp_path))
    duotone.autocast(_model, dtype="float16")(X, W)
    assert len(_files(tmp_path)) == 3


def test_nothing_half_written_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash while a file is written leaves whole files only."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        duotone.autocast(_model, dtype="float16", policy=Policy(log_path=tmp_path))(X, W)
    assert list(tmp_path.iterdir()) == []


def test_explain_writes_nothing(tmp_path: Path) -> None:
    duotone.explain(_model, X, W, dtype="float16", policy=Policy(log_path=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_log_line_for_each_decision(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "duotone.painter"):
        seen = duotone.explain(_model, X, W, dtype="float16", policy=Policy(log_decisions=True))
    lines = [record.getMessage() for record in caplog.records if record.name == "duotone.painter"]
    assert len(lines) == len(seen.operations)
    assert any(
        re.match(r"painting deny exp full: .*overflows half.* at .*test_dumps\.py", line)
        for line in lines
    )


def test_log_lines_come_from_the_environment(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.INFO, "duotone.painter"):
        duotone.explain(_model, X, W, dtype="float16")
        assert not caplog.records
        monkeypatch.setenv("TF_CPP_VMODULE", "auto_mixed_precision=2")
        duotone.explain(_model, X, W, dtype="float16")
    assert len(caplog.records) >= 4
