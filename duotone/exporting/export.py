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
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np

from duotone import api
from duotone._arguments import check_callable
from duotone._files import check_new_folder, folder_in_one_step
from duotone._version import __version__
from duotone.errors import ArgumentError, RewriteError
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
_ANOTHER_PROGRAM = 0.1
"""A relative difference that no order of additions explains: two programs, not two roundings."""
_log = logging.getLogger("duotone")


def export(
    fn: Callable[..., Any],
    *args: Any,
    path: str | Path,
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
        fn: what :func:`autocast` returned. Any other function is exported as it is, with a warning.
        *args: its arguments: arrays, or ``jax.ShapeDtypeStruct`` in their place, also with
            ``jax.export.symbolic_shape``. One that holds no array (``False``, ``"relu"``) becomes
            part of the program, which is called without it.
        path: the folder; it does not exist or is empty.
        target: paint for this device, which need not be here: a name that :func:`compile_for`
            knows, or a :class:`Target`. By default the device at hand.
        platforms: some of ``"cpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"``; by default that of the
            target and that of the device at hand.
        batch_argnums: positions of arguments whose arrays have the batch as axis 0: the program
            takes any number there.
        **kwargs: its keyword arguments, likewise.

    Returns:
        The exported program; ``.call`` runs it.

    Raises:
        ArgumentError: the folder is not empty; no such platform; a position without an array with
            axes; JAX cannot export the function or write its pytrees.
        ArgumentTypeError: ``fn`` is not callable.
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
    folder = Path(path)
    check_new_folder(folder)
    found = None if target is None else find_target(target)
    device = None if found is None else found.device()
    call = _divided(fn, args, kwargs)
    lowered_for = _platforms(platforms, found)
    with assuming(device):
        types = _types(call, _positions(batch_argnums, args))
        program = _exported(call, types, lowered_for)
        files = {PROGRAM: _serialized(call.name, program)}
        files[STABLEHLO] = program.mlir_module_serialized
        half, policy, explanation = _painting(fn, args, kwargs)
    if explanation is not None:
        files[RECORD] = explanation.encode()
    description = {
        "format": FORMAT,
        "function": call.name,
        "half_dtype": half,
        "painted_for": device.name if device is not None else f"{jax.default_backend()} at hand",
        "platforms": list(program.platforms),
        "policy": policy,
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


def _divided(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    positions = tuple(i for i, value in enumerate(args) if _holds_arrays(value))
    given = {name: value for name, value in kwargs.items() if _holds_arrays(value)}
    fixed: dict[str, Any] = {str(i): v for i, v in enumerate(args) if i not in positions}
    fixed |= {name: value for name, value in kwargs.items() if name not in given}

    def call(*arrays: Any, **named: Any) -> Any:
        whole = list(args)
        for position, value in zip(positions, arrays, strict=True):
            whole[position] = value
        return fn(*whole, **{**kwargs, **named})

    name = describe_callable(fn)
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
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
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
    except (NotImplementedError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        hint = " It may be possible for fixed sizes." if is_symbolic else ""
        raise ArgumentError(
            f"export: JAX cannot export {call.name}: {_first_line(error)}{hint}"
        ) from error


def _serialized(name: str, program: jax.export.Exported) -> bytes:
    """The program as bytes.

    Raises:
        ArgumentError: arguments or results are of types that JAX does not write.
    """
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


def _painting(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str | None, str | None, str | None]:
    """The half type, the policy in words and the explanation; nothing of a foreign function."""
    settings = api.settings_of(fn)
    if settings is None:
        _log.warning(
            "duotone.export: %s is not what duotone.autocast returned; it is exported as it is, "
            "without explain.json",
            describe_callable(fn),
        )
        return None, None, None
    seen = api.explain(fn, *args, **kwargs)
    is_half = seen.summary.operations_half > 0
    policy = (settings.policy or Policy()).describe()
    return (seen.summary.half_dtype if is_half else None), policy, seen.to_json()


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
    worst = max((_relative(np.asarray(a), np.asarray(b)) for a, b in pairs), default=0.0)
    if not worst < _ANOTHER_PROGRAM:
        raise RewriteError(
            f"export: the exported program of {call.name} differs from the function by {worst:.2g} "
            "of its largest value; nothing was written. Please report it, with the function."
        )
    return worst


def _relative(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference over the largest finite value; infinite where only one is finite."""
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    a, b = found.astype(wide), expected.astype(wide)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite):
        return float("inf")
    largest = np.max(np.abs(b[finite]), initial=0.0)
    return float(np.max(np.abs(a[finite] - b[finite]), initial=0.0) / (largest or 1.0))
