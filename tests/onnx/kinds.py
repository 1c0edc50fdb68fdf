"""Small models of the kinds in which half precision gives wrong numbers, and how to measure them.

Each function that :func:`kind` registers returns a model in ONNX's text form, its weights, and
inputs. :func:`error_of` rewrites one and measures its error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import duotone.onnx
from duotone.onnx import running
from duotone.onnx.exposing import rounded
from tests.onnx.models import model

Kind = tuple[str, dict[str, Any], dict[str, Any]]
KINDS: dict[str, dict[str, Callable[[], Kind]]] = {}


def kind(group: str) -> Callable[[Callable[[], Kind]], Callable[[], Kind]]:
    """Registers a kind of model in a group, by the name of its function."""

    def register(make: Callable[[], Kind]) -> Callable[[], Kind]:
        KINDS.setdefault(group, {})[make.__name__] = make
        return make

    return register


def built(text: str, weights: dict[str, Any], opset: int = 20) -> onnx.ModelProto:
    """A model from its text and its weights."""
    made = model(text, opset=opset, ir=9)
    for name, array in weights.items():
        made.graph.initializer.append(numpy_helper.from_array(_plain(array), name))
    return made


def _plain(array: Any) -> np.ndarray:
    found = np.asarray(array)
    return found.astype(np.float32) if found.dtype == np.float64 else found


def run(made: onnx.ModelProto, feed: dict[str, Any]) -> list[np.ndarray]:
    """The results of a model, all of whose half values are rounded, as on a GPU."""
    return running.run(running.session(rounded(made) or made), None, feed)


def differs(expected: Any, found: Any) -> float:
    """The largest difference relative to the largest element; infinite where one is not finite."""
    a, b = (np.asarray(array, np.float64) for array in (expected, found))
    if a.shape != b.shape or (np.isfinite(a) != np.isfinite(b)).any():
        return float("inf")
    finite = np.isfinite(a)
    scale = np.max(np.abs(a), initial=0.0, where=finite) or 1.0
    return float(np.max(np.abs(a - b), initial=0.0, where=finite) / scale)


def error_of(before: onnx.ModelProto, feed: dict[str, Any], **options: Any) -> float:
    """The error of the worst result of a rewritten model."""
    after = duotone.onnx.rewrite(before, **options).model
    return max(map(differs, run(before, feed), run(after, feed)))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def smooth(*shape: int, seed: int = 0) -> np.ndarray:
    """An image without sharp edges: a small displacement changes little."""
    waves = normal(*shape[:-2], 4, 4, seed=seed)
    y, x = (np.linspace(0, 1, side) for side in shape[-2:])
    rows, columns = (np.sin(np.outer(side, np.arange(1, 5)) * 9) for side in (y, x))
    return np.einsum("...ij,yi,xj->...yx", waves, rows, columns).astype(np.float32) / 4
