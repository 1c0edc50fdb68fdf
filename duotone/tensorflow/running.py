"""Running: graphs and SavedModels in TensorFlow, with their inner values.

::

    SavedModel   tf.saved_model.load, the function of its signature
                 variables become constants
    GraphDef     from its placeholders to the nodes that nothing reads
    either       calls of functions become their nodes
                 a session without Grappler, so that a value keeps its name and dtype
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from duotone.errors import DuotoneError, GraphDefError
from duotone.measuring.inputs import Asked
from duotone.measuring.libraries import library
from duotone.tensorflow.files import GraphFile
from duotone.tensorflow.protos import GraphDef

_SIGNATURE = "serving_default"
_FREEZING = "tensorflow.python.framework.convert_to_constants"
_GRAPPLER = "tensorflow.python.grappler.tf_optimizer"
"""Modules of ``convert_variables_to_constants_v2`` and Grappler, which have no public names."""
_VARIABLES = frozenset({"Variable", "VariableV2", "VarHandleOp"})
_NO_ARRAYS = frozenset({"resource", "variant"})
_LONGEST = 300
Tensor = Any
"""A ``tf.Tensor`` of a graph."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """A graph that TensorFlow has loaded.

    Attributes:
        graph: the ``tf.Graph``, without variables and calls.
        inputs: the tensors that are fed.
        outputs: the results by name.
    """

    graph: Any
    inputs: tuple[Tensor, ...]
    outputs: Mapping[str, Tensor]

    @property
    def asked(self) -> list[Asked]:
        """The inputs as the generator of random inputs takes them."""
        return [
            Asked(tensor.op.name, _numpy(tensor), sides(tensor), tensor.dtype.name)
            for tensor in self.inputs
        ]

    @property
    def values(self) -> dict[str, Tensor]:
        """The float tensors of the graph that a session can return, by name, in order."""
        return {
            tensor.name: tensor
            for node in self.graph.get_operations()
            if node.type not in ("Const", "Placeholder")
            for tensor in node.outputs
            if tensor.dtype.is_floating and self.graph.is_fetchable(tensor)
        }


def sides(tensor: Tensor) -> tuple[int | None, ...]:
    """The sides of a tensor, ``None`` where one is open; none if its rank is not known."""
    return () if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def _numpy(tensor: Tensor) -> Any:
    """The NumPy dtype of an input; ``None`` if no random numbers of it can be made."""
    dtype = tensor.dtype
    return dtype.as_numpy_dtype if dtype.is_floating or dtype.is_integer or dtype.is_bool else None


def load(source: GraphFile) -> Loaded:
    """Loads a graph or SavedModel in TensorFlow.

    Raises:
        MissingExtraError: TensorFlow is not installed.
        GraphDefError: TensorFlow refuses it, or it has variables without values.
    """
    tf = library("tensorflow", "running a TensorFlow graph", "tensorflow")
    with explained(source, "load"):
        if source.kind == "SavedModel":
            return _signature(tf, source)
        return _graph(tf, source.path, source.graphs()[0])


def _signature(tf: Any, source: GraphFile) -> Loaded:
    """The serving signature of a SavedModel, or its first by name, with variables as constants.

    Raises:
        GraphDefError: there is no signature.
    """
    model = tf.saved_model.load(str(source.file.parent))  # it owns the variables
    if not model.signatures:
        raise GraphDefError(f"{source.path}: it has no signature, so it has no inputs and results.")
    name = _SIGNATURE if _SIGNATURE in model.signatures else min(model.signatures)
    function = model.signatures[name]
    frozen = importlib.import_module(_FREEZING).convert_variables_to_constants_v2(
        function, lower_control_flow=False, aggressive_inlining=True
    )
    graph = _imported(tf, frozen.graph.as_graph_def())
    inputs, results = (
        [graph.get_tensor_by_name(tensor.name) for tensor in tensors]
        for tensors in (frozen.inputs, frozen.outputs)
    )
    return Loaded(
        graph, tuple(inputs), dict(zip(sorted(function.structured_outputs), results, strict=True))
    )


def _graph(tf: Any, path: Path, graph_def: GraphDef) -> Loaded:
    """A graph from its placeholders to the nodes that nothing reads.

    Raises:
        GraphDefError: a node is a variable, or a placeholder for one.
    """
    graph = _imported(tf, tf.compat.v1.GraphDef.FromString(graph_def.SerializeToString()))
    for node in graph.get_operations():
        fed = node.type == "Placeholder" and node.outputs[0].dtype.name in _NO_ARRAYS
        if node.type in _VARIABLES or fed:
            raise GraphDefError(
                f"{path}: the node {node.name!r} is a variable, and the file of a graph has no "
                "values of variables: compare SavedModel folders, or freeze the graph."
            )
    results = _unread(graph)
    if graph_def.library.function:
        graph = _imported(tf, _inlined(tf, graph, results))
    inputs = [n.outputs[0] for n in graph.get_operations() if n.type == "Placeholder"]
    return Loaded(graph, tuple(inputs), {t.name: graph.get_tensor_by_name(t.name) for t in results})


def _unread(graph: Any) -> list[Tensor]:
    """The tensors of the nodes that nothing reads."""
    return [
        tensor
        for node in graph.get_operations()
        if node.type != "Placeholder" and not any(t.consumers() for t in node.outputs)
        for tensor in node.outputs
        if graph.is_fetchable(tensor) and tensor.dtype.name not in _NO_ARRAYS
    ]


def _imported(tf: Any, graph_def: Any) -> Any:
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    return graph


def _inlined(tf: Any, graph: Any, results: Sequence[Tensor]) -> Any:
    """The GraphDef of a graph whose calls of functions are replaced by their nodes."""
    with graph.as_default():
        meta_graph = tf.compat.v1.train.export_meta_graph(graph=graph)
    meta_graph.collection_def["train_op"].node_list.value.extend(t.name for t in results)
    config = tf.compat.v1.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1
    options.optimizers.append("function")
    options.function_optimization = options.AGGRESSIVE
    return importlib.import_module(_GRAPPLER).OptimizeGraph(config, meta_graph)


def run(loaded: Loaded, tensors: Sequence[Tensor], feed: Mapping[str, Any]) -> list[np.ndarray]:
    """Runs a graph without Grappler.

    Args:
        loaded: the graph.
        tensors: the tensors to return.
        feed: the inputs by name.

    Raises:
        tensorflow.errors.OpError: TensorFlow cannot run it.
    """
    tf = library("tensorflow", "running a TensorFlow graph", "tensorflow")
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    given = {f"{name}:0": array for name, array in feed.items()}
    with tf.compat.v1.Session(graph=loaded.graph, config=config) as session:
        return session.run(list(tensors), given)


@contextlib.contextmanager
def explained(source: GraphFile, action: str) -> Iterator[None]:
    """A context that turns TensorFlow's errors into one line.

    Args:
        source: the file.
        action: what TensorFlow was to do: ``"load"`` or ``"run"``.

    Raises:
        GraphDefError: an error of the block.
    """
    try:
        yield
    except DuotoneError:
        raise
    except Exception as error:  # TensorFlow's errors have no common class
        reason = " ".join(str(error).split()) or type(error).__name__
        reason = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]} …"
        raise GraphDefError(f"TensorFlow cannot {action} {source.path}: {reason}") from error
