"""TensorFlow 2.21's answers to forty small graphs that each show one rule."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from duotone.errors import DuotoneError
from duotone.tensorflow.protos import new_graph
from tests.tensorflow.painted import check_types, rewrite
from tests.tensorflow.test_cases import DTYPES, as_observed

FOLDER = Path(__file__).parents[1] / "data" / "tensorflow_amp_more"
NAMES = sorted(file.name.removesuffix(".pb.xz") for file in FOLDER.glob("*.pb.xz"))


def read(name: str) -> tuple[Any, dict[str, Any]]:
    """A case's graph and TensorFlow's answer."""
    text = lzma.decompress((FOLDER / f"{name}.pb.xz").read_bytes())
    answer = lzma.decompress((FOLDER / f"{name}.json.xz").read_bytes())
    return new_graph.FromString(text), json.loads(answer)


def functions_of(result: Any) -> dict[str, Any]:
    """The functions of a rewrite as the answers write them."""
    functions: dict[str, Any] = {
        name: {
            "attrs": as_observed(done.painting),
            "new_nodes": sorted(cast.name for cast in done.casts),
        }
        for name, done in result.functions.items()
    }
    return functions | dict.fromkeys(result.dropped_functions, "MISSING")


def is_untouched(function: Any) -> bool:
    """Whether TensorFlow changed nothing in a function; such a one may have been left alone."""
    precisions = {c for attributes in function["attrs"].values() for c in attributes.values()}
    return not function["new_nodes"] and precisions == {"f32"}


def test_all_cases_are_here_and_told_in_the_readme():
    table = (FOLDER / "README.md").read_text()
    assert len(NAMES) == 40
    assert all(f"| `{name}` |" in table for name in NAMES)


@pytest.mark.parametrize("mode", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_tensorflow_s_answer(name, mode, monkeypatch):
    graph, answer = read(name)
    for variable, value in answer["environment"].items():
        monkeypatch.setenv(variable, value)
    expected = answer["expected"][mode]

    def run():
        return rewrite(graph, fetch=answer["fetch"], feed=answer["feed"], dtype=DTYPES[mode])

    if "error" in expected:
        with pytest.raises(DuotoneError):
            run()
        return
    result = run()
    assert as_observed(result.painting) == expected["attrs"]
    casts = [
        {"name": c.name, "src": c.source, "to": c.to, "consumers": sorted(c.consumers)}
        for c in result.casts
    ]
    assert sorted(casts, key=lambda c: c["name"]) == expected["casts"]
    assert {k: list(v) for k, v in result.op_changes.items()} == expected["op_changes"]
    functions = functions_of(result)
    assert functions == {
        function: told
        for function, told in expected["functions"].items()
        if function in functions or not is_untouched(told)
    }


@pytest.mark.parametrize("painter", ["tensorflow", "mincut"])
@pytest.mark.parametrize("name", NAMES)
def test_the_rewritten_graph_is_well_typed(name, painter, monkeypatch):
    graph, answer = read(name)
    for variable, value in answer["environment"].items():
        monkeypatch.setenv(variable, value)
    check_types(rewrite(graph, fetch=answer["fetch"], painter=painter).graph_def)
