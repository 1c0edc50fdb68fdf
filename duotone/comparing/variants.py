"""The forms of a function (duotone off, as written, with autocast), and how each is painted."""

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

_RESERVED = ("calibration", "target", "weights")
"""Arguments of functions such as ``explain``, which would not pass them to the user's function."""
_ANY = AssumedDevice("any", "cpu")
"""The device of programs that are the same on every device."""


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """A function and the arguments of one call."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments."""
        return self.args, self.kwargs


class Forms:
    """The forms of a function.

    Attributes:
        name: the name of the function.
        settings: the settings of a function that ``autocast`` made; ``None`` for others.
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
        """Checks the arguments of the public function ``caller``; traces nothing."""
        check_callable(caller, step)
        api.check_settings(caller, dtype, policy)
        for name in _RESERVED:
            if name in kwargs:
                raise ArgumentError(
                    f"{caller}: {name} is not passed to the function; {way_out(name)}"
                )
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
        """Returns a form: ``"float32"``, ``"as written"`` or ``"duotone"``."""
        return self._forms[form]

    def same_as(self, target: Target) -> dict[str, str]:
        """Returns the form that has the same program as ``"as written"``; empty if none has."""
        settings, form = self.settings, self._forms[WRITTEN]
        if settings is not None and not settings.off:
            asked = self._dtype is not None or self._policy is not None
            return {} if asked else {WRITTEN: DUOTONE}
        with assuming(target.device()):
            is_rewritten = holds_rewritten(_traced(form).jaxpr)
        return {} if is_rewritten else {WRITTEN: FLOAT32}

    def half(self, target: Target) -> str:
        """Returns the half type that duotone would use on a target; empty for none."""
        settings, dtype, policy = self.settings, self._dtype, self._policy
        if settings is not None and not settings.off:
            dtype = settings.dtype if dtype is None else dtype
            policy = settings.policy if policy is None else policy
        with assuming(target.device()):
            return api.half_name(self._caller, dtype, policy) or ""

    def record(self, target: Target, form: str) -> Record:
        """Returns the record of a form on a target; targets with one painting share the record."""
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
        """True if ``autocast`` made the user's function and is not switched off."""
        return self.settings is not None and not self.settings.off

    @functools.cached_property
    def is_sharded(self) -> bool:
        """True if arguments or inner values are sharded over several devices."""
        call = self._forms[FLOAT32].call
        try:
            return bool(mesh.axes_of([*jax.tree.leaves(call), self.traced.jaxpr]))
        except CompilationError:  # over two meshes, or over none
            return True

    @functools.cached_property
    def traced(self) -> Traced:
        """The traced program without duotone."""
        return _traced(self._forms[FLOAT32])

    @functools.cached_property
    def memory(self) -> tuple[int, int, int]:
        """Bytes of the arguments, of the results, and of results that may reuse donated ones."""
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
    """Makes the function with duotone off, as written, and with autocast."""
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
    """Returns a function that runs without any rewrite, also in the functions that it calls."""

    @functools.wraps(function, updated=())
    def unrewritten(*args: Any, **kwargs: Any) -> Any:
        with assuming(dataclasses.replace(assumed() or _ANY, rewrites=False)):
            return function(*args, **kwargs)

    return unrewritten


def _traced(form: Form) -> Traced:
    arrays, signature = flatten_call(describe_callable(form.function), *form.call)
    return trace(form.function, signature, arrays)


def _with_own_half(record: Record) -> Record:
    """Sets the half type of a record to the first one that its operations have."""
    named = (name for o in record.operations for name in (o.dtype, *o.operands))
    half = next((name for name in named if name in HALF_TYPES), record.summary.half_dtype)
    summary = dataclasses.replace(record.summary, half_dtype=half)
    return dataclasses.replace(record, summary=summary)


def bytes_of(aval: Any) -> int:
    """Returns the bytes of an array; 0 if its size is not fixed."""
    size, dtype = getattr(aval, "size", 0), getattr(aval, "dtype", None)
    return size * getattr(dtype, "itemsize", 0) if isinstance(size, int) else 0
