"""Reads the folders that ``duotone.export`` writes, and runs their programs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np

from duotone._checks import path_of
from duotone.devices.options import compiler_options
from duotone.errors import ArgumentError
from duotone.jaxpr.running.own_jit import may_have_options
from duotone.measuring.libraries import library

FORMAT = 1
PROGRAM, STABLEHLO, RECORD, DESCRIPTION = (
    "program.jax",
    "program.stablehlo",
    "explain.json",
    "export.json",
)
"""The files of a folder."""
MODEL = "model.onnx"
"""The only model file with ``format="onnx"``."""
SIGNATURE = "serving_default"
"""The signature of a SavedModel that servers call by default."""


@dataclasses.dataclass(frozen=True, repr=False)
class _Folder:
    """A folder that :func:`duotone.export` wrote, and the contents of its ``export.json``."""

    path: Path
    description: Mapping[str, Any]

    def __repr__(self) -> str:
        seen = self.description
        words = [seen["function"], seen["half_dtype"] or "nothing in half"]
        if "platforms" in seen:
            words += [f"for {'/'.join(seen['platforms'])}", f"painted for {seen['painted_for']}"]
        difference = seen["difference"]
        compared = "not compared" if difference is None else f"differs by {difference:.2g}"
        return f"{type(self).__name__}({', '.join(words)}; {compared}; {self.path})"

    def _feed(self, arrays: list[Any]) -> dict[str, np.ndarray]:
        """Returns the arrays of a call by the names of the inputs."""
        names = self.description["arguments"]
        if len(arrays) != len(names):
            raise ArgumentError(
                f"{self.path} takes {len(names)} arrays ({', '.join(names)}); got {len(arrays)}."
            )
        return {name: np.asarray(array) for name, array in zip(names, arrays, strict=True)}


@dataclasses.dataclass(frozen=True, repr=False)
class Exported(_Folder):
    """A program that :func:`duotone.export` wrote.

    Attributes:
        path: the folder.
        description: the contents of ``export.json``: ``function``, ``half_dtype``, ``platforms``,
            ``painted_for``, ``policy``, ``arguments`` and ``results`` (types), ``fixed``
            (arguments that are part of the program), ``difference`` (the largest difference from
            the function's own results, relative to the largest value of the result, or null),
            ``versions`` and ``files`` (SHA-256 of each), and ``compiler_options``: whether it is
            painted for a program compiled with :func:`duotone.compiler_options`.
    """

    @functools.cached_property
    def program(self) -> jax.export.Exported:
        """The program, as ``jax.export.deserialize`` reads it.

        Raises:
            ArgumentError: this JAX does not read it.
        """
        data = bytearray((self.path / PROGRAM).read_bytes())
        try:
            return jax.export.deserialize(data)
        except Exception as error:  # JAX and its parsers raise errors of many types
            by = self.description["versions"]["jax"]
            raise ArgumentError(
                f"JAX {jax.__version__} cannot read {self.path / PROGRAM}, which JAX {by} wrote: "
                f"{error}. Read it with that version, or export it again."
            ) from error

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program, which compiles at the first call of each shape.

        Args:
            *args: the positional arguments that contain arrays.
            **kwargs: the keyword arguments that contain arrays.

        Returns:
            The results of the function.

        Raises:
            ValueError: JAX's, if the arguments have another structure, shape or dtype.
            ArgumentError: the installed JAX cannot read the program.
        """
        asked = self.description.get("compiler_options", False)
        with_options = asked and may_have_options(jax.tree.leaves((args, kwargs)))
        compiled = self._compiled_with_options if with_options else self._compiled
        return compiled(*args, **kwargs)

    @functools.cached_property
    def _compiled(self) -> Any:
        return jax.jit(self.program.call)

    @functools.cached_property
    def _compiled_with_options(self) -> Any:
        return jax.jit(self.program.call, compiler_options=compiler_options())


@dataclasses.dataclass(frozen=True, repr=False)
class ExportedOnnx(_Folder):
    """An ONNX model that :func:`duotone.export` wrote with ``format="onnx"``.

    Attributes:
        path: the folder with ``model.onnx``.
        description: the contents of ``export.json``: ``function``, ``half_dtype``, ``policy``,
            ``arguments`` and ``results`` (names in the model), ``fixed``, ``difference``,
            ``versions`` and ``files``, as in :class:`Exported`.
    """

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model in ONNX Runtime on the CPU.

        Args:
            *args: the positional arguments that contain arrays.
            **kwargs: the keyword arguments that contain arrays.

        Returns:
            A dictionary of the result arrays by their names in the model.

        Raises:
            ArgumentError: the model takes another number of arrays.
            OnnxError: ONNX Runtime cannot run the model.
        """
        running = importlib.import_module("duotone.onnx.running")
        arrays = [leaf for leaf in jax.tree.leaves((args, kwargs)) if hasattr(leaf, "dtype")]
        feed = self._feed(arrays)
        found = running.run(self._session, None, running.fitted(self._session, feed))
        return dict(zip(self.description["results"], found, strict=True))

    @functools.cached_property
    def _session(self) -> Any:
        return importlib.import_module("duotone.onnx.running").session(self.path / MODEL)


@dataclasses.dataclass(frozen=True, repr=False)
class ExportedSavedModel(_Folder):
    """A TensorFlow SavedModel that :func:`duotone.export` wrote with ``format="saved_model"``.

    Attributes:
        path: the folder of the SavedModel.
        description: the contents of ``export.json``, as in :class:`Exported`; ``arguments`` and
            ``results`` are names in the signature ``serving_default``.
    """

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the signature in TensorFlow.

        Args:
            *args: the positional arguments that contain arrays.
            **kwargs: the keyword arguments that contain arrays.

        Returns:
            A dictionary of the result arrays by their names in the signature.

        Raises:
            ArgumentError: the signature takes another number of arrays.
            MissingExtraError: TensorFlow is not installed.
        """
        tf = tensorflow()
        feed = self._feed(jax.tree.leaves((args, kwargs)))
        types = self._signature.structured_input_signature[1]
        found = self._signature(**{n: tf.constant(a, types[n].dtype) for n, a in feed.items()})
        return {name: found[name].numpy() for name in self.description["results"]}

    @functools.cached_property
    def _signature(self) -> Any:
        return self._loaded.signatures[SIGNATURE]

    @functools.cached_property
    def _loaded(self) -> Any:
        """The SavedModel, kept because it owns the resources of the signature."""
        return tensorflow().saved_model.load(str(self.path))


def tensorflow() -> Any:
    """Imports TensorFlow.

    Raises:
        MissingExtraError: it is not installed.
    """
    return library("tensorflow", "a TensorFlow SavedModel", "tensorflow")


def digest_of(file: Path) -> str:
    """Returns the SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


_KINDS = {"onnx": ExportedOnnx, "saved_model": ExportedSavedModel}
"""The class of each ``kind`` in ``export.json``; other kinds are :class:`Exported`."""


def read_export(path: str | Path) -> Exported | ExportedOnnx | ExportedSavedModel:
    """Reads a folder that :func:`duotone.export` wrote, and checks its files.

    Without duotone, ``jax.export.deserialize`` reads ``program.jax``.

    Args:
        path: the folder.

    Returns:
        The exported program; an :class:`ExportedOnnx` for an ONNX model, an
        :class:`ExportedSavedModel` for a SavedModel.

    Raises:
        ArgumentTypeError: ``path`` is not a path.
        ArgumentError: there is no such folder, a file is missing or was changed, or a later
            version of duotone wrote it.

    Example:
        >>> import tempfile, jax.numpy as jnp, duotone
        >>> double = duotone.autocast(lambda x: x + x)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = duotone.export(double, jnp.ones(3), path=f"{folder}/double")
        ...     duotone.read_export(f"{folder}/double").call(jnp.ones(3))
        Array([2., 2., 2.], dtype=float32)
    """
    folder = path_of("read_export", "path", path)
    about = folder / DESCRIPTION
    try:
        description = json.loads(about.read_text(encoding="utf-8"))
        known = description["format"]
        files: Mapping[str, str] = description["files"]
    except OSError as error:
        raise ArgumentError(
            f"{about} cannot be read ({error.strerror}); name a folder that duotone.export wrote."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            f"{about} is not what duotone.export writes; export it again."
        ) from error
    if known != FORMAT:
        raise ArgumentError(
            f"{about} has format {known!r}, and this duotone reads {FORMAT}; update duotone."
        )
    for name, digest in files.items():
        file = folder / name
        if not file.is_file():
            raise ArgumentError(f"{file} is missing; copy the whole folder, or export it again.")
        if digest_of(file) != digest:
            raise ArgumentError(
                f"{file} was changed after it was written, or is cut short; export it again."
            )
    kind = _KINDS.get(description.get("kind"), Exported)
    return kind(folder, description)
