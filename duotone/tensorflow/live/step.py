"""Step: one call of a ``tf.function`` in float32 and as rewritten, and where the two first differ.

::

    trace the function; rewrite its graph as a file is
    in each of the two graphs: return every float value; run it; write the variables back
    compare the values of one name

Both run without Grappler, which would fuse nodes. Control flow stays as TensorFlow traced it, so
values inside of loops and branches are not returned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from duotone.errors import ArgumentError, kind_of
from duotone.measuring.differences import Difference, constant_results, difference
from duotone.measuring.libraries import library
from duotone.tensorflow.live import switch
from duotone.tensorflow.live.graphs import LiveSettings, rewrite_unlowered
from duotone.tensorflow.live.jit import MUST_COMPILE, add_functions
from duotone.tensorflow.protos import GraphDef, bodies_of, new_graph
from duotone.tensorflow.running import Loaded, without_arrays

_SUFFIX = "_duotone_compared"
_SEED = 1


def compare_step(step: Any, *args: Any) -> Difference:
    """Runs a step in float32 and as rewritten, and tells where the two first differ.

    Weights, slots, loss scales and other variables have their values again afterwards. Every float
    value of both runs is in memory at once, so take a small batch.

    Args:
        step: a ``tf.function``, such as ``tf.function(model.train_step)``.
        *args: its arguments: tensors and arrays, in tuples or dicts.

    Returns:
        The differences of the results and of each float value; ``parts`` is the first value that
        differs or overflows.

    Raises:
        ArgumentError: mixed precision is off, ``step`` is not a ``tf.function``, or an argument is
            something other than an array.
        GraphDefError: the graph of the step has ops that TensorFlow 2.21 lacks.

    Example:
        >>> import duotone.tensorflow
        >>> duotone.tensorflow.compare_step(print)
        Traceback (most recent call last):
        duotone.errors.ArgumentError: compare_step: mixed precision is off, ...
    """
    settings = _settings_for(step)
    tf = library("tensorflow", "comparing a step", "tensorflow")
    traced = step.get_concrete_function(*args)
    given = _given(tf, traced, args)
    results = [tensor.name for tensor in traced.outputs if not without_arrays(tensor)]
    inside = {
        name: tensor.op.type
        for name, tensor in Loaded(traced.graph, {}, {}).values.items()
        if switch.FLOAT32_SCOPE not in name
    }
    names = [*inside, *results]
    graph = _seeded(new_graph.FromString(traced.graph.as_graph_def().SerializeToString()))
    compiled = traced.function_def.attr[MUST_COMPILE].b
    done = rewrite_unlowered(graph, results, settings, compiled=compiled)
    add_functions(done.graph_def, _SUFFIX)
    with switch.plain(tf):
        first, second = (_run(tf, g, traced, given, names) for g in (graph, done.graph_def))
    found = [
        difference(name, one, other, inside.get(name, ""))
        for name, one, other in zip(names, first, second, strict=True)
    ]
    count, arguments = len(inside), len(given) - len(traced.captured_inputs)
    return Difference(
        tuple(found[count:]),
        tuple(found[:count]),
        {t.name: f"{t.dtype.name}{t.shape}" for t in traced.graph.inputs[:arguments]},
        constant_results(dict(zip(results, first[count:], strict=True))),
    )


def _settings_for(step: Any) -> LiveSettings:
    """Returns how graphs are rewritten."""
    settings = switch.settings()
    if settings is None:
        raise ArgumentError(
            "compare_step: mixed precision is off, so there is nothing to compare. Call "
            "duotone.enable_mixed_precision_graph_rewrite(optimizer) first."
        )
    if not hasattr(step, "get_concrete_function"):
        raise ArgumentError(
            f"compare_step: it takes a tf.function and got {kind_of(step)}; write "
            "compare_step(tf.function(step), ...)."
        )
    return settings


def _given(tf: Any, traced: Any, args: Sequence[Any]) -> list[Any]:
    """Returns the tensors that a call of a traced function reads: arguments, then captures."""
    arrays = [one for one in tf.nest.flatten(args) if isinstance(one, np.ndarray | tf.Tensor)]
    inputs, captured = traced.graph.inputs, list(traced.captured_inputs)
    if len(arrays) + len(captured) != len(inputs):
        raise ArgumentError(
            f"compare_step: the step reads {len(inputs) - len(captured)} tensors and got "
            f"{len(arrays)}; pass tensors and arrays, no variables, datasets or iterators."
        )
    pairs = zip(arrays, inputs, strict=False)
    return [tf.convert_to_tensor(array, tensor.dtype) for array, tensor in pairs] + captured


def _seeded(graph: GraphDef) -> GraphDef:
    """Gives random ops without a seed one, so that two runs draw the same numbers."""
    for number, node in enumerate(node for _, nodes in bodies_of(graph) for node in nodes):
        if "seed" in node.attr and "seed2" in node.attr:
            node.attr["seed"].i = node.attr["seed"].i or _SEED
            node.attr["seed2"].i = node.attr["seed2"].i or number
    return graph


@contextlib.contextmanager
def _variables_kept(tf: Any, variables: Sequence[Any]) -> Iterator[None]:
    """Yields a context after which variables have the values that they had before."""
    kept = [(variable, tf.identity(variable)) for variable in variables]
    try:
        yield
    finally:
        for variable, value in kept:
            variable.assign(value)


def _run(
    tf: Any, graph: GraphDef, traced: Any, given: Sequence[Any], names: Sequence[str]
) -> list[np.ndarray]:
    """Runs a graph, writes its variables back, and returns the arrays of some names."""
    definition = tf.compat.v1.GraphDef.FromString(graph.SerializeToString())
    fed = [tensor.name for tensor in traced.graph.inputs]

    @tf.function(autograph=False)
    def values(*tensors: Any) -> Any:
        mapped = dict(zip(fed, tensors, strict=True))
        return tf.graph_util.import_graph_def(definition, mapped, list(names), name="")

    with _variables_kept(tf, traced.variables):
        return [value.numpy() for value in values(*given)]
