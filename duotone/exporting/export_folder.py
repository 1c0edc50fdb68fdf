"""Writes the folder of an export, and compares its program with the function."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from duotone._files import folder_in_one_step
from duotone.devices.assumed import AssumedDevice, assuming
from duotone.errors import RewriteError
from duotone.exporting.export_arguments import Call
from duotone.exporting.exported import DESCRIPTION, digest_of

Made = TypeVar("Made")
_ANOTHER_PROGRAM = 0.1
"""A larger relative difference cannot be rounding, so the programs differ."""


def write_export(
    kind: Callable[[Path, dict[str, Any]], Made],
    folder: Path,
    description: dict[str, Any],
    files: Mapping[str, bytes],
    compare: Callable[[Made], float | None],
    save: Callable[[Path], None] = lambda folder: None,
) -> Made:
    """Writes a folder in one step, with the digests of its files and the difference.

    Args:
        kind: the class of the result.
        folder: the new folder.
        description: the contents of ``export.json`` so far.
        files: the contents of files by name.
        compare: returns the difference of the program in a folder from the function, or ``None``.
        save: writes further files into a folder, before the others.

    Raises:
        RewriteError: the program's results differ from those of the function.
        WriteError: the file system refuses the folder.
    """
    with folder_in_one_step(folder) as temporary:
        save(temporary)
        for name, data in files.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_bytes(data)
        written = sorted(file for file in temporary.rglob("*") if file.is_file())
        names = {file.relative_to(temporary).as_posix(): file for file in written}
        description["files"] = {name: digest_of(file) for name, file in names.items()}
        description["difference"] = compare(kind(temporary, description))
        (temporary / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
    return kind(folder, description)


def difference_from(
    call: Call, exported: Callable[..., Any], device: AssumedDevice | None = None
) -> float | None:
    """Returns the largest relative difference of the results; ``None`` without arrays to call with.

    Raises:
        RewriteError: the difference is too large for rounding.
    """
    given = jax.tree.leaves((call.args, call.kwargs))
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in given):
        return None
    found = exported(*call.args, **call.kwargs)
    with assuming(device):
        expected = jax.jit(call.function)(*call.args, **call.kwargs)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    worst = max((_relative(_numbers(a), _numbers(b)) for a, b in pairs), default=0.0)
    if not worst < _ANOTHER_PROGRAM:
        raise RewriteError(
            f"export: the exported program of {call.name} differs from the function by "
            f"{worst:.2g} of its largest value; nothing was written. Please report it, with the "
            "function."
        )
    return worst


def _numbers(result: Any) -> np.ndarray:
    is_key = jnp.issubdtype(result.dtype, jax.dtypes.extended)
    return np.asarray(jax.random.key_data(result) if is_key else result)


def _relative(found: np.ndarray, expected: np.ndarray) -> float:
    """Returns the largest relative difference; infinite if only one of two numbers is finite."""
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    a, b = found.astype(wide), expected.astype(wide)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite):
        return float("inf")
    largest = np.max(np.abs(b[finite]), initial=0.0)
    return float(np.max(np.abs(a[finite] - b[finite]), initial=0.0) / (largest or 1.0))
