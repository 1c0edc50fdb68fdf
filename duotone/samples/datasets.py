"""Reads data sets from local files, and text that comes with Python, for ``examples/``.

Nothing is downloaded. An error names the file that is missing, cut short, or of another format.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from pathlib import Path

import numpy as np

from duotone.errors import ArgumentError
from duotone.samples.digits import Digits, load_digits

_CIFAR_ROW = 1 + 3 * 32 * 32
_CHAPTERS = """formatstrings typesseq customization assignment comparisons import operator-summary
calls sequence-types numeric-types objects raise binary with subscriptions exceptions dict for"""


def load_mnist(folder: Path) -> Digits:
    """Reads MNIST, or a data set in its format, from its four IDX files.

    Args:
        folder: contains ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and the two
            ``t10k-`` files, each plain or compressed (``.gz``).

    Returns:
        Images ``float32[n, height, width, 1]`` from 0 to 1, and labels.

    Raises:
        ArgumentError: a file is missing or broken, or the labels do not match the images.
    """
    parts = []
    for name in ("train", "t10k"):
        images = _read_idx(folder, f"{name}-images-idx3-ubyte", 3)
        labels = _read_idx(folder, f"{name}-labels-idx1-ubyte", 1)
        if len(images) != len(labels) or not images.size or labels.max() > 9:
            raise ArgumentError(
                f"{folder}: {len(images)} images and {len(labels)} labels of {name} do not belong "
                "together; both files must be of one data set with the labels 0 to 9."
            )
        parts += [images[..., np.newaxis].astype(np.float32) / 255, labels.astype(np.int32)]
    return Digits(*parts)


def _read_idx(folder: Path, name: str, dimensions: int) -> np.ndarray:
    """Reads ``uint8[...]``: two zeros, 8 for bytes, dimensions in four bytes each, the bytes."""
    found = [file for file in (folder / name, folder / f"{name}.gz") if file.exists()]
    if not found:
        raise ArgumentError(f"{folder} holds no {name} and no {name}.gz")
    try:
        content = found[0].read_bytes()
        content = gzip.decompress(content) if found[0].suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise ArgumentError(f"{found[0]} cannot be read: {error}") from error
    head = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) < head:
        raise ArgumentError(
            f"{found[0]} is not an IDX file of bytes in {dimensions} dimension(s): it begins with "
            f"{content[:4].hex(' ') or 'nothing'}."
        )
    shape = tuple(np.frombuffer(content[4:head], ">u4").tolist())
    if len(content) - head != math.prod(shape):
        raise ArgumentError(
            f"{found[0]} should hold {math.prod(shape)} bytes after its head ({shape}) and holds "
            f"{len(content) - head}: copy it again."
        )
    return np.frombuffer(content[head:], np.uint8).reshape(shape)


def load_cifar10(folder: Path) -> Digits:
    """Reads CIFAR-10 from its binary form: ``data_batch_*.bin`` and ``test_batch.bin``.

    Args:
        folder: contains the files; one training batch is enough.

    Returns:
        Images ``float32[n, 32, 32, 3]`` from 0 to 1, and labels.

    Raises:
        ArgumentError: a file is missing or broken.
    """
    parts = [*_read_rows(folder, "data_batch_*.bin"), *_read_rows(folder, "test_batch.bin")]
    return Digits(*parts)


def _read_rows(folder: Path, pattern: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads images and labels; a row is a label and three planes of 32 by 32 bytes."""
    found = sorted(folder.glob(pattern))
    if not found:
        raise ArgumentError(f"{folder} holds no {pattern}")
    rows = []
    for file in found:
        content = np.fromfile(file, np.uint8)
        if not content.size or content.size % _CIFAR_ROW:
            raise ArgumentError(
                f"{file} has {content.size} bytes, not a multiple of {_CIFAR_ROW}: copy it again."
            )
        rows.append(content.reshape(-1, _CIFAR_ROW))
        if rows[-1][:, 0].max() > 9:
            label = rows[-1][:, 0].max()
            raise ArgumentError(f"{file}: {label} is not a label of CIFAR-10 (0 to 9).")
    every = np.concatenate(rows)
    images = every[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return images.astype(np.float32) / 255, every[:, 0].astype(np.int32)


def large_digits() -> Digits:
    """Enlarges the digits of scikit-learn to CIFAR-10's shape, as a far easier stand-in.

    Returns:
        Images ``float32[n, 32, 32, 3]``: each pixel repeated four by four times, each image in a
        random color.
    """
    digits = load_digits()
    colors = np.random.default_rng(0).uniform(0.3, 1, (len(digits.train_images), 1, 1, 3))

    def enlarged(images: np.ndarray) -> np.ndarray:
        large = images.repeat(4, axis=1).repeat(4, axis=2) * colors[: len(images)]
        return large.astype(np.float32)

    test = enlarged(digits.test_images), digits.test_labels
    return Digits(enlarged(digits.train_images), digits.train_labels, *test)


def python_reference() -> list[str]:
    """Returns the words of the Python reference in lower case; signs are words too.

    Returns:
        About 40,000 words of eighteen chapters that Python has for ``help()`` and that are equal in
        3.11 and 3.12.
    """
    from pydoc_data.topics import topics

    return words(" ".join(topics[name] for name in _CHAPTERS.split()))


def read_words(file: Path) -> list[str]:
    """Reads the words of a UTF-8 text file, as :func:`words` splits them.

    Raises:
        ArgumentError: the file is missing or not text.
    """
    try:
        return words(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{file} cannot be read as text: {error}") from error


def words(text: str) -> list[str]:
    """Splits a text into words and signs, in lower case.

    Args:
        text: any text.

    Example:
        >>> words("Two words, one sign.")
        ['two', 'words', ',', 'one', 'sign', '.']
    """
    return re.findall(r"\w+|[^\w\s]", text.lower())
