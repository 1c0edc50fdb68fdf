"""``duotone.export``: a function as a folder of files that JAX runs without duotone.

::

    divide the arguments     those that hold arrays; the others become part of the program
    lower                    jax.export, for one or several platforms
    write                    a folder that takes its name when all of it is there
    compare                  the program, read from its file, beside the function itself
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from duotone import api
from duotone._arguments import check_callable
from duotone._files import check_new_folder, folder_in_one_step
from duotone._version import __version__
from duotone.errors import ArgumentError, ArgumentTypeError, DuotoneError, RewriteError
from duotone.exporting.exported import (
    DESCRIPTION,
    FORMAT,
    PROGRAM,
    RECORD,
    STABLEHLO,
    Exported,
)
from duotone.jaxpr.reading.signature import describe_callable
from duotone.policy import Policy
from duotone.targets.assumed import AssumedDevice, assuming
from duotone.targets.specifications import Target, find_target

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
_BATCH = "batch"
_LARGEST = 2**31 - 2**20
"""Bytes of a program: FlatBuffers, in which JAX writes it, ends at 2 GiB, with types and trees."""
_ANOTHER_PROGRAM = 0.1
"""A relative difference that no order of additions explains: two programs, not two roundings."""


def export(
    fn: Callable[..., Any],
    *args: Any,
    path: str | Path,
    dtype: Any = None,
    policy: Policy | None = None,
    target: str | Target | None = None,
    platforms: Sequence[str] | None = None,
    batch_argnums: int | Sequence[int] = (),
    **kwargs: Any,
) -> Exported:
    """Writes a painted function as files, for servers that have neither duotone nor its source.

    The folder holds ``program.jax`` (for ``jax.export.deserialize``), ``program.stablehlo`` (the
    same as portable StableHLO bytecode, for other runtimes of XLA), ``explain.json`` (for
    ``duotone view``) and ``export.json`` (types, versions, policy, checksums). Weights given to
    ``autocast(fn, weights=...)`` are part of the program, those read in half only in half.

    The program is read back from its file and compared with ``fn`` on the arguments, where these
    are arrays and the device at hand is one of the platforms.

    Args:
        fn: what :func:`autocast` returned; any other function is given to it.
        *args: its arguments: arrays, or ``jax.ShapeDtypeStruct`` in their place, also with
            ``jax.export.symbolic_shape``. One that holds no array (``False``, ``"relu"``) becomes
            part of the program, which is called without it.
        path: the folder; it does not exist or is empty.
        dtype: as for :func:`autocast`; ``"float32"`` exports the function as it is written.
        policy: as for :func:`autocast`.
        target: paint for this device, which need not be here: a name that :func:`compile_for`
            knows, or a :class:`Target`. By default the device at hand.
        platforms: some of ``"cpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"``; by default that of the
            target and that of the device at hand.
        batch_argnums: positions of arguments whose arrays have the batch as axis 0: the program
            takes any number there.
        **kwargs: its keyword arguments, likewise. For a function that has one named ``target``
            itself, say, pass ``functools.partial(fn, target=...)``.

    Returns:
        The exported program; ``.call`` runs it.

    Raises:
        ArgumentError: the folder is not empty; no such platform; a position without an array with
            axes; settings for a function that has its weights; JAX cannot export the function or
            write its pytrees.
        ArgumentTypeError: ``fn`` is not callable, ``dtype`` no dtype, ``policy`` no policy.
        UnknownTargetError: no such target.
        RewriteError: the program does not compute what ``fn`` does.
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
    folder = Path(path)
    check_new_folder(folder)
    found = None if target is None else find_target(target)
    device = None if found is None else found.device()
    call = _divided(settings.name, fn, args, kwargs)
    lowered_for = _platforms(platforms, found)
    with assuming(device):
        types = _types(call, _positions(batch_argnums, args))
        program = _exported(call, types, lowered_for)
        files = {PROGRAM: _serialized(call.name, program)}
        files[STABLEHLO] = program.mlir_module_serialized
        seen = api.explain(fn, *args, **kwargs)
    files[RECORD] = seen.to_json().encode()
    description = {
        "format": FORMAT,
        "function": call.name,
        "half_dtype": seen.summary.half_dtype if seen.summary.operations_half else None,
        "painted_for": device.name if device is not None else f"{jax.default_backend()} at hand",
        "platforms": list(program.platforms),
        "policy": (settings.policy or Policy()).merged_with_environment().describe(),
        "arguments": [_type_text(a) for a in program.in_avals],
        "results": [_type_text(a) for a in program.out_avals],
        "fixed": {name: repr(value) for name, value in call.fixed.items()},
        "difference": None,
        "versions": {"duotone": __version__, "jax": jax.__version__, "numpy": np.__version__},
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    with folder_in_one_step(folder) as temporary:
        for name, data in files.items():
            (temporary / name).write_bytes(data)
        made = Exported(temporary, description)
        description["difference"] = _difference(call, made, device)
        (temporary / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
    return Exported(folder, description)


def _painted(fn: Callable[..., Any], dtype: Any, policy: Policy | None) -> Callable[..., Any]:
    """The function in mixed precision.

    Raises:
        ArgumentError: it has its weights, and settings of its own.
    """
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


# ------------------------------------------------------------ arguments


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call, without the arguments that hold no array.

    Attributes:
        name: of the function.
        function: takes the arguments that hold arrays.
        args: these, by position.
        positions: of each, among all arguments.
        kwargs: those by name.
        fixed: the others, by position (as text) or name.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    positions: tuple[int, ...]
    kwargs: dict[str, Any]
    fixed: Mapping[str, Any]


def _divided(
    name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Call:
    positions = tuple(i for i, value in enumerate(args) if _holds_arrays(value))
    given = {key: value for key, value in kwargs.items() if _holds_arrays(value)}
    fixed: dict[str, Any] = {str(i): v for i, v in enumerate(args) if i not in positions}
    fixed |= {key: value for key, value in kwargs.items() if key not in given}

    def call(*arrays: Any, **named: Any) -> Any:
        whole = list(args)
        for position, value in zip(positions, arrays, strict=True):
            whole[position] = value
        return fn(*whole, **{**kwargs, **named})

    return _Call(name, call, tuple(args[i] for i in positions), positions, given, fixed)


def _holds_arrays(value: Any) -> bool:
    return any(_is_array(leaf) for leaf in jax.tree.leaves(value))


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))


def _positions(given: int | Sequence[int], args: tuple[Any, ...]) -> frozenset[int]:
    """The positions of arguments with a batch.

    Raises:
        ArgumentError: one that has no array with axes.
    """
    positions = (given,) if isinstance(given, int) else tuple(given)
    for position in positions:
        inside = range(-len(args), len(args))
        leaves = jax.tree.leaves(args[position]) if position in inside else []
        if not any(_is_array(leaf) and leaf.ndim for leaf in leaves):
            raise ArgumentError(
                f"export: batch_argnums names argument {position}, which has no array with axes; "
                f"there are {len(args)} arguments by position."
            )
    return frozenset(position % len(args) for position in positions)


def _types(call: _Call, with_batch: frozenset[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Shapes and dtypes in place of arrays; the batch a symbol."""
    (batch,) = jax.export.symbolic_shape(_BATCH)

    def typed(leaf: Any, has_batch: bool) -> Any:
        if not _is_array(leaf):
            return leaf
        shape = (batch, *leaf.shape[1:]) if has_batch and leaf.shape else leaf.shape
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
        dtype = leaf.dtype if is_key else jax.dtypes.canonicalize_dtype(leaf.dtype)
        return jax.ShapeDtypeStruct(shape, dtype)

    pairs = zip(call.positions, call.args, strict=True)
    args = tuple(
        jax.tree.map(lambda x, p=p: typed(x, p in with_batch), value) for p, value in pairs
    )
    return args, jax.tree.map(lambda x: typed(x, False), call.kwargs)


def _platforms(given: Sequence[str] | None, target: Target | None) -> list[str]:
    """Platforms to lower for.

    Raises:
        ArgumentError: there is no such platform.
    """
    here = jax.export.default_export_platform()
    if given is None:
        return list(dict.fromkeys([here if target is None else target.platform, here]))
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in PLATFORMS:
            raise ArgumentError(
                f"export: there is no platform {name!r}; name some of {', '.join(PLATFORMS)}."
            )
    if not names:
        raise ArgumentError(f"export: name at least one platform of {', '.join(PLATFORMS)}.")
    return list(dict.fromkeys(names))


# -------------------------------------------------------------- program


def _exported(
    call: _Call, types: tuple[tuple[Any, ...], dict[str, Any]], platforms: Sequence[str]
) -> jax.export.Exported:
    """The lowered program.

    Raises:
        ArgumentError: JAX cannot export it.
        ArgumentTypeError: it takes or returns what is no array, or fails with a type error itself.
    """
    args, kwargs = types
    leaves = jax.tree.leaves(types)
    is_symbolic = any(
        jax.export.is_symbolic_dim(d) for x in leaves if _is_array(x) for d in x.shape
    )
    try:
        return jax.export.export(jax.jit(call.function), platforms=platforms)(*args, **kwargs)
    except jax.errors.InconclusiveDimensionOperation as error:
        raise ArgumentError(
            f"export: {call.name} decides something by a size that is left open: "
            f"{_first_line(error)} Export it for fixed sizes (without batch_argnums)."
        ) from error
    except DuotoneError:
        raise
    except (NotImplementedError, TypeError, ValueError) as error:
        hint = " It may be possible for fixed sizes." if is_symbolic else ""
        kind = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
        raise kind(f"export: JAX cannot export {call.name}: {_first_line(error)}{hint}") from error


def _serialized(name: str, program: jax.export.Exported) -> bytes:
    """The program as bytes.

    Raises:
        ArgumentError: arguments or results are of types that JAX does not write, or it is too
            large.
    """
    size = len(program.mlir_module_serialized)
    if size > _LARGEST:
        raise ArgumentError(
            f"export: {name} has {size:,} bytes with its weights, and JAX writes {_LARGEST:,}. "
            "Leave the weights an argument: duotone.autocast without weights=."
        )
    try:
        return bytes(program.serialize())
    except (ValueError, KeyError, NotImplementedError) as error:
        raise ArgumentError(
            f"export: JAX cannot write {name}: {_first_line(error)} Let it take and return dicts, "
            "lists and tuples, or see jax.export.register_pytree_node_serialization."
        ) from error


def _first_line(error: Exception) -> str:
    line = str(error).strip().split("\n")[0]
    return line if line.endswith(".") else f"{line}."


def _type_text(kind: Any) -> str:
    return f"{kind.dtype}[{','.join(map(str, kind.shape))}]"


# ----------------------------------------------------------- comparison


def _difference(call: _Call, made: Exported, device: AssumedDevice | None) -> float | None:
    """The largest difference of results, relative to the largest value of each; None if unknown.

    Raises:
        RewriteError: it is no matter of rounding.
    """
    given = jax.tree.leaves((call.args, call.kwargs))
    here = jax.export.default_export_platform()
    if (
        any(isinstance(x, jax.ShapeDtypeStruct) for x in given)
        or here not in made.program.platforms
    ):
        return None
    with assuming(device):
        expected = jax.jit(call.function)(*call.args, **call.kwargs)
    found = made.call(*call.args, **call.kwargs)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    worst = max((_relative(_numbers(a), _numbers(b)) for a, b in pairs), default=0.0)
    if not worst < _ANOTHER_PROGRAM:
        raise RewriteError(
            f"export: the exported program of {call.name} differs from the function by {worst:.2g} "
            "of its largest value; nothing was written. Please report it, with the function."
        )
    return worst


def _numbers(result: Any) -> np.ndarray:
    is_key = jnp.issubdtype(result.dtype, jax.dtypes.extended)
    return np.asarray(jax.random.key_data(result) if is_key else result)


def _relative(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference over the largest finite value; infinite where only one is finite."""
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    a, b = found.astype(wide), expected.astype(wide)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite):
        return float("inf")
    largest = np.max(np.abs(b[finite]), initial=0.0)
    return float(np.max(np.abs(a[finite] - b[finite]), initial=0.0) / (largest or 1.0))
