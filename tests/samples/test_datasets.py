"""Data sets in their own files, whole and broken; the text that comes with Python."""

from __future__ import annotations

import hashlib
import math
import struct

import numpy as np
import pytest

from duotone.errors import ArgumentError
from duotone.samples import datasets

REFERENCE = "6821ed2f739e74bd"
"""Of the words: the same text on every Python that the tests run on."""


def idx(*shape, content=None):
    """An IDX file of bytes."""
    data = bytes(i % 10 for i in range(math.prod(shape))) if content is None else bytes(content)
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + data


@pytest.fixture
def mnist(tmp_path):
    """A folder with two images to train on and one to test."""
    for name, count in (("train", 2), ("t10k", 1)):
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(idx(count, 4, 4))
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(idx(count))
    return tmp_path


def test_mnist_is_read(mnist):
    read = datasets.load_mnist(mnist)
    assert read.train_images.shape == (2, 4, 4, 1)
    assert read.train_images.dtype == np.float32
    assert read.train_images[0, 1, 1, 0] == np.float32(5 / 255)
    assert read.train_labels.tolist() == [0, 1]
    assert len(read.test_images) == len(read.test_labels) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte", b"", "not an IDX file"),
        ("train-images-idx3-ubyte", b"\x00\x00\x08\x01" + bytes(20), "3 dimension"),
        ("train-images-idx3-ubyte", idx(2, 4, 4)[:-1], "holds 31"),
        ("train-labels-idx1-ubyte", idx(3), "2 images and 3 labels"),
        ("train-labels-idx1-ubyte", idx(2, content=[1, 77]), "0 to 9"),
        ("t10k-images-idx3-ubyte", None, "holds no t10k-images"),
    ],
)
def test_broken_files_of_mnist_are_named(mnist, name, content, message):
    (mnist / name).unlink()
    if content is not None:
        (mnist / name).write_bytes(content)
    with pytest.raises(ArgumentError, match=message):
        datasets.load_mnist(mnist)


@pytest.mark.parametrize("content", [b"\x1f\x8b no", b"plain", b""])
def test_a_packed_file_that_cannot_be_unpacked_is_named(mnist, content):
    name = "train-images-idx3-ubyte"
    (mnist / name).unlink()
    (mnist / f"{name}.gz").write_bytes(content)
    with pytest.raises(ArgumentError, match=f"{name}.gz"):
        datasets.load_mnist(mnist)


def test_cifar10_is_read_plane_by_plane(tmp_path):
    row = np.zeros(3073, np.uint8)
    row[0], row[1 + 1024 + 32 * 2 + 5] = 7, 255  # green, third line, sixth pixel
    row.tofile(tmp_path / "data_batch_1.bin")
    row.tofile(tmp_path / "test_batch.bin")
    read = datasets.load_cifar10(tmp_path)
    assert read.train_labels.tolist() == [7]
    assert np.argwhere(read.train_images).tolist() == [[0, 2, 5, 1]]


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "0 bytes"), (bytes(3072), "3072"), (b"\x0b" + bytes(3072), "11")]
)
def test_broken_files_of_cifar10_are_named(tmp_path, content, message):
    (tmp_path / "data_batch_1.bin").write_bytes(content)
    with pytest.raises(ArgumentError, match=message):
        datasets.load_cifar10(tmp_path)


def test_enlarged_digits_have_the_shape_of_cifar10():
    large = datasets.large_digits()
    assert large.train_images.shape == (1297, 32, 32, 3)
    assert large.train_images.dtype == np.float32
    assert 0 <= large.train_images.min() < large.train_images.max() <= 1


def test_the_text_is_the_same_everywhere():
    read = datasets.python_reference()
    assert hashlib.sha256(" ".join(read).encode()).hexdigest()[:16] == REFERENCE


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ArgumentError, match=r"x\.txt"):
        datasets.read_words(tmp_path / "x.txt")
