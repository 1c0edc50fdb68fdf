"""``duotone.export`` writes a function as a folder of files that JAX runs without duotone.

::

    split the arguments      arguments without arrays become part of the program
    lower                    jax.export, for one or several platforms
    write                    into a temporary folder, which is renamed at the end
    compare                  results of the program, read from its file, with the function's own
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import jax
import jax.export
import numpy as np

from duotone._checks import check_strings, path_of
from duotone._files import check_new_folder
from duotone._version import __version__
from duotone.devices.assumed import assuming
from duotone.devices.options import compiler_options
from duotone.devices.specifications import Target, find_target
from duotone.errors import ArgumentError
from duotone.exporting.export_arguments import Call, divided, is_array, positions_of, types_of
from duotone.exporting.export_folder import difference_from, write_export
from duotone.exporting.export_onnx import export_onnx
from duotone.exporting.export_saved_model import write_saved_model
from duotone.exporting.exported import (
    FORMAT,
    PROGRAM,
    RECORD,
    STABLEHLO,
    Exported,
    ExportedOnnx,
    ExportedSavedModel,
    tensorflow,
)
from duotone.exporting.refusals import check_results, check_size, errors_in_one_line, first_line
from duotone.jaxpr.reading.signature import describe_callable
from duotone.policy.arguments import check_callable
from duotone.policy.policy import Policy
from duotone.transforms import autocast as api

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


@overload
def export(
    fn: Callable[..., Any],
    *args: Any,
    path: str | Path,
    format: Literal["jax"] = ...,
    dtype: Any = ...,
    policy: Policy | None = ...,
    target: str | Target | None = ...,
    platforms: Sequence[str] | None = ...,
    batch_argnums: int | Sequence[int] = ...,
    **kwargs: Any,
) -> Exported: ...


@overload
def export(
    fn: Callable[..., Any],
    *args: Any,
    path: str | Path,
    format: Literal["onnx"],
    dtype: Any = ...,
    policy: Policy | None = ...,
    target: str | Target | None = ...,
    platforms: Sequence[str] | None = ...,
    batch_argnums: int | Sequence[int] = ...,
    **kwargs: Any,
) -> ExportedOnnx: ...


@overload
def export(
    fn: Callable[..., Any],
    *args: Any,
    path: str | Path,
    format: Literal["saved_model"],
    dtype: Any = ...,
    policy: Policy | None = ...,
    target: str | Target | None = ...,
    platforms: Sequence[str] | None = ...,
    batch_argnums: int | Sequence[int] = ...,
    **kwargs: Any,
) -> ExportedSavedModel: ...


def export(
    fn: Callable[..., Any],
    *args: Any,
    path: str | Path,
    format: Literal["jax", "onnx", "saved_model"] = "jax",
    dtype: Any = None,
    policy: Policy | None = None,
    target: str | Target | None = None,
    platforms: Sequence[str] | None = None,
    batch_argnums: int | Sequence[int] = (),
    **kwargs: Any,
) -> Exported | ExportedOnnx | ExportedSavedModel:
    """Writes a painted function as files, for servers that have neither duotone nor its source.

    The folder contains ``program.jax`` (for ``jax.export.deserialize``), ``program.stablehlo`` (the
    same program as portable StableHLO bytecode, for other runtimes of XLA), ``explain.json`` (for
    ``duotone view``) and ``export.json`` (types, versions, policy, checksums). Weights given to
    ``autocast(fn, weights=...)`` are part of the program, in half if it reads them in half only.

    If the arguments are arrays and the program runs on the default device, ``export`` reads the
    program back from its file and compares its results with those of ``fn``.

    Args:
        fn: the result of :func:`autocast`; any other function is passed to it first.
        *args: its arguments: arrays or ``jax.ShapeDtypeStruct``, also with
            ``jax.export.symbolic_shape``. An argument without arrays (``False``, ``"relu"``)
            becomes part of the program, which is called without it.
        path: the folder; it must not exist or must be empty.
        format: ``"jax"``, ``"onnx"`` or ``"saved_model"``. ``"onnx"`` needs jax2onnx: it converts
            the function in float32 to ``model.onnx``, rewrites that with :mod:`duotone.onnx`, and
            compares it in ONNX Runtime. ``"saved_model"`` needs TensorFlow: it writes the painted
            program as a SavedModel and compares it in TensorFlow.
        dtype: as for :func:`autocast`; ``"float32"`` exports the function as written.
        policy: as for :func:`autocast`.
        target: the device to paint for, present or not: a name as for :func:`compile_for`, or a
            :class:`Target`; by default JAX's default device.
        platforms: some of ``"cpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"``; by default those of the
            target and of the default device, and for a SavedModel also the CPU.
        batch_argnums: positions of arguments whose arrays have the batch as axis 0. The program
            takes any batch size.
        **kwargs: its keyword arguments, as ``*args``. For a function that has one named ``target``
            itself, pass ``functools.partial(fn, target=...)``.

    Returns:
        The exported program; ``.call`` runs it. An :class:`ExportedOnnx` or an
        :class:`ExportedSavedModel` for these formats.

    Raises:
        ArgumentError: the folder is not empty; there is no such format or platform; an argument in
            ``batch_argnums`` has no array with axes; the function has its own weights and you pass
            settings; an ONNX model cannot express the settings; the function cannot be exported, or
            its pytrees not written.
        ArgumentTypeError: ``fn`` is not callable, ``dtype`` not a dtype, ``policy`` no policy.
        UnknownTargetError: no such target.
        MissingExtraError: ``format="onnx"`` without jax2onnx, ``"saved_model"`` without
            TensorFlow.
        RewriteError: the program's results differ from those of ``fn``.
        WriteError: the file system refuses the folder.

    Example:
        >>> import tempfile, jax, jax.numpy as jnp, duotone
        >>> def predict(params, x):
        ...     return jax.nn.relu(x @ params["w"])
        >>> fast = duotone.autocast(predict, dtype="bfloat16", weights={"w": jnp.ones((8, 4))})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = duotone.export(fast, jnp.ones((2, 8)), path=f"{folder}/m", batch_argnums=0)
        ...     made.description["arguments"], made.call(jnp.ones((5, 8))).shape
        (['float32[batch,8]'], (5, 4))
    """
    check_callable("export", fn)
    fn = _painted(fn, dtype, policy)
    settings = api.settings_of(fn)
    assert settings is not None, "autocast returned it"
    folder = path_of("export", "path", path)
    check_new_folder(folder)
    if format == "onnx":
        _check_for_onnx(target, platforms)
        return export_onnx(fn, args, kwargs, folder, batch_argnums)
    if format not in ("jax", "saved_model"):
        raise ArgumentError(
            f"export: there is no format {format!r}; it takes 'jax', 'onnx' or 'saved_model'."
        )
    if format == "saved_model":
        tensorflow()  # raises if it is missing, before any work is done
    found = None if target is None else find_target(target)
    device = None if found is None else found.device()
    call = divided(settings.name, fn, args, kwargs)
    lowered_for = _platforms(platforms, found, also=("cpu",) if format == "saved_model" else ())
    with assuming(device):
        types = types_of(call, positions_of(batch_argnums, args))
        program = _exported(call, types, lowered_for)
        check_size(call.name, len(program.mlir_module_serialized))
        seen = api.explain(jax.jit(fn), *args, **kwargs)  # painted as inside of another `jit`
        merged = (settings.policy or Policy()).merged_with_environment()
        options = bool(merged.compiler_options and compiler_options())
    record = seen.to_json().encode()
    description = {
        "format": FORMAT,
        "kind": "jax",
        "function": call.name,
        "half_dtype": seen.summary.half_dtype if seen.summary.operations_half else None,
        "painted_for": device.name if device is not None else f"the local {jax.default_backend()}",
        "platforms": list(program.platforms),
        "policy": merged.describe(),
        "compiler_options": options,
        "arguments": [_type_text(a) for a in program.in_avals],
        "results": [_type_text(a) for a in program.out_avals],
        "fixed": {name: repr(value) for name, value in call.fixed.items()},
        "difference": None,
        "versions": {"duotone": __version__, "jax": jax.__version__, "numpy": np.__version__},
    }

    def difference(exported: Callable[..., Any]) -> float | None:
        here = jax.export.default_export_platform() in program.platforms
        return difference_from(call, exported, device) if here else None

    if format == "saved_model":
        return write_saved_model(folder, fn, call, program, record, description, difference)
    files = {
        PROGRAM: _serialized(call.name, program),
        STABLEHLO: program.mlir_module_serialized,
        RECORD: record,
    }
    return write_export(Exported, folder, description, files, lambda made: difference(made.call))


def _check_for_onnx(target: Any, platforms: Any) -> None:
    """Refuses arguments that name a device, since an ONNX model has none."""
    for name, value in (("target", target), ("platforms", platforms)):
        if value is not None:
            raise ArgumentError(
                f'export: {name}= is for the formats "jax" and "saved_model"; an ONNX model is '
                "painted alike for all devices. duotone rewrite --provider leaves operations full "
                "for which a runtime has no half kernel."
            )


def _painted(fn: Callable[..., Any], dtype: Any, policy: Policy | None) -> Callable[..., Any]:
    """Returns the function in mixed precision."""
    settings = api.settings_of(fn)
    if settings is not None and dtype is None and policy is None:
        return fn
    if settings is not None and settings.weights is not None:
        raise ArgumentError(
            f"export: {describe_callable(fn)} has its weights already; give dtype and policy to "
            "duotone.autocast."
        )
    fn, dtype, policy = api.unwrapped(fn, dtype, policy)
    return api.autocast(fn, dtype=dtype, policy=policy)


# -------------------------------------------------------------- program


def _platforms(
    given: Sequence[str] | None, target: Target | None, also: Sequence[str]
) -> list[str]:
    """Returns the platforms to lower for, by default with those in ``also``."""
    here = jax.export.default_export_platform()
    if given is None:
        return list(dict.fromkeys([here if target is None else target.platform, here, *also]))
    names = [given] if isinstance(given, str) else given
    check_strings("export", "platforms", names)
    for name in names:
        if name not in PLATFORMS:
            raise ArgumentError(
                f"export: there is no platform {name!r}; name some of {', '.join(PLATFORMS)}."
            )
    if not names:
        raise ArgumentError(f"export: name at least one platform of {', '.join(PLATFORMS)}.")
    return list(dict.fromkeys(names))


def _exported(
    call: Call, types: tuple[tuple[Any, ...], dict[str, Any]], platforms: Sequence[str]
) -> jax.export.Exported:
    """Lowers the program."""
    args, kwargs = types
    leaves = jax.tree.leaves(types)
    is_symbolic = any(jax.export.is_symbolic_dim(d) for x in leaves if is_array(x) for d in x.shape)
    hint = " It may be possible for fixed sizes." if is_symbolic else ""
    try:
        with errors_in_one_line(call.name, hint):
            made = jax.export.export(jax.jit(call.function), platforms=platforms)(*args, **kwargs)
    except jax.errors.InconclusiveDimensionOperation as error:
        raise ArgumentError(
            f"export: the program of {call.name} depends on the value of an open size: "
            f"{first_line(error)} Export it for fixed sizes (without batch_argnums)."
        ) from error
    check_results(call.name, made.out_avals)
    return made


def _serialized(name: str, program: jax.export.Exported) -> bytes:
    """Serializes the program."""
    try:
        return bytes(program.serialize())
    except (ValueError, KeyError, NotImplementedError) as error:
        raise ArgumentError(
            f"export: JAX cannot write {name}: {first_line(error)} Let it take and return dicts, "
            "lists and tuples, or see jax.export.register_pytree_node_serialization."
        ) from error


def _type_text(kind: Any) -> str:
    return f"{kind.dtype}[{','.join(map(str, kind.shape))}]"
