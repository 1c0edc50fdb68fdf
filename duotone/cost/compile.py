"""Compiles a function for a target, present or not.

It traces the function for the target (see :mod:`duotone.devices.assumed`), lowers it for the
target's platform and compiles it with the compiler in JAX's plugin for it. It runs nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from duotone import _jax
from duotone.cost.compiled_record import ProgramCost
from duotone.cost.cost_of_program import cost_of
from duotone.cost.hlo import parse
from duotone.devices import mesh, topology
from duotone.devices.assumed import assuming
from duotone.devices.specifications import Target
from duotone.errors import CompilationError


def compile_program(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    target: Target,
    jit: Callable[..., Any] = jax.jit,
) -> ProgramCost:
    """Compiles a function for a target, and computes the cost of one call.

    Raises:
        MissingExtraError: the compiler of the target is not installed.
        CompilationError: the compiler, or JAX for its platform, refused the program.
    """
    begun = time.perf_counter()
    notes: list[str] = []
    found, compiled = _compiled(fn, args, kwargs, target, jit, notes)
    text = _text_of(compiled, target)
    totals = cost_of(parse(text), target)
    memory = compiled.memory_analysis()
    return ProgramCost(
        target=target.name,
        device=found.devices[0].device_kind,
        compiled_on_device=found.present,
        compiler_seconds=_compiler_seconds(compiled),
        argument_bytes=getattr(memory, "argument_size_in_bytes", 0),
        output_bytes=getattr(memory, "output_size_in_bytes", 0),
        alias_bytes=getattr(memory, "alias_size_in_bytes", 0),
        temporary_bytes=getattr(memory, "temp_size_in_bytes", 0),
        compile_seconds=time.perf_counter() - begun,
        text=text,
        **totals._replace(notes=(*notes, *totals.notes))._asdict(),
    )


def _compiled(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    target: Target,
    jit: Callable[..., Any],
    notes: list[str],
) -> tuple[topology.CompileDevices, Any]:
    """Compiles the program for the device, or for as many devices as its shardings name."""
    leaves = jax.tree.leaves((args, kwargs))
    axes = mesh.axes_of([leaf for leaf in leaves if isinstance(leaf, _ARRAYS)])
    found = topology.find(target)
    with assuming(target.device()):
        # Options of `jit`, `shard_map` or a constraint may name several devices too. A program
        # whose outermost `jit` names them cannot be placed on one device.
        inside = axes or (_jax.is_jitted(fn) and not _jax.has_compiler_options(fn))
        whole = _whole(fn, args, kwargs) if inside else None
        if not axes and whole is not None:
            axes = mesh.axes_of([whole.jaxpr])
        if not axes:
            sharding = jax.sharding.SingleDeviceSharding(found.devices[0])
            traced = _trace(fn, args, kwargs, sharding, jit)
            axes = mesh.axes_of([traced.jaxpr])
            if not axes:
                return found, _compile(traced, target, found, notes)
        found = topology.find(target, math.prod(size for _, size in axes))
        whole = whole or _whole(fn, args, kwargs)
        return found, _compile(_trace_over(whole, axes, found), target, found, notes)


_NO_TILES = "Couldn't find output tile sizes"
"""XLA's own error about a dot for which Triton has no tiles; autotuning on the device avoids it."""
_WITHOUT_TRITON = {"xla_gpu_enable_triton_gemm": False}


def _compile(traced: Any, target: Target, found: topology.CompileDevices, notes: list[str]) -> Any:
    """Compiles a traced function, and notes where the result differs from the device's."""
    lowered = _lower(traced, target)
    options = {**found.options, **target.options}
    try:
        try:
            return lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            if found.present or _NO_TILES not in str(error) or options.keys() & _WITHOUT_TRITON:
                raise
        compiled = lowered.compile(compiler_options={**options, **_WITHOUT_TRITON})
    except jax.errors.JaxRuntimeError as error:
        raise CompilationError(
            f"the compiler for {target.name} refused the program: {error}"
        ) from error
    notes.append("XLA fails here with Triton's dots, which a device would try out: without them")
    return compiled


class _Whole(NamedTuple):
    """A function, traced with the shardings of its arguments."""

    name: str
    arrays: list[Any]
    jaxpr: Any


def _whole(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Whole:
    program, arrays = _flat(fn, args, kwargs)
    # If the axes are explicit, the types of the arguments contain their shardings.
    own = [mesh.shape_on(leaf, mesh.sharding_of(leaf)) for leaf in arrays]
    return _Whole(program.__name__, arrays, jax.jit(program).trace(*own).jaxpr)


def _trace_over(whole: _Whole, axes: mesh.Axes, found: topology.CompileDevices) -> Any:
    """Returns the traced function, whose mesh is replaced by one of the target's devices."""
    devices = mesh.mesh_like(axes, found.devices, [*whole.arrays, whole.jaxpr])
    donated = _jax.donated_arguments(whole.jaxpr)
    moved = _jax.named(mesh.over(whole.jaxpr, devices), whole.name)
    with jax.set_mesh(devices):
        on = [mesh.placed(leaf, devices) for leaf in whole.arrays]
        return jax.jit(moved, donate_argnums=donated).trace(*on)


def _text_of(compiled: Any, target: Target) -> str:
    """Returns the scheduled program."""
    try:
        text = compiled.as_text()
    except jax.errors.JaxRuntimeError as error:
        raise CompilationError(
            f"JAX cannot read the program that the compiler for {target.name} made ({error}); this "
            "compiler may be newer than JAX: install the one that JAX's own extra names."
        ) from error
    if text is None:
        raise CompilationError(f"the compiler for {target.name} gives no program text")
    return text


def _lower(traced: Any, target: Target) -> Any:
    """Returns the program of a traced function for the platform of a target."""
    try:
        return traced.lower(lowering_platforms=(target.platform,))
    except RuntimeError as error:
        callbacks = "Unknown backend" in str(error)
        remedy = (
            ": JAX lowers what calls back into Python (jax.debug.print, jax.pure_callback) only "
            "where the device is present; leave it out for this target."
        )
        raise CompilationError(
            f"the program cannot be lowered for {target.name} ({error})"
            + (remedy if callbacks else "")
        ) from error


def _trace(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    sharding: jax.sharding.Sharding,
    jit: Callable[..., Any],
) -> Any:
    """Traces ``fn`` with ``jit``, with all its arrays on the target.

    A jitted function is traced itself, so that its options apply. For another function,
    arguments that are not arrays (a number, a string) are constants, as in ``duotone.autocast``.
    """
    if _jax.is_jitted(fn):
        leaves, tree = jax.tree.flatten((args, kwargs))
        placed = [
            mesh.shape_on(leaf, sharding) if isinstance(leaf, _ARRAYS) else leaf for leaf in leaves
        ]
        if any(isinstance(leaf, _ARRAYS) for leaf in leaves):
            args, kwargs = jax.tree.unflatten(tree, placed)
            return fn.trace(*args, **kwargs)  # pyright: ignore[reportFunctionMemberAccess]
    program, arrays = _flat(fn, args, kwargs)
    on = [mesh.shape_on(leaf, sharding) for leaf in arrays]
    traced = jit(program, out_shardings=sharding).trace(*on)
    # JAX heeds donation on the outermost `jit` only; of an autocast function it is on an inner one.
    if donated := _jax.donated_arguments(traced.jaxpr):
        traced = jit(program, out_shardings=sharding, donate_argnums=donated).trace(*on)
    return traced


def _flat(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., list[Any]], list[Any]]:
    """Returns ``fn`` as a function of its arrays, other arguments constant, and the arrays."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    # A NumPy scalar may be a static argument of a jitted function.
    kinds = _ARRAYS if _jax.is_jitted(fn) else (*_ARRAYS, np.generic)
    positions = [position for position, leaf in enumerate(leaves) if isinstance(leaf, kinds)]

    def program(*given: Any) -> list[Any]:
        traced = dict(zip(positions, given, strict=True))
        placed = [traced.get(position, leaf) for position, leaf in enumerate(leaves)]
        args, kwargs = jax.tree.unflatten(tree, placed)
        return [leaf for leaf in jax.tree.leaves(fn(*args, **kwargs)) if _is_result(leaf)]

    program.__name__ = program.__qualname__ = getattr(fn, "__name__", type(fn).__name__)
    return program, [leaves[position] for position in positions]


_ARRAYS = (jax.Array, np.ndarray, jax.ShapeDtypeStruct)


def _is_result(leaf: Any) -> bool:
    """Checks if a returned leaf is computed; a name or a number is not part of the program."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def _compiler_seconds(compiled: Any) -> float | None:
    """Returns the compiler's own estimate of the run time, if it makes one."""
    try:
        analysis = compiled.cost_analysis()
    except (jax.errors.JaxRuntimeError, NotImplementedError):
        return None
    if isinstance(analysis, list):
        analysis = analysis[0] if analysis else None
    seconds = (analysis or {}).get("optimal_seconds")
    # Below zero: an operation was among them of which the compiler has no estimate.
    return seconds if seconds is not None and seconds >= 0 else None
