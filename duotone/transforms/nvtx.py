"""NVTX ranges on the host around each call of a rewritten function and around each rewrite.

NVIDIA's containers pushed a range for each operation of a TensorFlow graph. JAX runs operations in
compiled programs. Under Nsight Systems, XLA itself pushes a range for each operation, named by the
name scope that the rewrite keeps. This module adds ranges for the work in Python::

    f                          a call of ``duotone.autocast(f)`` from Python
    f(float32[8,4], …)         the same with DUOTONE_NVTX=detailed
    rewrite f                  tracing, painting and rewriting, at the first call of a signature

A function inside ``jax.jit`` runs Python only while it is traced, so it pushes ranges only then.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax

from duotone.policy.environment import NVTX, environment_error, parse_boolean

logger = logging.getLogger("duotone")

DISABLE = "TF_DISABLE_NVTX_RANGES"
DETAILED = "TF_ENABLE_NVTX_RANGES_DETAILED"
_DOMAIN = "duotone"
_TAKES = "0, 1 or detailed"
_NOTHING = contextlib.nullcontext()


def level(environ: Mapping[str, str]) -> tuple[bool, bool, bool]:
    """Reads from the environment which ranges the user wants.

    Args:
        environ: variable names and values.

    Returns:
        Three booleans: push ranges; put shapes into their names; a variable asks for ranges
        explicitly.

    Raises:
        EnvironmentVariableError: a variable holds a value that it does not take.

    Example:
        >>> level({}), level({"TF_DISABLE_NVTX_RANGES": "1"}), level({"DUOTONE_NVTX": "detailed"})
        ((True, False, False), (False, False, False), (True, True, True))
    """
    own = environ.get(NVTX)
    if own is not None:
        word = own.strip().lower()
        if word not in ("0", "1", "false", "true", "detailed"):
            raise environment_error(NVTX, own, "not one of them", _TAKES)
        wanted = word not in ("0", "false")
        return wanted, word == "detailed", wanted
    detailed = parse_boolean(DETAILED, environ.get(DETAILED, "0"))
    off = parse_boolean(DISABLE, environ.get(DISABLE, "0"))
    return not off, detailed and not off, detailed and not off


@functools.cache
def _annotate() -> tuple[Callable[..., Any] | None, bool]:
    """Returns NVTX's context for a range, or ``None`` without ranges; and whether with details."""
    wanted, detailed, asked = level(os.environ)
    if not wanted:
        return None, False
    try:
        return importlib.import_module("nvtx").annotate, detailed
    except ImportError:
        if asked:
            logger.warning(
                "no NVTX ranges: the library nvtx is not installed: "
                "python -m pip install 'duotone[nvtx]'"
            )
        return None, False


def call_range(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Returns a context around a call of a function; details are the types of arguments."""
    annotate, detailed = _annotate()
    if annotate is None:
        return _NOTHING
    types = f"({_types((args, kwargs))})" if detailed else ""
    return annotate(message=f"{name}{types}", domain=_DOMAIN)


def rewrite_range(name: str) -> Any:
    """Returns a context around the rewrite of a function."""
    annotate, _ = _annotate()
    return _NOTHING if annotate is None else annotate(message=f"rewrite {name}", domain=_DOMAIN)


def _types(tree: Any) -> str:
    """Returns the types of the arrays among arguments."""
    arrays = [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape")]
    return ", ".join(f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in arrays)
