"""Compiler options with which the CPU backend of XLA runs half convolutions in oneDNN's kernels.

JAX's CPU wheels contain oneDNN, and XLA uses it only if a program is compiled with
:data:`ONEDNN`. The option is part of one ``jit``, so nothing else in the process changes. It also
changes which form of a dot is fast: :data:`duotone.devices.table.TABLE` has a row for each of both.
duotone therefore has to know, while it paints a program, whether the option will be on. It knows
so for a ``jit`` of its own (:func:`with_options`) and where the policy says it
(``Policy(compiler_options=True)``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from jaxlib import version

from duotone import _jax
from duotone.devices.assumed import assumed
from duotone.devices.half_choice import FAST_CPU_FLAGS, cpu_flags
from duotone.devices.half_type import default_device

ONEDNN = "xla_cpu_experimental_onednn_custom_call"
"""XLA's name of the option."""

_MEASURED = (0, 12)
"""The version of jaxlib in which it gains. Version 0.10 takes it and gains nothing."""


def compiler_options() -> dict[str, bool]:
    """Returns the options of ``jax.jit`` with which half convolutions are fast on this device.

    duotone sets them itself wherever it compiles a function, as in a call of
    ``duotone.autocast(step)`` outside of ``jax.jit``. For a ``jit`` of your own, pass them, and
    tell duotone so with ``Policy(compiler_options=True)``: the fastest form of a dot depends on
    them. The options were measured to gain on CPUs with bfloat16 instructions and jaxlib 0.12, in
    programs with convolutions (``docs/measured.md``).

    Returns:
        The argument ``compiler_options`` of ``jax.jit``; empty for GPUs, TPUs, other CPUs and
        other versions of jaxlib.

    Example:
        >>> import jax, jax.numpy as jnp, duotone
        >>> policy = duotone.Policy(compiler_options=True)
        >>> fast = duotone.autocast(lambda x: x @ x, policy=policy)
        >>> step = jax.jit(fast, compiler_options=duotone.compiler_options())
        >>> step(jnp.ones((2, 2))).dtype
        dtype('float32')
    """
    device = assumed() or default_device()
    measured = tuple(map(int, version.__version__.split(".")[:2])) == _MEASURED
    gains = device.platform == "cpu" and measured and bool(FAST_CPU_FLAGS & cpu_flags())
    return {ONEDNN: True} if gains else {}


@contextlib.contextmanager
def with_options() -> Iterator[None]:
    """Paints inside the block for programs that are compiled with :func:`compiler_options`."""
    with _jax.with_options(True):
        yield


def options_are_on() -> bool:
    """Returns True inside :func:`with_options`, if this device has options."""
    return _jax.with_options.value and bool(compiler_options())


def convolves(jaxpr: Any) -> bool:
    """Returns True if a program contains a convolution at any depth.

    Args:
        jaxpr: the program, or a parameter of an equation that holds programs.
    """
    if isinstance(jaxpr, (tuple, list)):
        return any(map(convolves, jaxpr))
    return any(
        eqn.primitive.name == "conv_general_dilated"
        or any(convolves(param) for param in eqn.params.values() if _jax.holds_jaxpr(param))
        for eqn in getattr(_jax.open_jaxpr(jaxpr), "eqns", ())
    )
