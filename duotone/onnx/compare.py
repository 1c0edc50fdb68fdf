"""Compare: two models on the same inputs, by result and by inner value.

Both run in ONNX Runtime on the CPU with its optimisations off, so that both have every value of the
same name. That provider computes most operations of half operands in float32 and rounds the results
to half.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from duotone.errors import ArgumentError, plural
from duotone.onnx import files, running

PARTED = 16.0
"""Two models differ at a value if its largest difference is more than so many steps of float16."""


@dataclasses.dataclass(frozen=True)
class ValueDifference:
    """One value in two models.

    Attributes:
        name: the name of the value.
        operation: the operation that makes it in the second model; ``"input"`` for none.
        error: the largest difference, relative to the largest size of the value.
        ulp: the same in steps of float16 at that size.
        saturated: elements that are finite in the first model and not, or the largest number of
            float16, in the second.
    """

    name: str
    operation: str
    error: float
    ulp: float
    saturated: int


@dataclasses.dataclass(frozen=True)
class Difference:
    """The result of :func:`compare`.

    Attributes:
        outputs: the difference of each result.
        nodes: the difference of each inner value of both models, in the order of the nodes.
        parts: the first value inside that differs by more than :data:`PARTED` steps of float16, or
            is saturated; ``None`` if none does.
    """

    outputs: tuple[ValueDifference, ...]
    nodes: tuple[ValueDifference, ...]

    @property
    def parts(self) -> ValueDifference | None:
        """The first value that differs by more than :data:`PARTED` steps or is saturated."""
        found = (v for v in (*self.nodes, *self.outputs) if v.ulp > PARTED or v.saturated)
        return next(found, None)

    @property
    def error(self) -> float:
        """The largest error of a result."""
        return max((value.error for value in self.outputs), default=0.0)

    def to_json(self) -> str:
        """Returns all of it as JSON."""
        return json.dumps(dataclasses.asdict(self))

    def __str__(self) -> str:
        """Returns the results first, then where the two first differ."""
        lines = [f"{'result':<32} {'error':>10} {'ULP':>8} {'saturated':>10}"]
        for value in self.outputs:
            row = f"{value.error:>10.2e} {value.ulp:>8.1f} {value.saturated:>10}"
            lines.append(f"{value.name:<32} {row}")
        lines.append(f"compared inside, values of the same name: {len(self.nodes)}")
        parts = self.parts
        if parts is None:
            lines.append(f"no value differs by more than {PARTED:.0f} steps of float16")
        else:
            lines.append(
                f"they first differ at {parts.name} ({parts.operation}): error {parts.error:.2e}, "
                f"{plural(parts.saturated, 'element')} saturated"
            )
        return "\n".join(lines)


def compare(first: Any, second: Any, data: Any = None, *, seed: int = 0) -> Difference:
    """Runs two models on the same inputs and tells where they first differ.

    Args:
        first: the path of a model, or an ``onnx.ModelProto``: the reference.
        second: the rewritten model.
        data: inputs by name, or an ``.npz`` file of them; ``None`` for random ones in the shapes
            that the first model asks for.
        seed: the seed of the random numbers.

    Returns:
        The differences.

    Raises:
        ArgumentError: the two have different results.
        OnnxError: a model is damaged, or ONNX Runtime cannot run it.
        MissingExtraError: there is no ONNX Runtime.

    Example:
        >>> from onnx import parser
        >>> import duotone.onnx
        >>> model = parser.parse_model('''
        ... <ir_version: 8, opset_import: ["" : 17]>
        ... f (float[2, 3] x, float[3, 4] w) => (float[2, 4] y) { y = MatMul(x, w) }
        ... ''')
        >>> compare(model, duotone.onnx.rewrite(model).model).error < 1e-3
        True
    """
    sources = [files.read(first), files.read(second)]
    if {v.name for v in sources[0].model.graph.output} != {
        v.name for v in sources[1].model.graph.output
    }:
        raise ArgumentError("the two models have different results; they cannot be compared.")
    if data is None:
        with files.naming(sources[0]):
            feed = running.inputs_for(running.session(running.in_memory(sources[0])), seed)
    else:
        feed = running.read_inputs(data)[0]
    outputs = [value.name for value in sources[0].model.graph.output]
    makers = {
        name: node.op_type for node in sources[1].model.graph.node for name in node.output if name
    }
    values: list[dict[str, Any]] = []
    for source in sources:
        with files.naming(source):
            values.append(_values(source, feed, outputs))
    shared = [name for name in values[1] if name in values[0] and name not in outputs]
    return Difference(
        tuple(
            _difference(n, values[0][n], values[1][n], makers) for n in outputs if _both(n, values)
        ),
        tuple(
            _difference(n, values[0][n], values[1][n], makers) for n in shared if _both(n, values)
        ),
    )


def _both(name: str, values: list[dict[str, Any]]) -> bool:
    """Returns True if a value has numbers of one shape in both."""
    arrays: list[Any] = [one.get(name) for one in values]
    if not all(isinstance(array, np.ndarray) and array.dtype.kind in "fiub" for array in arrays):
        return False
    return arrays[0].shape == arrays[1].shape


def _values(source: files.Source, feed: Any, outputs: list[str]) -> dict[str, Any]:
    if source.external:
        opened = running.session(running.in_memory(source))
        names: list[str] = []
    else:
        model, names = running.with_all_values(source.model)
        opened = running.session(model)
    asked = list(dict.fromkeys([*names, *outputs]))
    return dict(zip(asked, running.run(opened, asked, running.fitted(opened, feed)), strict=True))


def _difference(name: str, first: Any, second: Any, makers: dict[str, str]) -> ValueDifference:
    a, b = first.astype(np.float64), second.astype(np.float64)
    finite = np.isfinite(a)
    scale = float(np.max(np.abs(a), initial=0.0, where=finite)) or 1.0
    both = finite & np.isfinite(b)
    most = float(np.max(np.abs(a - b), initial=0.0, where=both))
    edge = np.abs(b) >= 65504.0 if second.dtype == np.float16 else np.zeros(b.shape, bool)
    lost = finite & (~np.isfinite(b) | (edge & (np.abs(a) > 65520.0)))
    if bool(np.any(~finite & np.isfinite(b) & ~np.isnan(a))):
        lost = lost | (~finite & np.isfinite(b) & ~np.isnan(a) & ~edge)
    error = most / scale
    return ValueDifference(
        name, makers.get(name, "input"), error, error * 2.0**10, int(np.count_nonzero(lost))
    )
