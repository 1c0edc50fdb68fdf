"""Check the range: the operations of a rewritten model that leave float16's, for inputs by size.

::

    inputs           random ones in the model's shapes; sizes that it runs with for open sides
    for each scale:  the float32 model runs on inputs of this size
                     a value that is stored or read in half, and too large for it: its operation

A painting is made without data, so raw pixels or 16-bit samples may overflow where the rules expect
numbers of size 1. The check changes nothing; ``rewrite(calibration=...)`` does.
"""

from __future__ import annotations

import dataclasses
import textwrap
import time
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from duotone.errors import ArgumentError, ArgumentTypeError, MissingExtraError, plural, shown
from duotone.graph.graph import HALF_TYPES
from duotone.onnx import files, running
from duotone.onnx.api import Rewritten
from duotone.onnx.calibrate import measured_runs
from duotone.onnx.pipeline import inlined
from duotone.onnx.protos import FLOAT, ModelProto
from duotone.onnx.weights import as_tensor, magnitude
from duotone.precision.ranges.find import Measured
from duotone.precision.record import Record

SCALES = (1, 255, 32767)
"""The largest size of an input in each run: normalized numbers, pixels, 16-bit samples."""
LARGEST_MODEL = 256 * 2**20
"""The bytes of all tensors of the largest model that is run."""
MOST_FLOPS = 2e10
"""The floating point operations of the largest model that is run."""
_REMEDY = "--calibration data.npz keeps float32 what your data needs"
_LARGEST = HALF_TYPES["float16"].largest
_SHOWN = 3
_LONGEST = 200
_SAMPLE_BYTES = 2


@dataclasses.dataclass(frozen=True, slots=True)
class RangeCheck:
    """The result of :func:`check_range`.

    Attributes:
        outside: for each scale of the inputs, the operations with a value that is stored or read in
            half and does not fit it, in the order of the model: ``"Conv stem/conv"``.
        seconds: the time of the check.
        declined: why nothing was measured; empty if it was.
    """

    outside: Mapping[int, tuple[str, ...]]
    seconds: float
    declined: str = ""

    def __str__(self) -> str:
        """Returns a line: the operations at each scale that stay in range at a smaller one."""
        if self.declined:
            return f"range check: not done, {self.declined}"
        runs = f"({plural(len(self.outside), 'run')}, {self.seconds:.1f} s)"
        known: set[str] = set()
        found = []
        for scale, names in self.outside.items():
            new = [name for name in names if name not in known]
            known.update(new)
            found += [f"with inputs up to {scale:,}, {_listed(new)}"] if new else []
        if not found:
            sizes = ", ".join(f"{scale:,}" for scale in self.outside)
            return f"range check: inputs up to {sizes} stay in the range of float16 {runs}"
        return f"range check: float16 overflows {'; '.join(found)}. {_REMEDY} {runs}"


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"in {plural(len(names), 'operation')} ({', '.join(names[:_SHOWN])}{more})"


def check_range(model: Any, done: Rewritten) -> RangeCheck:
    """Runs a float32 model on random inputs of several sizes, and finds what float16 cannot hold.

    The largest input elements are 1 (normalized numbers), 255 (pixels) and 32767 (16-bit samples).
    It runs no model that has more than 256 MiB of tensors or takes more than 20 GFLOP.

    Args:
        model: the path of the original model, or an ``onnx.ModelProto``.
        done: the result of its rewrite.

    Returns:
        The operations at each size, or why the model was not run.

    Raises:
        ArgumentTypeError: ``done`` is not the result of a rewrite.
        OnnxError: the model is damaged.

    Example:
        >>> from onnx import parser
        >>> import duotone.onnx
        >>> model = parser.parse_model('''
        ... <ir_version: 8, opset_import: ["" : 17]>
        ... f (float[1, 800] x, float[800, 8] w) => (float[1, 8] y) { y = MatMul(x, w) }
        ... ''')
        >>> done = duotone.onnx.rewrite(model)
        >>> duotone.onnx.check_range(model, done).outside[32767]
        ('MatMul y',)
    """
    if not isinstance(done, Rewritten):
        raise ArgumentTypeError(
            f"check_range: done is {shown(done)}; pass what duotone.onnx.rewrite returned"
        )
    start = time.perf_counter()
    declined = _why_not(done)
    if declined:
        return RangeCheck({}, 0.0, declined)
    source = files.read(model)
    try:
        return RangeCheck(_outside(source, done.record), time.perf_counter() - start)
    except MissingExtraError:
        declined = "ONNX Runtime is not installed: python -m pip install 'duotone[onnx]'"
    except ArgumentError as error:
        reason = textwrap.shorten(str(error), _LONGEST, placeholder=" …")
        declined = f"since the model does not run with random inputs: {reason}"
    return RangeCheck({}, 0.0, declined)


def _why_not(done: Rewritten) -> str:
    """Returns why a model is not run; empty if it may be."""
    if done.bytes_before > LARGEST_MODEL:
        return f"since its tensors have more than {LARGEST_MODEL // 2**20} MB"
    if sum(operation.flops for operation in done.record.operations) > MOST_FLOPS:
        return f"since a run takes more than {MOST_FLOPS / 1e9:.0f} GFLOP"
    return ""


def _outside(source: files.Source, record: Record) -> dict[int, tuple[str, ...]]:
    """Returns the operations outside the range, by scale."""
    source = dataclasses.replace(source, model=inlined(source.model))
    makers = _makers_of_halves(source.model, record)
    feed = running.inputs_for(source).feed
    scales = SCALES if any(map(_scales, feed.values())) else SCALES[:1]
    runs = measured_runs(source, [_scaled(feed, scale) for scale in scales])
    selected = _large_constants(source)
    return {
        scale: tuple(
            dict.fromkeys(
                maker
                for name, maker in makers.items()
                if name in seen and _overflows(seen[name], selected)
            )
        )
        for scale, seen in zip(scales, runs, strict=True)
    }


def _overflows(seen: Measured, selected: Collection[float]) -> bool:
    """Checks if an extreme exceeds half; a large constant that was selected is saturated."""
    return any(size > _LARGEST and size not in selected for size in (-seen.low, seen.high))


def _large_constants(source: files.Source) -> set[float]:
    """Returns the sizes of constants that are too large for half: masks."""
    tensors = [
        *files.tensors(source.model.graph),
        *filter(None, map(as_tensor, source.model.graph.node)),
    ]
    sizes = (magnitude(t, source.folder).largest for t in tensors if t.data_type == FLOAT)
    return {size for size in sizes if size > _LARGEST}


def _makers_of_halves(model: ModelProto, record: Record) -> dict[str, str]:
    """Returns values that operations store or read in half, and the operation that makes each."""
    half = {operation.source for operation in record.operations if operation.paint == "half"}
    makers: dict[str, str] = {}
    touched: set[str] = set()
    for node in model.graph.node:
        name = node.name or next(filter(None, node.output), "")
        makers |= {output: f"{node.op_type} {name}" for output in node.output if output}
        if name in half:
            touched.update(node.input, node.output)
    return {value: maker for value, maker in makers.items() if value in touched}


def _scales(array: np.ndarray) -> bool:
    """Returns True for numbers that may be pixels or samples, unlike wide integers."""
    kind, width = array.dtype.kind, array.dtype.itemsize
    return array.size > 0 and (kind == "f" or (kind in "iu" and width <= _SAMPLE_BYTES))


def _scaled(feed: Mapping[str, np.ndarray], scale: int) -> dict[str, np.ndarray]:
    return {
        name: _of_size(array, scale) if _scales(array) else array for name, array in feed.items()
    }


def _of_size(array: np.ndarray, scale: int) -> np.ndarray:
    """Returns an array whose largest element is ``scale``, or the largest that its dtype holds."""
    largest = scale if array.dtype.kind == "f" else min(scale, np.iinfo(array.dtype).max)
    peak = float(np.max(np.abs(array.astype(np.float32)))) or 1.0
    return (array.astype(np.float32) * (largest / peak)).astype(array.dtype)
