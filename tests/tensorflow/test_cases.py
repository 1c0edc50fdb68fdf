"""The observed graphs: TensorFlow 2.21's answers in both modes, to the last consumer of a cast."""

from __future__ import annotations

import json
from typing import Any

import pytest

from duotone.tensorflow.protos import new_graph
from tests.tensorflow.graphdefs import cases
from tests.tensorflow.painted import check_types, rewrite

DTYPES = {"cuda": "float16", "bf16": "bfloat16"}
CASES = {name: (graph, json.loads(answer)) for name, graph, answer in cases()}


def as_observed(painting: Any) -> dict[str, dict[str, str]]:
    """A painting as the answers write it: half is "f16" in both modes."""
    return {
        node: {
            name: "f32" if precision == "f32" else "f16" for name, precision in attributes.items()
        }
        for node, attributes in painting.items()
    }


def test_all_cases_are_here():
    assert len(CASES) == 42
    assert all(set(answer["expected"]) == set(DTYPES) for _, answer in CASES.values())


@pytest.mark.parametrize("mode", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_tensorflow_s_answer(name, mode):
    text, answer = CASES[name]
    expected = answer["expected"][mode]
    result = rewrite(new_graph.FromString(text), fetch=answer["fetch"], dtype=DTYPES[mode])
    assert as_observed(result.painting) == expected["attrs"]
    casts = {
        c.name: {"name": c.name, "src": c.source, "to": c.to, "consumers": sorted(c.consumers)}
        for c in result.casts
    }
    assert casts == {
        c["name"]: {**c, "consumers": sorted(c["consumers"])} for c in expected["casts"]
    }
    assert {k: list(v) for k, v in result.op_changes.items()} == expected["op_changes"]
    functions: dict[str, Any] = {
        name: {
            "attrs": as_observed(done.painting),
            "new_nodes": sorted(cast.name for cast in done.casts),
        }
        for name, done in result.functions.items()
    }
    functions.update(dict.fromkeys(result.dropped_functions, "MISSING"))
    assert functions == expected["functions"]


@pytest.mark.parametrize("painter", ["tensorflow", "mincut"])
@pytest.mark.parametrize("name", CASES)
def test_the_rewritten_graph_is_well_typed_and_the_given_one_untouched(name, painter):
    text, answer = CASES[name]
    graph = new_graph.FromString(text)
    result = rewrite(graph, fetch=answer["fetch"], painter=painter)
    check_types(result.graph_def)
    assert graph == new_graph.FromString(text)
    again = rewrite(graph, fetch=answer["fetch"], painter=painter)
    assert again.graph_def == result.graph_def


def test_the_answers_tell_a_wrong_rule(monkeypatch):
    """Planted faults: each rule that is left out is found by some case."""
    from duotone.tensorflow import passes

    faults = {
        "_spread_deny": lambda *_: None,
        "_fill_between": lambda *_: None,
        "_follow_allow": lambda *_: None,
        "_spread_allow": lambda *_: None,
        "_remove_impossible": lambda *_: None,
        "agree": lambda *_: None,
        "hidden_edges": lambda *_: [],
        "agree_on_loops": lambda *_: None,
        "shorten_casts": lambda *_: None,
        "reads_variable": lambda *_: False,
    }
    small = [name for name, (text, _) in CASES.items() if len(text) < 15_000]
    for name, fault in faults.items():
        with monkeypatch.context() as patch:
            patch.setattr(passes, name, fault)
            found = False
            for case in small:
                text, answer = CASES[case]
                try:
                    result = rewrite(new_graph.FromString(text), fetch=answer["fetch"])
                except Exception:
                    found = True
                    break
                if as_observed(result.painting) != answer["expected"]["cuda"]["attrs"]:
                    found = True
                    break
        assert found, f"no case needs {name}"
