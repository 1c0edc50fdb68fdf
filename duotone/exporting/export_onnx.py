"""Writes a function as an ONNX model in mixed precision.

::

    float32 function     take the function as written, with its weights as constants
    jax2onnx             convert it to a float32 model
    duotone.onnx         paint the model, with the policy's edits in the names of ONNX
    ONNX Runtime         compare its results with the function in mixed precision

jax2onnx cannot convert the painted program: it knows no dot with a result wider than its operands,
and not the operations of a rewritten loop. ``benchmarks/onnx_agreement.py`` measures how far the
two paintings agree.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from duotone._version import __version__
from duotone.errors import ArgumentError, DuotoneError, MissingExtraError, OnnxError
from duotone.exporting.export_arguments import (
    Call,
    Types,
    divided,
    input_names,
    is_array,
    leaf_names,
    parameters_of,
    positions_of,
    types_of,
)
from duotone.exporting.export_folder import difference_from, write_export
from duotone.exporting.exported import FORMAT, MODEL, RECORD, ExportedOnnx
from duotone.exporting.refusals import check_results, check_size, errors_in_one_line, first_line
from duotone.graph.graph import PRECISION
from duotone.measuring.libraries import quiet
from duotone.policy.arguments import half_named
from duotone.policy.policy import Policy
from duotone.precision.record import Record
from duotone.precision.rules import Rule
from duotone.transforms import autocast as api

logger = logging.getLogger("duotone")


def export_onnx(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    folder: Path,
    batch_argnums: int | Sequence[int],
) -> ExportedOnnx:
    """Writes a function that :func:`duotone.autocast` returned as an ONNX model.

    Raises:
        ArgumentError: the model cannot express a pin of the policy, or jax2onnx cannot export the
            function.
        MissingExtraError: jax2onnx or onnx is not installed.
        RewriteError: the model's results differ from those of ``fn``.
    """
    to_onnx = _jax2onnx()
    settings = api.settings_of(fn)
    assert settings is not None, "autocast returned it"
    found = None if settings.off else half_named("export", settings.dtype or "float16")
    half = None if found is None else found.name
    written = settings.function  # in float32, with its weights bound
    if settings.weights is not None:
        written = functools.partial(written, settings.weights.full())
    fn = api.autocast(written, dtype=half or "float32", policy=settings.policy)
    with errors_in_one_line(settings.name):
        seen = api.explain(fn, *args, **kwargs)
    _check_pins(settings.name, seen)
    call, plain = (divided(settings.name, f, args, kwargs) for f in (fn, written))
    types = types_of(call, positions_of(batch_argnums, args))
    model = _converted(plain, types, parameters_of(fn, call), to_onnx)
    if half is None:
        record: Record = seen
    else:
        # No pattern of the policy matched, and a model has no name scopes. List edits stay, since
        # duotone.onnx knows JAX's primitives by name.
        edits = settings.policy and settings.policy.replace(keep_full=(), keep_half=())
        done = importlib.import_module("duotone.onnx").rewrite(model, dtype=half, policy=edits)
        model, record = done.model, done.record
    description = {
        "format": FORMAT,
        "kind": "onnx",
        "function": call.name,
        "half_dtype": half if half and record.summary.operations_half else None,
        "policy": (settings.policy or Policy()).merged_with_environment().describe(),
        "arguments": [value.name for value in model.graph.input],
        "results": [value.name for value in model.graph.output],
        "fixed": {name: repr(value) for name, value in call.fixed.items()},
        "difference": None,
        "versions": {"duotone": __version__, "jax": jax.__version__, **_versions()},
    }
    return _written(folder, call, model, record, description)


def _jax2onnx() -> Callable[..., Any]:
    """Imports the converter."""
    try:
        return importlib.import_module("jax2onnx").to_onnx
    except ImportError as error:
        raise MissingExtraError('duotone.export(format="onnx")', "jax2onnx", "jax2onnx") from error


def _versions() -> dict[str, str]:
    """Returns the known versions of the converters."""
    found = {}
    for name in ("jax2onnx", "onnx"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


# --------------------------------------------------------------- policy


def _check_pins(name: str, seen: Record) -> None:
    """Refuses settings of the user that an ONNX model cannot express."""
    for one in seen.operations:
        if one.rule in (Rule.PINNED, Rule.UPDATE) or one.fixed.startswith(PRECISION):
            raise ArgumentError(
                f"export: {one.operation} of {name} ({one.source}) is kept {one.paint} by a scope, "
                "a region or a precision of yours, and an ONNX model has none of these. Export the "
                'function with dtype="float32" and rewrite the file: duotone rewrite model.onnx '
                "--keep-full NAME."
            )


# ---------------------------------------------------------------- model


def _converted(call: Call, types: Types, parameters: list[str], to_onnx: Callable[..., Any]) -> Any:
    """Converts a function to a float32 model."""
    args, kwargs = types
    leaves, tree = jax.tree.flatten((args, kwargs))
    open_leaves = [position for position, leaf in enumerate(leaves) if is_array(leaf)]

    def function(*arrays: Any) -> list[Any]:
        given = list(leaves)
        for position, array in zip(open_leaves, arrays, strict=True):
            given[position] = array
        positional, named = jax.tree.unflatten(tree, given)
        return jax.tree.leaves(call.function(*positional, **named))

    try:
        results = jax.eval_shape(call.function, *args, **kwargs)
        check_results(call.name, jax.tree.leaves(results))
        with quiet(logging.getLogger("onnx_ir")):
            return to_onnx(
                function,
                [leaves[position] for position in open_leaves],
                model_name=call.name,
                input_names=input_names(parameters, args, kwargs, is_array),
                output_names=leaf_names(results, "result"),
            )
    except DuotoneError:
        raise
    except Exception as error:  # jax2onnx raises errors of many types
        raise ArgumentError(
            f"export: jax2onnx cannot convert {call.name}: {first_line(error)} Its documentation "
            'lists the operations that it knows; format="jax" takes any function.'
        ) from error


def _written(
    folder: Path, call: Call, model: Any, record: Record, description: dict[str, Any]
) -> ExportedOnnx:
    """Writes the folder, with versions and policy in the metadata of the model."""
    about = {"function": call.name, "policy": description["policy"], **description["versions"]}
    for key, value in about.items():
        model.metadata_props.add(key=f"duotone.{key}", value=value)
    check_size(call.name, model.ByteSize())
    files = {MODEL: model.SerializeToString(), RECORD: record.to_json().encode()}
    compare = functools.partial(_difference, call)
    return write_export(ExportedOnnx, folder, description, files, compare)


def _difference(call: Call, made: ExportedOnnx) -> float | None:
    """Returns the largest difference from the function; ``None`` if the model cannot run here."""
    try:
        return difference_from(call, lambda *args, **kw: list(made.call(*args, **kw).values()))
    except (MissingExtraError, OnnxError) as error:
        logger.warning("export: the model was not compared with %s: %s", call.name, error)
        return None
