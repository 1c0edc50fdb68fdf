"""The public functions: rewrite, explain and view a model."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from duotone._checks import check_switch, path_of
from duotone.errors import ArgumentTypeError, shown
from duotone.graph.collector import collector_paused
from duotone.onnx import files
from duotone.onnx.apply import apply
from duotone.onnx.calibrate import measured
from duotone.onnx.opsets import converted
from duotone.onnx.pipeline import Settings, make_settings, paint, shown_graph
from duotone.onnx.protos import ModelProto
from duotone.onnx.storage import Storage
from duotone.onnx.verify import verify
from duotone.onnx.weights import bytes_in
from duotone.ops.entries import Kind
from duotone.policy.arguments import check_callable
from duotone.policy.policy import Policy
from duotone.precision.record import Record, make_record

logger = logging.getLogger("duotone")
Model = ModelProto
Data = Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | Path
"""Inputs of a model by name, a list of such mappings, or an ``.npz`` file."""


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """The result of :func:`rewrite`.

    Attributes:
        model: the rewritten ``onnx.ModelProto``; external data refers to the data file of ``out``.
        record: every decision and cast.
        out: the written file, or ``None``.
        seconds: the time to rewrite, without reading and writing.
        bytes_before: the size of all tensors of the original model.
        bytes_after: the size of all tensors of the rewritten model.
    """

    model: Any
    record: Record
    out: Path | None
    seconds: float
    bytes_before: int
    bytes_after: int


def rewrite(
    model: Any,
    out: str | Path | None = None,
    *,
    dtype: str = "float16",
    painter: str | None = None,
    keep_io: bool = True,
    keep_full: Sequence[str] = (),
    calibration: Data | None = None,
    provider: str | None = None,
    policy: Policy | None = None,
    fold_inputs: bool = False,
    opset: int | None = None,
    overwrite: bool = False,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Rewritten:
    """Rewrites an ONNX model to mixed precision.

    Args:
        model: the path of a model, or an ``onnx.ModelProto``, which is not changed.
        out: the file to write; ``None`` writes nothing. External data is written to a second file
            in the same folder, whose name is that of ``out`` plus ``.data``.
        dtype: ``"float16"`` or ``"bfloat16"``.
        painter: ``"duotone"``; ``"tensorflow"`` for TensorFlow's four passes; ``"mincut"`` for the
            fewest bytes of casts under the same rules; ``None`` for the policy's painter.
        keep_io: whether float32 inputs and results of the model stay float32; else they are half.
        keep_full: patterns (``fnmatch``) of the names of nodes, operations (``"Softmax"``) or
            results that stay float32.
        calibration: inputs to run the model with, in ONNX Runtime. Values that do not fit half
            there stay float32. It takes a mapping from names to arrays, a list of such, or an
            ``.npz`` file.
        provider: ``"cpu"``, ``"cuda"``, ``"tensorrt"`` or ``"directml"``: operations without a
            half kernel in this provider stay float32.
        policy: list edits by ONNX operation (``Policy(deny_add=["Softmax"])``; with a custom domain
            ``"com.microsoft.FusedMatMul"``), ``keep_full``, ``keep_half``, ``rules_remove``; the
            environment is merged into it.
        fold_inputs: whether initializers that are also inputs become constants, stored half, and
            are removed from the inputs. In a file of IR version 3 all weights are such inputs. If
            False, they keep name and type, and are cast inside.
        opset: the opset to which ONNX's converter converts the model first; ``None`` keeps its own.
            bfloat16 needs 13 for matrix products, and 22 for convolutions.
        overwrite: whether an existing file may be replaced, except the one that is read.
        on_stage: called with the name of each stage: ``"reading"``, ``"measuring"``,
            ``"rewriting"``, ``"writing"``.

    Returns:
        The model and the record.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ArgumentError: an argument has an unknown value, ``out`` is the file that is read or exists,
            or the calibration has no array for an input.
        CalibrationError: the calibration has no finite number for an input.
        PolicyError: the policy has ranges, or another field for JAX programs.
        OnnxError: the model is damaged or inconsistent, or ONNX Runtime cannot run it.
        WriteError: the file system refuses to write.

    Example:
        >>> from onnx import parser
        >>> import duotone.onnx
        >>> model = parser.parse_model('''
        ... <ir_version: 8, opset_import: ["" : 17]>
        ... f (float[2, 8] x, float[8, 4] w) => (float[2, 4] y) { y = MatMul(x, w) }
        ... ''')
        >>> [node.op_type for node in duotone.onnx.rewrite(model).model.graph.node]
        ['Cast', 'Cast', 'MatMul', 'Cast']
    """
    check_callable("duotone.onnx.rewrite", on_stage, "on_stage")
    on_stage("reading")
    source = _in_opset(files.read(model), opset)
    check_switch("duotone.onnx.rewrite", "overwrite", overwrite)
    target = None if out is None else path_of("duotone.onnx.rewrite", "out", out)
    if target is not None:
        files.check_output(source, target, overwrite=overwrite)
    settings = make_settings(
        dtype,
        painter,
        policy,
        keep_full,
        keep_io=keep_io,
        provider=provider,
        fold_inputs=fold_inputs,
    )
    if calibration is not None:
        on_stage("measuring")
        with files.naming(source):
            settings = dataclasses.replace(settings, measured=measured(source, calibration))
    on_stage("rewriting")
    start = time.perf_counter()
    name = files.data_file(target).name if target is not None and source.external else None
    storage = Storage(source.folder, name)
    with files.naming(source), collector_paused():
        made, record = _paint_and_apply(source, settings, storage)
    seconds = time.perf_counter() - start
    if target is not None:
        on_stage("writing")
        files.write(made, target, storage.data)
    sizes = [sum(map(bytes_in, files.tensors(m.graph))) for m in (source.model, made)]
    done = Rewritten(made, record, target, seconds, *sizes)
    if problem := _no_gain(done, provider):
        logger.warning("%s", problem)
    return done


def _no_gain(done: Rewritten, provider: str | None) -> str:
    """Returns why a rewritten model gains nothing, in one line; empty if it gains something."""
    total, more = done.record.summary, done.bytes_after - done.bytes_before
    if more > 0:
        return f"the tensors of the rewritten model have {more:,} bytes more: {_TWICE}"
    if total.allow_half or more < 0:
        return ""
    full = [o for o in done.record.operations if o.list == Kind.ALLOW.value]
    reason = f"{full[0].operation} {full[0].source!r}: {full[0].reason}" if full else _NO_PRODUCT
    remedy = "" if provider is None else f" Without provider={provider!r}, weights become half."
    return (
        f"the rewritten model gains nothing, since no product of it became half. {reason}.{remedy}"
    )


_TWICE = "weights that both precisions read are stored twice."
_NO_PRODUCT = "It has no matrix product or convolution of float32"


def explain(
    model: Any,
    *,
    dtype: str = "float16",
    painter: str | None = None,
    keep_io: bool = True,
    keep_full: Sequence[str] = (),
    calibration: Data | None = None,
    provider: str | None = None,
    policy: Policy | None = None,
    fold_inputs: bool = False,
) -> Record:
    """Paints a model and explains the precision of each node, without writing anything.

    Args:
        model: the path of a model, or an ``onnx.ModelProto``, which is not changed.
        dtype: ``"float16"`` or ``"bfloat16"``.
        painter: ``"duotone"``, ``"tensorflow"``, ``"mincut"``, or ``None`` for the policy's.
        keep_io: whether float32 inputs and results of the model stay float32.
        keep_full: patterns of the nodes, operations or results that stay float32.
        calibration: inputs to measure the model with.
        provider: the provider whose missing half kernels are avoided.
        policy: list edits and rules; the environment is merged into it.
        fold_inputs: whether initializers that are also inputs become constants.

    Returns:
        The same record as for a JAX program; save it with
        :meth:`~duotone.precision.record.Record.to_json`.

    Raises:
        DuotoneError: as :func:`rewrite`.

    Example:
        >>> from onnx import parser
        >>> import duotone.onnx
        >>> model = parser.parse_model('''
        ... <ir_version: 8, opset_import: ["" : 17]>
        ... f (float[2, 8] x, float[8, 4] w) => (float[2, 4] y) { h = MatMul(x, w) y = Exp(h) }
        ... ''')
        >>> [(o.operation, o.paint) for o in duotone.onnx.explain(model).operations]
        [('MatMul', 'half'), ('Exp', 'full')]
    """
    return rewrite(
        model,
        dtype=dtype,
        painter=painter,
        keep_io=keep_io,
        keep_full=keep_full,
        calibration=calibration,
        provider=provider,
        policy=policy,
        fold_inputs=fold_inputs,
    ).record


def _in_opset(source: files.Source, opset: int | None) -> files.Source:
    if opset is None:
        return source
    with files.naming(source):
        return dataclasses.replace(source, model=converted(source.model, opset))


def _paint_and_apply(
    source: files.Source, settings: Settings, storage: Storage
) -> tuple[ModelProto, Record]:
    painted = paint(source.model, source.folder, settings)
    made, plan = apply(painted, storage)
    graph = shown_graph(painted.built)
    record = make_record(graph, painted.classes, painted.painting, plan, painted.half)
    return verify(made), record


def view(record: Record | Any, where: str | None = None, *, most: int = 100) -> Any:
    """Returns a record as text for the terminal: totals and reasons, or single operations.

    Args:
        record: the result of :func:`explain`, or a :class:`Rewritten`.
        where: a pattern of name scopes and operations: ``"*/Conv"``; ``None`` shows totals.
        most: the largest number of operations to show.

    Returns:
        An object that ``rich`` prints and notebooks show.

    Raises:
        ArgumentTypeError: ``record`` is neither of the two.
        ArgumentError: nothing matches ``where``.

    Example:
        >>> from onnx import parser
        >>> import duotone.onnx
        >>> model = parser.parse_model('''
        ... <ir_version: 8, opset_import: ["" : 17]>
        ... f (float[2, 8] x, float[8, 4] w) => (float[2, 4] y) { y = MatMul(x, w) }
        ... ''')
        >>> print(duotone.onnx.view(duotone.onnx.explain(model)))
        float16: 1 of 1 operations in half, 1 of 1 on the allow list...
    """
    from duotone.explaining.operation_rows import Rows
    from duotone.explaining.overview import Overview

    found = record.record if isinstance(record, Rewritten) else record
    if not isinstance(found, Record):
        raise ArgumentTypeError(
            f"duotone.onnx.view: record is {shown(record)}; pass what duotone.onnx.explain or "
            "rewrite returned"
        )
    hint = "duotone.onnx.view(record, '*')"
    return Overview(found, hint=hint) if where is None else Rows(found, where, most=most)
