"""Compiler options with which the CPU backend of XLA runs half convolutions in oneDNN's kernels.

JAX's CPU wheels contain oneDNN, and XLA uses it only if a program is compiled with
:data:`ONEDNN`. The option is part of one ``jit``, so nothing else in the process changes. It also
changes which form of a dot is fast: :data:`duotone.devices.table.TABLE` has one row with the option
and one without.
Therefore duotone must know, while it paints a program, whether the option will be on. It knows this
for its own ``jit`` functions (:mod:`duotone.jaxpr.running.own_jit`). For a ``jit`` of the user, the
policy states it (``Policy(compiler_options=True)``).
"""

from __future__ import annotations

import contextlib

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

    duotone sets them itself if it compiles a function that gains from them, as in a call of
    ``duotone.autocast(step)`` outside of ``jax.jit`` or in Keras' ``fit``;
    ``Policy(compiler_options=False)`` switches that off. For a ``jit`` of your own, pass them and
    set ``Policy(compiler_options=True)``, since the fastest form of a dot depends on them. The
    options were measured to gain on CPUs with bfloat16 instructions and jaxlib 0.12, in programs
    with convolutions (``docs/measured.md``).

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


def painting_for(options: bool | None) -> contextlib.AbstractContextManager[None]:
    """Paints inside the block for a program that duotone compiles with or without the options.

    Args:
        options: whether it is compiled with :func:`compiler_options`; ``None`` if duotone does not
            compile it, or as part of another program.
    """
    return contextlib.nullcontext() if options is None else _jax.compiled_with_options(options)


def options_of(asked: bool | None) -> bool | None:
    """Returns whether the program that is painted now is compiled with the device's options.

    Args:
        asked: ``Policy.compiler_options``.

    Returns:
        True or False; ``None`` if it is not, and only because a ``jit`` of the user lacks them.
    """
    if asked is False or not compiler_options():
        return False
    own = _jax.compiled_with_options.value
    return own if own is not None else asked
