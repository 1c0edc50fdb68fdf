"""The persistent cache: JAX's compiled programs on disk, in a folder that is checked first.

JAX has the cache itself (``jax_compilation_cache_dir``). It writes entries atomically, and
recompiles those that it cannot read. If it cannot write to the folder, it warns for each program.
Here that is one error, before the first program.
"""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

from duotone._checks import path_of
from duotone.errors import ArgumentError, ArgumentTypeError, WriteError, shown


def use_cache(folder: str | Path | None, *, min_seconds: float = 1.0) -> None:
    """Keeps compiled programs in a folder, from one process to the next; several may share it.

    Args:
        folder: created if it does not exist; ``~`` is the user's home. ``None`` switches the cache
            off.
        min_seconds: programs that compile faster are not cached.

    Raises:
        WriteError: the folder is a file, or is not writable.
        ArgumentError: ``min_seconds`` is negative, or the folder has no name.
        ArgumentTypeError: the folder is not a path, or ``min_seconds`` is not a number.

    Example:
        >>> import tempfile, duotone
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     duotone.use_cache(folder)
        ...     duotone.use_cache(None)
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if isinstance(min_seconds, bool) or not isinstance(min_seconds, int | float):
        raise ArgumentTypeError(
            f"use_cache: min_seconds is {shown(min_seconds)}; pass a number of seconds"
        )
    if not min_seconds >= 0:
        raise ArgumentError(
            f"use_cache: min_seconds is {min_seconds}; pass 0 to keep every program"
        )
    path = None
    if folder is not None:
        path = str(_checked(path_of("use_cache", "folder", folder).expanduser()))
    jax.config.update("jax_compilation_cache_dir", path)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", min_seconds)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # JAX reads the settings only at the first compilation


def _checked(folder: Path) -> Path:
    """Creates the folder, and checks that a file can be written there."""
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = "it is a file" if error.errno in (errno.EEXIST, errno.ENOTDIR) else error.strerror
        explained = WriteError(
            f"use_cache: compiled programs cannot be kept in {folder}: {reason}. Name a folder in "
            "which you may write."
        )
        explained.errno = error.errno
        raise explained from error
    return folder
