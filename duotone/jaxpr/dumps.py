"""Writes the original pass's files: graphs before and after, paint buckets, one line per decision.

TensorFlow wrote GraphDefs; here the graph is a jaxpr. The files have the same names as the
original's. Each write is atomic.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from duotone import _jax
from duotone._files import write_atomically
from duotone.graph.graph import Graph
from duotone.precision.classify.classes import Classes
from duotone.precision.painters.painting import Painting

logger = logging.getLogger("duotone.painter")


def write(
    folder: Path,
    before: _jax.ClosedJaxpr,
    after: _jax.ClosedJaxpr,
    graph: Graph,
    classes: Classes,
    painting: Painting,
) -> None:
    """Writes the three files of one rewrite, into a folder that the policy has checked."""
    stamp = f"{time.time_ns()}_{os.getpid()}"
    write_atomically(folder / f"graphdef_preop_{stamp}.jaxpr.txt", f"{before}\n")
    write_atomically(folder / f"graphdef_AutoMixedPrecision_{stamp}.jaxpr.txt", f"{after}\n")
    write_atomically(folder / f"paintbuckets_{stamp}.txt", paint_buckets(graph, classes, painting))


def paint_buckets(graph: Graph, classes: Classes, painting: Painting) -> str:
    """Returns the operations by list and precision, one per line."""
    buckets: dict[str, list[str]] = {}
    for node in graph.nodes:
        precision = painting.compute[node.index]
        bucket = f"{classes.nodes[node.index].listed.value.upper()} painted {precision}"
        line = f"{node.index} {node.op} {node.scope or '-'} {painting.rules[node.index]}"
        buckets.setdefault(bucket, []).append(line)
    parts = [f"{name} ({len(lines)})\n" + "\n".join(lines) for name, lines in buckets.items()]
    return "\n\n".join(parts) + "\n"


def log_decisions(graph: Graph, classes: Classes, painting: Painting) -> None:
    """Logs one line for each decision, to standard error if the user has set no handler."""
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
    for node in graph.nodes:
        rule = painting.rules[node.index]
        logger.info(
            "painting %s %s %s: %s (%s) at %s",
            classes.nodes[node.index].listed.value,
            node.op,
            painting.compute[node.index],
            rule.words,
            painting.details.get(node.index, rule),
            node.source,
        )
