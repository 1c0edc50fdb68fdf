"""Writes files atomically.

The content goes to a temporary file or folder next to the target, which is then renamed. An
interrupted run does not change the old file, and an error or Ctrl-C removes the temporary one.
Writing follows a symbolic link. An existing file keeps its mode (and its owner, if permitted), and
a new file has the mode of the umask.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from duotone.errors import ArgumentError, DuotoneError, WriteError

_NO_RIGHT = "Name a file in a folder that you may write to."
_REMEDIES = {
    errno.ENOSPC: "Free some space there, or name a file on another disk.",
    errno.EDQUOT: "Free some of your space there, or name a file on another disk.",
    errno.EFBIG: "Name a file on a disk that takes files of this size.",
    errno.ENAMETOOLONG: "Its name has {bytes} bytes: give it a shorter one.",
    errno.ELOOP: "Its links lead in a circle: remove them or name another file.",
    errno.ENOENT: "There is no folder {parent}: make it with: mkdir -p {parent}",
    errno.ENOTDIR: "One of its folders is a file: name another folder.",
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: _NO_RIGHT,
}


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a whole file or leaves the old one.

    Args:
        path: the file, or a link to it, in an existing folder.
        content: text (written as UTF-8) or bytes.

    Raises:
        WriteError: the file system refuses it, or the path is not a regular file.
    """
    write_pieces_atomically(path, [content.encode() if isinstance(content, str) else content])


def write_pieces_atomically(path: Path, pieces: Iterable[bytes]) -> None:
    """Writes a whole file piece by piece, or leaves the old one.

    Args:
        path: the file, or a link to it, in an existing folder.
        pieces: its bytes in order; only one piece is in memory at a time.

    Raises:
        WriteError: the file system refuses it, or the path is not a regular file.
    """
    with explained(path):
        old = _present(path)
        target = Path(os.path.realpath(path))
        temporary = _beside(target)
        # Nobody else can read it before it has the old mode.
        mode = 0o666 if old is None else 0o600
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        with _removed_after_an_error(temporary):
            with os.fdopen(handle, "wb") as file:
                if old is not None:
                    with contextlib.suppress(OSError):  # only root may change the owner
                        os.fchown(handle, old.st_uid, old.st_gid)
                    os.fchmod(handle, stat.S_IMODE(old.st_mode))
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(handle)  # a network file system may report a full disk only here
            temporary.replace(target)


@contextlib.contextmanager
def folder_in_one_step(path: Path) -> Iterator[Path]:
    """Yields a temporary folder to fill, which is renamed if the block ends without an error.

    Args:
        path: the folder, or a link to it; it must not exist or must be empty.

    Yields:
        The temporary folder.

    Raises:
        WriteError: the file system refuses it.
    """
    with explained(path):
        target = Path(os.path.realpath(path))
        old = target.stat() if target.exists() else None
        temporary = _beside(target)
        temporary.mkdir()
        with _removed_after_an_error(temporary):
            yield temporary
            if old is not None:
                temporary.chmod(stat.S_IMODE(old.st_mode))
            temporary.replace(target)


def check_writable(path: Path) -> None:
    """Raises the errors of :func:`write_atomically` that are known before writing.

    Args:
        path: the file, or a link to it.

    Raises:
        WriteError: the path is not a regular file, its folder does not exist or is not writable, or
            its name is too long.
    """
    with explained(path):
        _present(path)
        folder = Path(os.path.realpath(path)).parent
        folder.stat()
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raises if a file cannot be written, or exists and must not be replaced.

    Args:
        path: the file, or a link to it.
        overwrite: whether to replace an existing file.

    Raises:
        WriteError: as :func:`check_writable`.
        ArgumentError: the file exists, and ``overwrite`` is false.
    """
    check_writable(path)
    if path.exists() and not overwrite:
        raise ArgumentError(
            f"{path} exists. Name another file, or have it replaced: --force (in Python "
            "overwrite=True)."
        )


def check_new_folder(path: Path) -> None:
    """Raises the errors of :func:`folder_in_one_step` that are known before writing.

    Args:
        path: the folder, or a link to it.

    Raises:
        ArgumentError: the path exists and is not an empty folder, or its parent does not exist.
        WriteError: the file system refuses access.
    """
    folder = Path(os.path.realpath(path))
    with explained(path):
        if folder.is_dir() and not any(folder.iterdir()):
            return
        if folder.exists() or folder.is_symlink():
            raise ArgumentError(f"{folder} exists: it must be a new folder. Name another.")
    if not folder.parent.is_dir():
        raise ArgumentError(
            f"cannot write {folder}: there is no folder {folder.parent}. "
            f"Make it with: mkdir -p {folder.parent}"
        )


def prepare_folder(path: Path) -> Path:
    """Creates a folder if it is missing, and checks that it is writable.

    Args:
        path: the folder.

    Returns:
        ``path``.

    Raises:
        ArgumentError: ``path`` or one of its parents is a file, or it is not writable.
    """
    for ancestor in (path, *path.parents):
        if os.path.lexists(ancestor) and not ancestor.is_dir():
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


def _present(path: Path) -> os.stat_result | None:
    """Returns the existing file or ``None``; refuses devices and pipes."""
    try:
        old = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(old.st_mode):
        what = "a folder" if stat.S_ISDIR(old.st_mode) else "not a regular file"
        raise WriteError(f"cannot write {path}: it is {what}. Name a file.")
    return old


def _beside(target: Path) -> Path:
    """Returns a temporary name, short enough for a target with the longest possible name."""
    return target.with_name(f".duotone-{secrets.token_hex(8)}.tmp")


@contextlib.contextmanager
def _removed_after_an_error(temporary: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink()
        raise


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Replaces errors of the file system in a block by one that names the file and the remedy.

    Args:
        path: the file or folder to write.

    Raises:
        WriteError: replaces any ``OSError``; duotone's own errors do not change.
    """
    try:
        yield
    except DuotoneError:
        raise
    except (OSError, ValueError) as error:
        raise _explanation(path, error) from error


def _explanation(path: Path, error: Exception) -> WriteError:
    number, problem = getattr(error, "errno", None), getattr(error, "strerror", None)
    if isinstance(error, shutil.Error):  # a list of errors, one for each file
        problem = str(error.args[0][0][2])
        found = re.match(r"\[Errno (\d+)\] ", problem)
        number = int(found[1]) if found else None
    parent = Path(os.path.realpath(path)).parent
    key = errno.EACCES if number == errno.ENOENT and parent.is_dir() else number or 0
    remedy = _REMEDIES.get(key, "Name another file.")
    remedy = remedy.format(parent=parent, bytes=len(os.fsencode(path.name)))
    explained = WriteError(f"cannot write {path}: {problem or error}. {remedy}")
    explained.errno = number
    return explained
