"""``duotone.compile_for``: what a compiler makes of a function on a device that need not be there.

The road is short: find the target, trace and lower for it, compile, read the program, count. Each
step is a file of :mod:`duotone.devices`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from duotone.cost import cost_view as view
from duotone.cost.compiled_record import ProgramCost
from duotone.devices.assumed import assuming
from duotone.devices.specifications import Target, find_target
from duotone.policy.arguments import check_callable
from duotone.transforms.inference import with_weights


class CompiledRecord(ProgramCost):
    """The cost of one call of a compiled program.

    The fields are those of :class:`duotone.cost.compiled_record.ProgramCost`.

    ``print`` shows a table; :meth:`to_json` gives data; ``kernels`` is a list of small records.
    """

    def __str__(self) -> str:
        return view.render(self)

    def __rich__(self) -> Any:
        return view.table(self)


def compile_for(
    fn: Callable[..., Any], *args: Any, target: str | Target = "h200", **kwargs: Any
) -> CompiledRecord:
    """Compiles a function for a device and says what one call of it costs there.

    The device need not be present: with ``pip install 'duotone[cuda]'`` any machine compiles for
    GPUs, with ``duotone[tpu]`` for TPUs. Nothing runs and nothing is allocated.

    Arguments that are sharded over a mesh (``jax.ShapeDtypeStruct(..., sharding=NamedSharding(mesh,
    spec))``), or a function that names one inside, are compiled for as many devices of the target,
    connected as those of one host or slice. The mesh may be of any devices, or abstract; all
    figures are then those of one device, and ``collectives`` are what it sends.

    Args:
        fn: a function, one that ``jax.jit`` returned (its donation and static arguments are kept)
            or one that :func:`duotone.autocast` returned (it is painted for the target, not for the
            device at hand).
        *args: its arguments: arrays, or ``jax.ShapeDtypeStruct`` in their place.
        target: ``"b200"``, ``"h200"``, ``"h100"``, ``"a100"``, ``"l40s"``, ``"l4"``, ``"a10"``,
            ``"rtx4090"``, ``"v100"``, ``"t4"``, ``"v5e"``, ``"v5p"``, ``"v6e"``, ``"cpu"`` (the CPU
            at hand), or a :class:`Target`.
        **kwargs: its keyword arguments. For a function that has one named ``target`` itself, pass
            ``functools.partial(fn, target=...)``.

    Returns:
        A record; print it for a table.

    Raises:
        UnknownTargetError: no such target.
        MissingExtraError: its compiler is not installed.
        CompilationError: its compiler refused the program.
        ArgumentTypeError: ``fn`` is not callable.

    Example:
        >>> import jax, jax.numpy as jnp, duotone
        >>> x = jax.ShapeDtypeStruct((64, 32), jnp.float32)
        >>> seen = duotone.compile_for(lambda x: x @ x.T, x, target="cpu")
        >>> seen.total_flops == 2 * 64 * 64 * 32
        True
    """
    check_callable("compile_for", fn)
    from duotone.cost.compile import compile_program

    found = find_target(target)
    with assuming(found.device()):
        fn, args, kwargs = with_weights(fn, args, kwargs)
    cost = compile_program(fn, args, kwargs, found)
    return CompiledRecord(
        **{field.name: getattr(cost, field.name) for field in dataclasses.fields(cost)}
    )
