"""``duotone.compile_for`` compiles a function for a device that need not be present.

The steps are: find the target, trace and lower for it, compile, read the program, count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from duotone.cost import cost_view as view
from duotone.cost.compiled_record import ProgramCost
from duotone.devices.assumed import assuming
from duotone.devices.specifications import Target, find_target
from duotone.jaxpr.running.own_jit import own_jit
from duotone.policy.arguments import check_callable
from duotone.transforms.inference import with_weights


class CompiledRecord(ProgramCost):
    """The cost of one call of a compiled program.

    See :class:`duotone.cost.compiled_record.ProgramCost` for the fields. ``print`` shows a table,
    :meth:`to_json` gives data, and ``kernels`` is a list of small records.
    """

    def __str__(self) -> str:
        return view.render(self)

    def __rich__(self) -> Any:
        return view.table(self)


def compile_for(
    fn: Callable[..., Any], *args: Any, target: str | Target = "h200", **kwargs: Any
) -> CompiledRecord:
    """Compiles a function for a device and reports the cost of one call there.

    The device need not be present: with ``pip install 'duotone[cuda]'`` any machine compiles for
    GPUs, with ``duotone[tpu]`` for TPUs. Nothing runs and nothing is allocated.

    If arguments are sharded over a mesh (``jax.ShapeDtypeStruct(..., sharding=NamedSharding(mesh,
    spec))``), or the function names a mesh, the program is compiled for that many devices of the
    target, connected like those of one host or slice. The mesh may contain any devices or be
    abstract. All figures then describe one device, and ``collectives`` lists the bytes it sends.

    Args:
        fn: a function; one that ``jax.jit`` returned, which keeps its donation and static
            arguments; or one that :func:`duotone.autocast` returned, which is painted for the
            target and compiled as in a call outside of ``jax.jit``.
        *args: its arguments: arrays or ``jax.ShapeDtypeStruct``.
        target: the name of a device, such as ``"h100"``, ``"v5e"`` or ``"cpu"`` (this machine's
            CPU; ``docs/targets.md`` lists them all), or a :class:`Target`.
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
    cost = compile_program(fn, args, kwargs, found, own_jit)
    return CompiledRecord(
        **{field.name: getattr(cost, field.name) for field in dataclasses.fields(cost)}
    )
