"""Runs GraphDefs in TensorFlow, which ``make test-tensorflow`` has in its environment."""

from __future__ import annotations

import os

import pytest

from tests.tensorflow import graphs

needs_tensorflow = [
    pytest.mark.skipif(
        not os.environ.get("DUOTONE_TEST_TENSORFLOW"), reason="make test-tensorflow runs these"
    ),
    pytest.mark.filterwarnings("default"),  # TensorFlow's own are not ours to judge
]


def run(tf, graph, fetch, **feed):
    """Runs a GraphDef of duotone's message classes in a session."""
    message = tf.compat.v1.GraphDef.FromString(graph.SerializeToString())
    with tf.Graph().as_default() as loaded:
        tf.import_graph_def(message, name="")
        with tf.compat.v1.Session(graph=loaded) as session:
            values = {f"{name}:0": value for name, value in feed.items()}
            return session.run([f"{name}:0" for name in fetch], values)


def graph_of(tf, function, *arguments):
    """The GraphDef of a function, in duotone's message classes; its results are r0, r1 ..."""
    with tf.Graph().as_default() as graph:
        inputs = [
            tf.compat.v1.placeholder(tf.float32, a.shape, f"x{i}") for i, a in enumerate(arguments)
        ]
        results = [tf.identity(r, f"r{i}") for i, r in enumerate(function(*inputs))]
        message = graph.as_graph_def()
    feed = {f"x{i}": a for i, a in enumerate(arguments)}
    names = [f"r{i}" for i in range(len(results))]
    return graphs.new_graph().FromString(message.SerializeToString()), names, feed
