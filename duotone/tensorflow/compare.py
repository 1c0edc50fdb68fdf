"""Compare: two graphs or SavedModels on the same inputs, per result and per node.

Both run in TensorFlow without Grappler, which would fuse operations: every float value of the two
is returned, so half values are stored in half where TensorFlow has a half kernel for the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duotone.errors import ArgumentError, GraphDefError
from duotone.measuring import inputs
from duotone.measuring.differences import Difference, constant_results, differences
from duotone.measuring.generate import collapsed_sides, generate
from duotone.tensorflow import files, running
from duotone.tensorflow.running import Loaded

_ONLY_RESULTS = "inner values are not compared: "


def compare(
    first: str | Path,
    second: str | Path,
    data: Any = None,
    *,
    seed: int = 0,
    shapes: inputs.Shapes | None = None,
) -> Difference:
    """Runs two graphs or SavedModels in TensorFlow and tells where they first differ.

    Variables become constants, and calls of functions are inlined. A SavedModel runs its signature
    ``serving_default``, or the first by name if it has none of this name. The inputs of a graph are
    its placeholders, and its results are the nodes that nothing reads.

    Args:
        first: the path of a GraphDef or of a SavedModel folder: the reference.
        second: the path of the same model, rewritten.
        data: inputs by name, or an ``.npz`` file of them; ``None`` for random numbers in the
            shapes of the first model. Sides that it leaves open get a size with which it runs.
        seed: the seed of the random numbers.
        shapes: the shapes of some random inputs, by name: ``{"x": (1, 320, 640, 3)}``.

    Returns:
        The differences, as of :func:`duotone.onnx.compare`.

    Raises:
        ArgumentTypeError: a path, the seed or the shapes have the wrong type.
        ArgumentError: the two have different results, or no inputs are found that the first runs
            with; name shapes or pass data.
        GraphDefError: TensorFlow cannot load or run a model.
        MissingExtraError: TensorFlow is not installed.

    Example:
        >>> import tempfile, numpy as np, duotone.tensorflow
        >>> from pathlib import Path
        >>> graph = '''
        ... node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } } }
        ... node { name: "y" op: "MatMul" input: ["x", "x"]
        ...        attr { key: "T" value { type: DT_FLOAT } } }
        ... node { name: "z" op: "Identity" input: "y" attr { key: "T" value { type: DT_FLOAT } } }
        ... '''
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file, half = Path(folder, "graph.pbtxt"), Path(folder, "half.pb")
        ...     _ = file.write_text(graph)
        ...     _ = duotone.tensorflow.rewrite_file(file, half)
        ...     found = duotone.tensorflow.compare(file, half, {"x": np.eye(8, dtype="f4") / 3})
        >>> 0 < found.error < 0.001
        True
    """
    sources = files.read(first), files.read(second)
    one, other = map(running.load, sources)
    if one.outputs.keys() != other.outputs.keys():
        raise ArgumentError("the two models have different results; they cannot be compared.")
    given = inputs.given(data, shapes, lambda: _generated(sources[0], one, seed, shapes))
    notes = list(given.notes)
    pairs = zip(sources, (one, other), strict=True)
    expected, found = (_values(*pair, given.feed, notes) for pair in pairs)
    tensors = {**other.values, **other.outputs}
    notes += constant_results({name: expected[name] for name in one.outputs})
    makers = {name: tensor.op.type for name, tensor in tensors.items()}
    results, nodes = differences(expected, found, one.outputs, makers)
    return Difference(results, nodes, inputs.described(given.feed), tuple(dict.fromkeys(notes)))


def _generated(
    source: files.GraphFile, loaded: Loaded, seed: int, shapes: inputs.Shapes | None
) -> inputs.Generated:
    values = [t for t in loaded.values.values() if not all(running.sides(t)[1:])]

    def collapsed(feed: Mapping[str, Any]) -> int:
        with running.explained(source, "run"):
            arrays = running.run(loaded, [*values, *loaded.outputs.values()], feed)
        pairs = zip(map(running.sides, values), arrays, strict=False)
        return sum(collapsed_sides(sides, array.shape) for sides, array in pairs)

    return generate(loaded.asked, collapsed, shapes=shapes, seed=seed)


def _values(
    source: files.GraphFile, loaded: Loaded, feed: Mapping[str, Any], notes: list[str]
) -> dict[str, Any]:
    """Returns every float value and the results, by name, or only the results."""
    tensors = {**loaded.values, **loaded.outputs}
    feed = inputs.fitted(loaded.asked, feed)
    try:
        with running.explained(source, "run"):
            return dict(zip(tensors, running.run(loaded, [*tensors.values()], feed), strict=True))
    except GraphDefError as error:
        with running.explained(source, "run"):
            results = running.run(loaded, [*loaded.outputs.values()], feed)
        notes.append(f"{_ONLY_RESULTS}{error}")
        return dict(zip(loaded.outputs, results, strict=True))
