"""NVTX ranges on the host: each call of a rewritten function, and its rewriting.

NVIDIA's containers pushed a range for each operation of a TensorFlow graph. In JAX operations run
inside of compiled programs, for which XLA itself pushes ranges while Nsight Systems looks on, named
by the operations, whose name scopes a rewrite keeps. What is left is what Python does::

    f                          a call of ``duotone.autocast(f)`` from Python
    f(float32[8,4], …)         the same with DUOTONE_NVTX=detailed
    rewrite f                  tracing, painting and rewriting, at the first call of a signature

Inside of a function that is jitted no Python runs, and no range is pushed, but while it is traced.
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
    """Reads the environment: whether there are ranges, with details, and whether by name.

    Args:
        environ: variable names and values.

    Returns:
        Whether ranges are wanted, whether with shapes, and whether anybody asked for them.

    Raises:
        EnvironmentVariableError: a variable holds a value that it does not take.

    Example:
        >>> level({}), level({"TF_DISABLE_NVTX_RANGES": "1"}), level({"DUOTONE_NVTX": "detailed"})
        ((True, False, False), (False, False, False), (True, True, True))
    """
    own = environ.get(NVTX)
    if own is not None:
        said = own.strip().lower()
        if said not in ("0", "1", "false", "true", "detailed"):
            raise environment_error(NVTX, own, "not one of them", _TAKES)
        wanted = said not in ("0", "false")
        return wanted, said == "detailed", wanted
    detailed = parse_boolean(DETAILED, environ.get(DETAILED, "0"))
    off = parse_boolean(DISABLE, environ.get(DISABLE, "0"))
    return not off, detailed and not off, detailed and not off


@functools.cache
def _annotate() -> tuple[Callable[..., Any] | None, bool]:
    """NVTX's context for a range, or None where there are none; and whether with details."""
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
    """A context around a call of a function.

    Args:
        name: of the function.
        args: of the call; with details their types are told.
        kwargs: likewise.
    """
    annotate, detailed = _annotate()
    if annotate is None:
        return _NOTHING
    told = f"({_types((args, kwargs))})" if detailed else ""
    return annotate(message=f"{name}{told}", domain=_DOMAIN)


def rewrite_range(name: str) -> Any:
    """A context around the rewriting of a function.

    Args:
        name: of the function.
    """
    annotate, _ = _annotate()
    return _NOTHING if annotate is None else annotate(message=f"rewrite {name}", domain=_DOMAIN)


def _types(tree: Any) -> str:
    """The types of the arrays among arguments."""
    arrays = [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape")]
    return ", ".join(f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in arrays)
