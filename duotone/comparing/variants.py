"""A function with duotone off, as it is, and with autocast: its forms, and how each is painted."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from duotone import _jax
from duotone.comparing.comparison import DUOTONE, FLOAT32, WRITTEN
from duotone.devices import mesh
from duotone.devices.assumed import AssumedDevice, assumed, assuming
from duotone.devices.specifications import Target
from duotone.errors import ArgumentError, CompilationError, way_out
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.reading.signature import describe_callable, flatten_call
from duotone.jaxpr.reading.trace import Traced, trace
from duotone.jaxpr.running.inside import holds_rewritten
from duotone.policy.arguments import check_callable, without_heal
from duotone.policy.dtypes import OFF
from duotone.policy.policy import Policy
from duotone.precision.record import Record
from duotone.transforms import autocast as api

_NOT_HANDED_ON = ("calibration", "target", "weights")
"""Arguments of what reads a form; a function's own of these names would not reach it."""
_ANY = AssumedDevice("any", "cpu")
"""For what is the same on every device."""


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """A function and the arguments of one call.

    Attributes:
        function: the function.
        args: arguments by position.
        kwargs: arguments by keyword.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """All its arguments."""
        return self.args, self.kwargs


class Forms:
    """The forms of a function.

    Attributes:
        name: of the function.
        settings: of one that ``autocast`` made; ``None`` for others.
    """

    def __init__(
        self,
        caller: str,
        step: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dtype: Any,
        policy: Policy | None,
    ) -> None:
        """Checks the arguments; traces nothing.

        Args:
            caller: the public function that was called, for errors.
            step: what it was called with, likewise below.
            args: arguments of ``step`` by position.
            kwargs: by keyword.
            dtype: of the form with autocast, as for :func:`duotone.autocast`.
            policy: likewise.
        """
        check_callable(caller, step)
        api.check_settings(caller, dtype, policy)
        for name in _NOT_HANDED_ON:
            if name in kwargs:
                raise ArgumentError(f"{caller}: {name} is not handed on; {way_out(name)}")
        described = describe_callable(step).removeprefix("autocast(").removesuffix(")")
        self.name = described.rpartition("<locals>.")[2]
        self.settings = api.settings_of(step)
        self._caller, self._dtype, self._policy = caller, dtype, policy
        self._forms = _forms(caller, step, args, kwargs, dtype, policy)
        self._records: dict[tuple[str, str, str], Record] = {}
        if not flatten_call(self.name, *self._forms[FLOAT32].call)[0]:
            raise ArgumentError(
                f"{caller}: {self.name} takes no array here, so there is nothing to trace; pass "
                "its arguments, arrays or jax.ShapeDtypeStruct"
            )

    def __getitem__(self, form: str) -> Form:
        """One of them: ``"float32"``, ``"as written"``, ``"duotone"``."""
        return self._forms[form]

    def same_as(self, target: Target) -> dict[str, str]:
        """The program that ``"as written"`` is the same as; empty if it is one of its own.

        Args:
            target: the device to trace for.
        """
        settings, form = self.settings, self._forms[WRITTEN]
        if settings is not None and not settings.off:
            asked = self._dtype is not None or self._policy is not None
            return {} if asked else {WRITTEN: DUOTONE}
        with assuming(target.device()):
            held = holds_rewritten(_traced(form).jaxpr)
        return {} if held else {WRITTEN: FLOAT32}

    def half(self, target: Target) -> str:
        """The half type with which duotone would calculate on a target; empty for none."""
        settings, dtype, policy = self.settings, self._dtype, self._policy
        if settings is not None and not settings.off:
            dtype = settings.dtype if dtype is None else dtype
            policy = settings.policy if policy is None else policy
        with assuming(target.device()):
            return api.half_name(self._caller, dtype, policy) or ""

    def record(self, target: Target, form: str) -> Record:
        """How a form is painted for a target; the same for targets that are painted alike."""
        device = _ANY if form == FLOAT32 else target.device()
        key = form, device.platform, device.compute_capability
        if key not in self._records:
            shape = self._forms[form]
            rewrites = bool(self.half(target)) if form == DUOTONE else self._own_half
            off = OFF if form == FLOAT32 or not rewrites else None
            with assuming(device):
                made = api.explain(shape.function, *shape.args, dtype=off, **shape.kwargs)
            self._records[key] = _with_own_half(made) if off else made
        return self._records[key]

    @property
    def _own_half(self) -> bool:
        """True if the function as it is was made by ``autocast`` and is not off."""
        return self.settings is not None and not self.settings.off

    @functools.cached_property
    def is_sharded(self) -> bool:
        """True if arguments or values inside lie on several devices."""
        call = self._forms[FLOAT32].call
        try:
            return bool(mesh.axes_of([*jax.tree.leaves(call), self.traced.jaxpr]))
        except CompilationError:  # over two meshes, or over none
            return True

    @functools.cached_property
    def traced(self) -> Traced:
        """The program without duotone."""
        return _traced(self._forms[FLOAT32])

    @functools.cached_property
    def memory(self) -> tuple[int, int, int]:
        """Bytes of arguments, of results, and of results that may reuse donated arguments."""
        jaxpr = self.traced.jaxpr
        opened = _jax.open_jaxpr(jaxpr)
        ins = [bytes_of(atom.aval) for atom in opened.invars]
        outs = sum(bytes_of(atom.aval) for atom in opened.outvars)
        donated = sum(ins[position] for position in _jax.donated_arguments(jaxpr))
        return sum(ins), outs, min(donated, outs)


def _forms(
    caller: str,
    step: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dtype: Any,
    policy: Policy | None,
) -> dict[str, Form]:
    """The function with duotone off, as it is, and with autocast."""
    settings = api.settings_of(step)
    function, given, mixed = step, args, step
    if settings is not None and settings.weights is not None:
        if dtype is not None or policy is not None:
            raise ArgumentError(
                f"{caller}: the function was made with weights=, for one dtype and policy; leave "
                "dtype and policy out"
            )
        function, given = settings.function, (settings.weights.stand_in, *args)
    elif settings is None or settings.off or dtype is not None or policy is not None:
        inner = step
        if settings is not None:
            inner = settings.function
            dtype = settings.dtype if dtype is None and not settings.off else dtype
            policy = settings.policy if policy is None else policy
        mixed = api.autocast(inner, dtype=dtype, policy=without_heal(policy))
    return {
        FLOAT32: Form(without_duotone(function), given, kwargs),
        WRITTEN: Form(step, args, kwargs),
        DUOTONE: Form(mixed, args, kwargs),
    }


def without_duotone(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function in which nothing is rewritten, not inside of it either.

    Args:
        function: any; one that :func:`duotone.autocast` returned counts as it was before.
    """

    @functools.wraps(function, updated=())
    def plainly(*args: Any, **kwargs: Any) -> Any:
        with assuming(dataclasses.replace(assumed() or _ANY, rewrites=False)):
            return function(*args, **kwargs)

    return plainly


def _traced(form: Form) -> Traced:
    arrays, signature = flatten_call(describe_callable(form.function), *form.call)
    return trace(form.function, signature, arrays)


def _with_own_half(record: Record) -> Record:
    """The record of a program as written, with the half type that it or what is inside has."""
    named = (name for o in record.operations for name in (o.dtype, *o.operands))
    half = next((name for name in named if name in HALF_TYPES), record.summary.half_dtype)
    summary = dataclasses.replace(record.summary, half_dtype=half)
    return dataclasses.replace(record, summary=summary)


def bytes_of(aval: Any) -> int:
    """Bytes of an array; 0 of what has no fixed size."""
    size, dtype = getattr(aval, "size", 0), getattr(aval, "dtype", None)
    return size * getattr(dtype, "itemsize", 0) if isinstance(size, int) else 0
