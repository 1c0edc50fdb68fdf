"""Running: graphs and SavedModels in TensorFlow, with their inner values.

::

    SavedModel   from the inputs to the results of a signature; variables become constants
    GraphDef     from its placeholders to the nodes that nothing reads
    either       calls of functions become their nodes
                 a session without Grappler, so that a value keeps its name and dtype
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from duotone.errors import DuotoneError, GraphDefError
from duotone.measuring.inputs import Asked
from duotone.measuring.libraries import library, quiet
from duotone.ops.tensorflow_kinds import MERGES, SWITCHES, VARIABLES
from duotone.tensorflow.files import GraphFile
from duotone.tensorflow.protos import GraphDef

_SIGNATURE = "serving_default"
_FREEZING = "tensorflow.python.framework.convert_to_constants"
_GRAPPLER = "tensorflow.python.grappler.tf_optimizer"
"""Modules of ``convert_variables_to_constants`` and Grappler, which have no public names."""
_LONGEST = 300
_NO_KERNEL = re.compile(r"No OpKernel was registered to support Op '(\w+)'")
Tensor = Any
"""A ``tf.Tensor`` of a graph."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """A graph that TensorFlow has loaded.

    Attributes:
        graph: the ``tf.Graph``, without variables and calls.
        inputs: the tensors that are fed, by name.
        outputs: the results by name.
    """

    graph: Any
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @property
    def asked(self) -> list[Asked]:
        """The inputs as the generator of random inputs takes them."""
        return [
            Asked(name, _numpy(tensor), sides(tensor), tensor.dtype.name)
            for name, tensor in self.inputs.items()
        ]

    @property
    def values(self) -> dict[str, Tensor]:
        """The float tensors that a node reads and a session can return, by name, in order.

        Tensors in the branches of a ``Switch`` are left out, since only one of the branches runs.
        """
        conditional = _conditional(self.graph)
        return {
            tensor.name: tensor
            for node in self.graph.get_operations()
            if node.type not in ("Const", "Placeholder") and node.name not in conditional
            for tensor in node.outputs
            if tensor.dtype.is_floating and self.graph.is_fetchable(tensor) and tensor.consumers()
        }


def sides(tensor: Tensor) -> tuple[int | None, ...]:
    """Returns the sides of a tensor, ``None`` where one is open; none if its rank is not known."""
    return () if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def without_arrays(tensor: Tensor) -> bool:
    """Returns True for a handle, of which no array is returned."""
    return tensor.dtype.name in ("resource", "variant")


def _numpy(tensor: Tensor) -> Any:
    """Returns the NumPy dtype of an input; ``None`` if no random numbers of it can be made."""
    dtype = tensor.dtype
    return dtype.as_numpy_dtype if dtype.is_floating or dtype.is_integer or dtype.is_bool else None


def _conditional(graph: Any) -> set[str]:
    """Returns the nodes that may not run: those between a ``Switch`` and its ``Merge``."""
    found: set[str] = set()
    for node in graph.get_operations():
        read = (*(tensor.op for tensor in node.inputs), *node.control_inputs)
        below = any(one.name in found for one in read)
        if node.type in SWITCHES or (below and node.type not in MERGES):
            found.add(node.name)
    return found


def load(source: GraphFile) -> Loaded:
    """Loads a graph or SavedModel in TensorFlow.

    Raises:
        MissingExtraError: TensorFlow is not installed.
        GraphDefError: TensorFlow refuses it, it has no signature, or variables without values.
    """
    tf = library("tensorflow", "running a TensorFlow graph", "tensorflow")
    with explained(source, "load"), quiet(tf.get_logger()):
        if source.kind == "SavedModel":
            return _saved_model(tf, source)
        return _graph(tf, source.path, source.graphs()[0])


def _saved_model(tf: Any, source: GraphFile) -> Loaded:
    """Returns a SavedModel's serving signature, or its first, with variables as constants."""
    freeze = importlib.import_module(_FREEZING).convert_variables_to_constants_from_session_graph
    tags = list(source.meta_graphs()[0].meta_info_def.tags)
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        meta_graph = tf.compat.v1.saved_model.load(session, tags, str(source.file.parent))
        signature = _signature(source, meta_graph.signature_def)
        inputs, outputs = (
            {name: info.name for name, info in sorted(infos.items())}
            for infos in (signature.inputs, signature.outputs)
        )
        nodes = sorted({name.partition(":")[0] for name in outputs.values()})
        frozen = freeze(session, session.graph.as_graph_def(), nodes)
    return _loaded(tf, _imported(tf, frozen), inputs, outputs)


def _signature(source: GraphFile, signatures: Mapping[str, Any]) -> Any:
    """Returns the serving signature, or the first by name."""
    names = sorted(name for name in signatures if not name.startswith("__"))
    if not names:
        raise GraphDefError(f"{source.path}: it has no signature, so it has no inputs and results.")
    return signatures[_SIGNATURE if _SIGNATURE in names else names[0]]


def _graph(tf: Any, path: Path, graph_def: GraphDef) -> Loaded:
    """Returns a graph from its placeholders to the nodes that nothing reads."""
    graph = _imported(tf, tf.compat.v1.GraphDef.FromString(graph_def.SerializeToString()))
    for node in graph.get_operations():
        fed = node.type == "Placeholder" and without_arrays(node.outputs[0])
        if node.type in VARIABLES or fed:
            raise GraphDefError(
                f"{path}: the node {node.name!r} is a variable, and the file of a graph has no "
                "values of variables: compare SavedModel folders, or freeze the graph."
            )
    nodes = [node.name for node in graph.get_operations() if node.type == "Placeholder"]
    inputs = {name: f"{name}:0" for name in nodes}
    return _loaded(tf, graph, inputs, {tensor.name: tensor.name for tensor in _unread(graph)})


def _loaded(tf: Any, graph: Any, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Loaded:
    """Replaces calls of functions by their nodes; takes the names of tensors by name."""
    if graph.as_graph_def().library.function:
        graph = _imported(tf, _inlined(tf, graph, list(outputs.values())))
    found = (
        {name: graph.get_tensor_by_name(tensor) for name, tensor in names.items()}
        for names in (inputs, outputs)
    )
    return Loaded(graph, *found)


def _unread(graph: Any) -> list[Tensor]:
    """Returns the tensors of the nodes that nothing reads and that run in any case."""
    conditional = _conditional(graph)
    return [
        tensor
        for node in graph.get_operations()
        if node.type != "Placeholder" and node.name not in conditional
        if not any(t.consumers() for t in node.outputs)
        for tensor in node.outputs
        if graph.is_fetchable(tensor) and not without_arrays(tensor)
    ]


def _imported(tf: Any, graph_def: Any) -> Any:
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    return graph


def _inlined(tf: Any, graph: Any, results: Sequence[str]) -> Any:
    """Returns the GraphDef of a graph whose calls of functions are replaced by their nodes."""
    with graph.as_default():
        meta_graph = tf.compat.v1.train.export_meta_graph(graph=graph)
    meta_graph.collection_def["train_op"].node_list.value.extend(results)
    config = tf.compat.v1.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1
    options.optimizers.append("function")
    options.function_optimization = options.AGGRESSIVE
    return importlib.import_module(_GRAPPLER).OptimizeGraph(config, meta_graph)


def run(loaded: Loaded, tensors: Sequence[Tensor], feed: Mapping[str, Any]) -> list[np.ndarray]:
    """Runs a graph without Grappler.

    Raises:
        tensorflow.errors.OpError: TensorFlow cannot run it.
    """
    tf = library("tensorflow", "running a TensorFlow graph", "tensorflow")
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    given = {loaded.inputs[name]: array for name, array in feed.items()}
    with tf.compat.v1.Session(graph=loaded.graph, config=config) as session:
        return session.run(list(tensors), given)


@contextlib.contextmanager
def explained(source: GraphFile, action: str) -> Iterator[None]:
    """Yields a context that turns TensorFlow's errors into one line.

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
        raise GraphDefError(
            f"TensorFlow cannot {action} {source.path}: {_reason(error)}"
        ) from error


def _reason(error: Exception) -> str:
    """Returns an error of TensorFlow in one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    missing = _NO_KERNEL.search(text)
    if missing:
        return (
            f"this machine has no kernel of {missing[1]} for a dtype of the graph. Compare where "
            "the graph is to run; a CPU has no half kernel for some operations."
        )
    return textwrap.shorten(text, _LONGEST, placeholder=" …")
