"""Writing files so that a reader never sees half of one.

Called wherever duotone writes a result. The content goes to a temporary file in the same folder,
which then takes the name in one step: an interrupted run leaves the old file as it was. What goes
wrong: a path that is no folder (``ArgumentError``), a full or read-only disk (``OSError``).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from duotone.errors import ArgumentError


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a whole file or leaves what was there.

    Args:
        path: the file; its folder exists.
        content: text (written as UTF-8) or bytes.
    """
    data = content.encode() if isinstance(content, str) else content
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.chmod(0o666 & ~_umask())  # mkstemp's 0600 would hide a report from its readers
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def prepare_folder(path: Path) -> Path:
    """A folder to write into: made where missing, checked before any work is done for it.

    Args:
        path: the folder.

    Returns:
        `path`.

    Raises:
        ArgumentError: `path` or one of its parents is a file, or it cannot be written to.
    """
    for ancestor in (path, *path.parents):
        if ancestor.exists() and not ancestor.is_dir():
            raise ArgumentError(f"cannot write into {path}: {ancestor} is a file. Name a folder.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(
            f"cannot make the folder {path}: {error.strerror}. Name a folder that you may write to."
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ArgumentError(f"cannot write into {path}: permission denied. Name another folder.")
    return path


def _umask() -> int:
    """The process' mask for new files, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
