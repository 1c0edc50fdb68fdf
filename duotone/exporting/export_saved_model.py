"""Writes a painted program as a TensorFlow SavedModel.

::

    jax.export           lower the program, as format="jax" does: painted, with its weights
    jax2tf               wrap it in one TensorFlow operation (XlaCallModule)
    tf.saved_model.save  write a folder with the signature "serving_default"
    TensorFlow           load the SavedModel and compare its results with the function's
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export

from duotone.errors import ArgumentError, WriteError
from duotone.exporting.export_arguments import Call, input_names, leaf_names, parameters_of
from duotone.exporting.export_folder import write_export
from duotone.exporting.exported import RECORD, SIGNATURE, ExportedSavedModel, tensorflow
from duotone.exporting.refusals import first_line
from duotone.transforms import autocast as api

logger = logging.getLogger("duotone")
ABOUT = "assets.extra/duotone.json"
"""The file for versions and policy, in the folder that TensorFlow reserves for other programs."""


def write_saved_model(
    folder: Path,
    fn: Callable[..., Any],
    call: Call,
    program: jax.export.Exported,
    record: bytes,
    description: dict[str, Any],
    difference: Callable[[Callable[..., Any]], float | None],
) -> ExportedSavedModel:
    """Writes a program as a SavedModel.

    Raises:
        ArgumentError: TensorFlow has no type for an argument or result, or does not take the
            program.
        RewriteError: the SavedModel's results differ from those of the function.
        WriteError: the file system refuses it.
    """
    tf = tensorflow()
    inputs, results = _signature_names(fn, call, program)
    module = _module(tf, call.name, program, inputs, results)
    description |= {"kind": "saved_model", "arguments": inputs, "results": results}
    description["versions"]["tensorflow"] = tf.__version__
    about = {key: description[key] for key in ("function", "half_dtype", "policy", "versions")}
    files = {RECORD: record, ABOUT: (json.dumps(about, indent=1) + "\n").encode()}
    return write_export(
        ExportedSavedModel,
        folder,
        description,
        files,
        lambda made: _compared(tf, call.name, made, program, difference),
        lambda temporary: _save(tf, module, temporary, folder),
    )


def _signature_names(
    fn: Callable[..., Any], call: Call, program: jax.export.Exported
) -> tuple[list[str], list[str]]:
    """Returns unique names of inputs and results of letters, digits and underscores."""
    settings = api.settings_of(fn)
    if settings is not None and settings.weights is not None:
        fn = functools.partial(settings.function, None)  # the weights are in the program
    args, kwargs = jax.tree.unflatten(program.in_tree, program.in_avals)
    given = input_names(parameters_of(fn, call), args, kwargs)
    results = jax.tree.unflatten(program.out_tree, program.out_avals)
    return _plain(given), _plain(leaf_names(results, "result"), "result_")


def _plain(names: list[str], before: str = "argument_") -> list[str]:
    """Makes names that TensorFlow does not change.

    Example:
        >>> _plain(["params.hidden", "params_hidden", "0"])
        ['params_hidden', 'params_hidden_1', 'argument_0']
    """
    found: dict[str, None] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
        plain = plain if plain[:1].isalpha() else f"{before}{plain}"
        endings = ("", *(f"_{number}" for number in range(1, len(names) + 1)))
        found[next(plain + end for end in endings if plain + end not in found)] = None
    return list(found)


def _module(
    tf: Any, name: str, program: jax.export.Exported, inputs: list[str], results: list[str]
) -> Any:
    """Makes a TensorFlow module whose method ``call`` is the program."""
    jax2tf = importlib.import_module("jax.experimental.jax2tf")

    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = jax.tree.unflatten(program.in_tree, leaves)
        return jax.tree.leaves(program.call(*args, **kwargs))

    types = [_tensor_type(tf, name, *pair) for pair in zip(inputs, program.in_avals, strict=True)]
    for pair in zip(results, program.out_avals, strict=True):
        _tensor_type(tf, name, *pair)
    converted = jax2tf.convert(
        flat,
        polymorphic_shapes=[str(aval.shape) for aval in program.in_avals],
        native_serialization_platforms=program.platforms,
        with_gradient=False,
    )

    def named(*tensors: Any) -> dict[str, Any]:
        return dict(zip(results, converted(*tensors), strict=True))

    module = tf.Module()
    module.call = tf.function(named, autograph=False, input_signature=types)
    try:
        module.signature = module.call.get_concrete_function()
    except Exception as error:  # JAX, jax2tf and TensorFlow raise errors of many types
        raise ArgumentError(
            f"export: TensorFlow {tf.__version__} does not take {name}: {first_line(error)} Try "
            'a newer TensorFlow or fixed sizes; format="jax" needs no TensorFlow.'
        ) from error
    return module


def _tensor_type(tf: Any, function: str, name: str, aval: Any) -> Any:
    """Returns the TensorFlow type of one input or result."""
    try:
        dtype = tf.dtypes.as_dtype(aval.dtype)
    except TypeError as error:
        raise ArgumentError(
            f"export: {name} of {function} is {aval.dtype}, for which TensorFlow has no type. Let "
            "the function take and return others, such as jax.random.key_data for random keys."
        ) from error
    shape = [side if isinstance(side, int) else None for side in aval.shape]
    return tf.TensorSpec(shape, dtype, name=name)


def _save(tf: Any, module: Any, temporary: Path, folder: Path) -> None:
    """Writes the SavedModel with TensorFlow."""
    try:
        tf.saved_model.save(module, str(temporary), signatures={SIGNATURE: module.signature})
    except tf.errors.OpError as error:
        line = str(error.message).splitlines()[0]
        raise WriteError(f"cannot write {folder}: {line}. Name another folder.") from error


def _compared(
    tf: Any,
    name: str,
    made: ExportedSavedModel,
    program: jax.export.Exported,
    difference: Callable[[Callable[..., Any]], float | None],
) -> float | None:
    """Compares on the CPU, since JAX may have reserved the memory of other devices."""
    if "cpu" not in program.platforms:
        logger.warning("export: %s was not compared: it is not for the CPU", name)
        return None
    try:
        with tf.device("/CPU:0"):
            return difference(lambda *args, **kwargs: list(made.call(*args, **kwargs).values()))
    except tf.errors.OpError as error:
        raise ArgumentError(
            f"export: TensorFlow {tf.__version__} cannot run {name}: {_reason(error)} "
            'Nothing was written; format="jax" needs no TensorFlow.'
        ) from error


def _reason(error: Any) -> str:
    """Extracts the reason from TensorFlow's message, and adds the remedy if it is known."""
    text = str(error.message)
    unknown = re.search(
        r"(unregistered operation '[\w.]+').*?using StableHLO_v([\d.]+)", text, re.S
    )
    if unknown:
        return (
            f"{unknown[1]}: it reads StableHLO {unknown[2]}, and JAX {jax.__version__} writes a "
            "newer one. Use a newer TensorFlow, an older JAX, or fixed sizes."
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    headings = ("Graph execution error", "Detected at node", "<stack traces")
    found = next((line for line in lines if not line.startswith(headings)), type(error).__name__)
    return found if found.endswith(".") else f"{found}."
