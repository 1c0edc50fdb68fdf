"""Graphs for Model Explorer: nodes, groups, edges and colours in its format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import duotone
from duotone.explaining.drawn import CAST


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        with jax.named_scope("net/attention"):
            y = jnp.exp(x @ w)
        with jax.named_scope("net/head"):
            return jnp.sum((y @ w) ** 2)

    file = tmp_path_factory.mktemp("explorer") / "graph.json"
    seen = duotone.explain(jax.grad(loss), jnp.ones((8, 8)), jnp.ones((12, 8)), dtype="float16")
    seen.to_model_explorer(file)
    return json.loads(file.read_text()), seen


def test_a_file_is_a_collection_of_one_graph(collection: Any) -> None:
    written, seen = collection
    assert written["label"] == "duotone"
    (graph,) = written["graphs"]
    assert graph["id"] == "painted in float16"
    assert len(graph["nodes"]) == len(seen.operations) + len(seen.casts)
    words = graph["groupNodeAttributes"][""]
    assert words["casts"] == str(len(seen.casts))


def test_edges_lead_from_nodes_that_are_there(collection: Any) -> None:
    nodes = {node["id"]: node for node in collection[0]["graphs"][0]["nodes"]}
    assert len(nodes) == len(collection[0]["graphs"][0]["nodes"])
    edges = [edge for node in nodes.values() for edge in node["incomingEdges"]]
    assert edges
    assert all(edge["sourceNodeId"] in nodes for edge in edges)
    exponential = next(node for node in nodes.values() if node["label"] == "exp")
    (made,) = exponential["incomingEdges"]
    assert nodes[made["sourceNodeId"]]["label"] in ("dot_general", CAST)


def test_groups_are_scopes_and_colours_are_precisions(collection: Any) -> None:
    nodes = collection[0]["graphs"][0]["nodes"]
    exponential = next(node for node in nodes if node["label"] == "exp")
    assert exponential["namespace"].endswith("net/attention")
    about = {entry["key"]: entry["value"] for entry in exponential["attrs"]}
    assert about["rule"] == "deny"
    assert about["precision"].startswith(("full", "computes full"))
    assert "test_model_explorer.py" in about["source"]
    colours = {}
    for node in nodes:
        about = {entry["key"]: entry["value"] for entry in node["attrs"]}
        colours.setdefault(about["precision"].split(" ")[0], set()).add(
            node["style"]["backgroundColor"]
        )
    assert {"half", "full", CAST} <= set(colours)
    assert all(len(of_one) == 1 for of_one in colours.values())
    assert len(set.union(*colours.values())) == len(colours)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    seen = duotone.explain(lambda x: x @ x, jnp.ones((8, 8)), dtype="float16")
    with pytest.raises(duotone.DuotoneError, match=r"is a folder|is a directory"):
        seen.to_model_explorer(tmp_path)
