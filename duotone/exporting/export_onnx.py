"""``duotone.export(..., format="onnx")``: a function as an ONNX model in mixed precision.

::

    float32 function     as it is written, its weights constants of it
    jax2onnx             a float32 model
    duotone.onnx         the model painted, with the policy's edits in the names of ONNX
    ONNX Runtime         the model beside the function in mixed precision

The painted program itself is not handed to jax2onnx: that knows no dot whose result is wider than
its operands, nor what a rewritten loop is made of. ``benchmarks/onnx_agreement.py`` measures how
far the two paintings agree.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from duotone._files import folder_in_one_step
from duotone._version import __version__
from duotone.errors import ArgumentError, DuotoneError, MissingExtraError, OnnxError
from duotone.exporting.compare_exported import worst_difference
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
from duotone.exporting.exported import DESCRIPTION, FORMAT, MODEL, RECORD, ExportedOnnx
from duotone.exporting.refusals import check_results, first_line, told_in_one_line
from duotone.graph.graph import PRECISION
from duotone.policy.arguments import half_named
from duotone.policy.policy import Policy
from duotone.precision.record import Record
from duotone.precision.rules import Rule
from duotone.transforms import autocast as api

logger = logging.getLogger("duotone")
_LARGEST = 2**31 - 2**20
"""Bytes of a model: a message of protobuf ends at 2 GiB."""


def export_onnx(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    folder: Path,
    batch_argnums: int | Sequence[int],
) -> ExportedOnnx:
    """Writes a function that :func:`duotone.autocast` returned as an ONNX model.

    Args:
        fn: the function.
        args: its arguments, as :func:`duotone.export` takes them.
        kwargs: likewise.
        folder: the new folder.
        batch_argnums: positions of arguments with a batch.

    Raises:
        ArgumentError: what it keeps full or half cannot be said of the model, or jax2onnx cannot
            export it.
        MissingExtraError: jax2onnx or onnx is not installed.
        RewriteError: the model does not compute what ``fn`` does.
    """
    to_onnx = _jax2onnx()
    settings = api.settings_of(fn)
    assert settings is not None, "autocast returned it"
    found = None if settings.off else half_named("export", settings.dtype or "float16")
    half = None if found is None else found.name
    written = _in_float32(settings)
    fn = api.autocast(written, dtype=half or "float32", policy=settings.policy)
    with told_in_one_line(settings.name):
        seen = api.explain(fn, *args, **kwargs)
    _check_pins(settings.name, seen)
    call, plain = (divided(settings.name, f, args, kwargs) for f in (fn, written))
    types = types_of(call, positions_of(batch_argnums, args))
    model = _converted(plain, types, parameters_of(fn, call), to_onnx)
    if half is None:
        record: Record = seen
    else:
        done = _painter().rewrite(model, dtype=half, policy=_without_pins(settings.policy))
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
    """The converter.

    Raises:
        MissingExtraError: it is not installed, or what it needs.
    """
    try:
        return importlib.import_module("jax2onnx").to_onnx
    except ImportError as error:
        raise MissingExtraError('duotone.export(format="onnx")', "jax2onnx", "jax2onnx") from error


def _painter() -> Any:
    return importlib.import_module("duotone.onnx")


def _versions() -> dict[str, str]:
    """The versions of what makes the file, of those that say one."""
    found = {}
    for name in ("jax2onnx", "onnx"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _in_float32(settings: Any) -> Callable[..., Any]:
    """The function as it is written, without its weights among the arguments."""
    if settings.weights is None:
        return settings.function
    return functools.partial(settings.function, settings.weights.full())


# --------------------------------------------------------------- policy


def _without_pins(policy: Policy | None) -> Policy | None:
    """A policy without patterns, which name scopes of the function; none of them decided anything.

    List edits stay as they are: :mod:`duotone.onnx` knows JAX's primitives by their names.
    """
    return None if policy is None else policy.replace(keep_full=(), keep_half=())


def _check_pins(name: str, seen: Record) -> None:
    """Raises where the user decided on operations in a way that an ONNX model does not show.

    Raises:
        ArgumentError: by a scope, a region or a precision.
    """
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
    """The float32 model.

    Raises:
        ArgumentError: jax2onnx cannot convert the function.
    """
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
        with _quiet():
            return to_onnx(
                function,
                [leaves[position] for position in open_leaves],
                model_name=call.name,
                input_names=input_names(parameters, args, kwargs, is_array),
                output_names=leaf_names(results, "result"),
            )
    except DuotoneError:
        raise
    except Exception as error:  # jax2onnx's own, of many kinds
        raise ArgumentError(
            f"export: jax2onnx cannot convert {call.name}: {first_line(error)} What "
            'it knows is listed in its documentation; format="jax" takes any function.'
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps a converter's notes from the log: they are about its own values."""
    logger = logging.getLogger("onnx_ir")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _written(
    folder: Path, call: Call, model: Any, record: Record, description: dict[str, Any]
) -> ExportedOnnx:
    """The folder, with a model that says where it comes from.

    Raises:
        ArgumentError: the model is too large for one file.
        RewriteError: it does not compute what the function does.
    """
    about = {"function": call.name, "policy": description["policy"], **description["versions"]}
    for key, value in about.items():
        model.metadata_props.add(key=f"duotone.{key}", value=value)
    if model.ByteSize() > _LARGEST:
        raise ArgumentError(
            f"export: {call.name} has {model.ByteSize():,} bytes with its weights, and an ONNX "
            f"file of one piece {_LARGEST:,}. Leave the weights an argument: duotone.autocast "
            "without weights=."
        )
    files = {MODEL: model.SerializeToString(), RECORD: record.to_json().encode()}
    description["files"] = {n: hashlib.sha256(data).hexdigest() for n, data in files.items()}
    with folder_in_one_step(folder) as temporary:
        for name, data in files.items():
            (temporary / name).write_bytes(data)
        description["difference"] = _difference(call, ExportedOnnx(temporary, description))
        (temporary / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
    return ExportedOnnx(folder, description)


def _difference(call: Call, made: ExportedOnnx) -> float | None:
    """The largest difference from the function; None with shapes, or where nothing can run it.

    Raises:
        RewriteError: it is no matter of rounding.
    """
    given = jax.tree.leaves((call.args, call.kwargs))
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in given):
        return None
    try:
        found = made.call(*call.args, **call.kwargs)
    except (MissingExtraError, OnnxError) as error:
        logger.warning("export: the model was not compared with %s: %s", call.name, error)
        return None
    expected = jax.tree.leaves(jax.jit(call.function)(*call.args, **call.kwargs))
    return worst_difference(call.name, list(found.values()), expected)
