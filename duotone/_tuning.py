"""``duotone.tune``: a search over what duotone chooses, with a device's compiler as the judge.

::

    duotone's own choice ─► compile ─► the best so far
    each change on top of it, dearest operations first:
        without a reform, with one that the device does not have by default,
        float32 for a class of name scopes (layer_0, layer_1 … are one class)
    compile; better and no more memory: it is the best so far
    again from the first change while something was kept and time is left

Nothing that a change can do makes a result less exact: reforms that are there for exactness stay,
and what stays full is float32. Who calls this: users, and ``duotone tune``. What goes wrong: no
compiler for the target, a function that holds rewritten parts.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from duotone import api
from duotone._forms import Forms
from duotone._tuned import Tuned
from duotone.compiled import CompiledRecord, compile_for
from duotone.errors import ArgumentError, ArgumentTypeError, CompilationError, shown
from duotone.graph.graph import HALF_TYPES
from duotone.graph.ranges import fingerprint
from duotone.graph.record import Record
from duotone.graph.reforms.registry import REFORMS
from duotone.jaxpr.reading.build import build
from duotone.policy import Policy
from duotone.targets.assumed import assuming
from duotone.targets.comparison import DUOTONE
from duotone.targets.forms import DeviceForms, current_forms
from duotone.targets.specifications import Target, find_target
from duotone.views.tuned import Trial

Judge = Literal["seconds", "bytes"]
_EXACT = frozenset({"weight_gradients", "firm_roots"})
"""Reforms that are there for exactness: they stay."""
_ANYWHERE = frozenset(
    "trilinear picks factors hold_widened hold_parts dot_orders "
    "free_scales row_statistics hold_rows".split()
)
"""Reforms that are exact on every device, and may be added where a device has them not."""
_LEAST_GAIN = 1e-3
"""Share of the cost below which two programs cost the same."""
_MOST_SCOPES = 8
_SCOPE_SHARE = (0.005, 0.5)
"""Shares of the bytes in half: a class of name scopes with less is not worth a compilation, one
with more is most of the program."""


class Change(NamedTuple):
    """One thing to try.

    Attributes:
        name: for people.
        reform: to be switched; empty for none.
        pattern: of names that are to stay full; empty for none.
    """

    name: str
    reform: str = ""
    pattern: str = ""

    def of(self, tuned: Tuned) -> Tuned:
        """A choice with this changed."""
        if self.reform:
            return dataclasses.replace(tuned, reforms=tuned.reforms ^ {self.reform})
        return dataclasses.replace(tuned, keep_full=(*tuned.keep_full, self.pattern))


def tune(
    step: Callable[..., Any],
    *args: Any,
    target: str | Target,
    dtype: Any = None,
    policy: Policy | None = None,
    minutes: float = 10.0,
    by: Judge = "seconds",
    on_trial: Callable[[Trial], None] | None = None,
    **kwargs: Any,
) -> Tuned:
    """Searches for the switches with which a function costs least on a device.

    The device need not be present, its compiler must be (``duotone[cuda]``, ``duotone[tpu]``; that
    of the CPU always is). Nothing runs. The result is never worse than duotone's own choice, by the
    compiled program: a change is kept if the program costs less and needs no more memory.

    Args:
        step: a function, jitted or not, or one that :func:`duotone.autocast` returned.
        *args: its arguments: arrays, or ``jax.ShapeDtypeStruct`` in their place.
        target: a name as for :func:`duotone.compile_for`, or a :class:`duotone.Target`.
        dtype: as for :func:`duotone.autocast`; ``None`` takes the one that is fast on the target.
        policy: the policy to start from; it is to be used with the result.
        minutes: that the search may take; a compilation that began is carried to its end.
        by: what is to be least: ``"seconds"``, as :func:`duotone.compile_for` estimates them
            (``"bytes"`` where nothing is known of the device's speed), or ``"bytes"``.
        on_trial: called with each :class:`~duotone.views.tuned.Trial` as it is done.
        **kwargs: keyword arguments of ``step``.

    Returns:
        A record: print it, ``save`` it, and paint with ``Policy(tuned=record)``.

    Raises:
        ArgumentError: no half type is fast on the target (name one with ``dtype``), the function
            holds rewritten parts, or ``minutes`` is not positive.
        ArgumentTypeError: ``step`` is not callable, or ``minutes`` is no number.
        UnknownTargetError, MissingExtraError, CompilationError: as for
            :func:`duotone.compile_for`.

    Example:
        >>> import jax, jax.numpy as jnp, duotone
        >>> x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        >>> found = duotone.tune(lambda x: jnp.tanh(x @ x), x, target="cpu", dtype="float16")
        >>> found.trials[0].change
        "duotone's own choice"
        >>> fast = duotone.autocast(
        ...     lambda x: jnp.tanh(x @ x), dtype="float16", policy=duotone.Policy(tuned=found)
        ... )
    """
    if isinstance(minutes, bool) or not isinstance(minutes, (int, float)):
        raise ArgumentTypeError(f"tune: minutes is {shown(minutes)}; pass a number")
    if not minutes > 0:
        raise ArgumentError(f"tune: minutes is {minutes}; pass a number above 0")
    if by not in ("seconds", "bytes"):
        raise ArgumentError(f"tune: by is {shown(by)}; pass 'seconds' or 'bytes'")
    search = Search(step, args, kwargs, find_target(target), dtype, policy, by)
    end = time.monotonic() + 60.0 * minutes
    for trial in search.trials(lambda: end - time.monotonic()):
        if on_trial is not None:
            on_trial(trial)
    return search.best


class Search:
    """The search for one function and device.

    Attributes:
        best: the best choice so far, with all trials.
        changes: what is tried, in order.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        target: Target,
        dtype: Any,
        policy: Policy | None,
        by: Judge,
    ) -> None:
        """Paints the function; compiles nothing. See :func:`tune`."""
        forms = Forms("tune", step, args, kwargs, dtype, policy)
        _check(forms, target)
        settings = forms.settings
        self._step = step if settings is None else settings.function
        self._args, self._kwargs, self._target, self._by = args, kwargs, target, by
        held = settings.policy if settings is not None and policy is None else policy
        self._policy = held or Policy()
        if self._policy.tuned is not None:
            raise ArgumentError("tune: the policy is tuned already; pass the one before")
        half = forms.half(target)
        if not half:
            raise ArgumentError(
                f"tune: no half type is fast on {target.name}, so duotone leaves the function "
                "alone; name one with dtype="
            )
        with assuming(target.device()):
            device = current_forms(half)
        graph = build(forms.traced.jaxpr).graph
        removed = self._policy.merged_with_environment().reforms_remove
        self.best = Tuned(
            forms.name, fingerprint(graph), target.name, device.device, half, device.reforms
        )
        self.changes = tuple(_changes(forms.record(target, DUOTONE), device, removed))
        self._costs: dict[tuple[Any, ...], CompiledRecord | None] = {}

    def trials(self, left: Callable[[], float]) -> Iterator[Trial]:
        """Tries one change after the other; :attr:`best` is true at any time.

        Args:
            left: seconds that are left. A compilation that would take longer is not begun.
        """
        begun = left()
        least = cost = self._compiled(self.best)
        if least is None or cost is None:
            raise CompilationError(
                f"the compiler for {self._target.name} refused the program as duotone paints it; "
                "compile_for shows why"
            )
        memory = least.temporary_bytes
        yield self._noted(OWN, least, kept=True)
        took, again = begun - left(), True
        while again:
            again = False
            for change in self.changes:
                candidate = change.of(self.best)
                if self._is_known(candidate):
                    continue
                if left() < took:
                    return
                begun, cost = left(), self._compiled(candidate)
                took = begun - left()
                kept = cost is not None and self._better(cost, least, memory)
                if kept:
                    assert cost is not None
                    self.best, least, again = candidate, cost, True
                yield self._noted(change.name, cost, kept=kept)

    def _compiled(self, tuned: Tuned) -> CompiledRecord | None:
        """The program of a choice, compiled; ``None`` if the compiler refuses it."""
        key = tuned.reforms, frozenset(tuned.keep_full)
        half = HALF_TYPES[tuned.half].name
        painted = api.autocast(self._step, dtype=half, policy=self._policy.replace(tuned=tuned))
        try:
            found = compile_for(painted, *self._args, target=self._target, **self._kwargs)
        except CompilationError:
            if not self._costs:  # of duotone's own choice: the user's program, or the compiler
                raise
            found = None
        self._costs[key] = found
        return found

    def _is_known(self, tuned: Tuned) -> bool:
        twice = len(set(tuned.keep_full)) < len(tuned.keep_full)
        return twice or (tuned.reforms, frozenset(tuned.keep_full)) in self._costs

    def _better(self, cost: CompiledRecord, least: CompiledRecord, memory: int) -> bool:
        judge = "seconds" if self._by == "seconds" and least.seconds else "bytes"
        gains = getattr(cost, judge) < (1.0 - _LEAST_GAIN) * getattr(least, judge)
        return gains and cost.temporary_bytes <= memory

    def _noted(self, change: str, cost: CompiledRecord | None, *, kept: bool) -> Trial:
        trial = Trial(change, kept)
        if cost is not None:
            trial = Trial(change, kept, cost.seconds, cost.bytes, cost.temporary_bytes)
        self.best = dataclasses.replace(self.best, trials=(*self.best.trials, trial))
        return trial


OWN = "duotone's own choice"
"""The first trial."""


def _check(forms: Forms, target: Target) -> None:
    settings = forms.settings
    if settings is not None and settings.weights is not None:
        raise ArgumentError(
            "tune: the function was made with weights=; tune it without, and use the result with"
        )
    if settings is None and not forms.same_as(target):
        raise ArgumentError(
            "tune: the function holds parts that duotone rewrites already; pass what autocast, "
            "grad or value_and_grad is given, or autocast around the whole step"
        )


def _changes(record: Record, device: DeviceForms, removed: frozenset[str]) -> Iterator[Change]:
    """The changes to try, in order."""
    concerned: Counter[str] = Counter()
    for operation in record.operations:
        for name, _ in operation.reforms:
            concerned[name] += operation.bytes
    for name, _ in concerned.most_common():
        if name not in _EXACT:
            yield Change(f"without {name}", reform=name)
    for name in REFORMS:
        if name in _ANYWHERE - device.reforms - removed:
            yield Change(f"with {name}", reform=name)
    for pattern in _scopes(record):
        yield Change(f"float32 for {pattern}", pattern=pattern)


def _scopes(record: Record) -> list[str]:
    """Patterns of the classes of name scopes that have a middling share of what is half."""
    moved: Counter[str] = Counter()
    total = 0
    for operation in record.operations:
        if operation.paint == "half":
            total += operation.bytes
            names = re.sub(r"\d+", "*", operation.scope).split("/") if operation.scope else []
            for depth in range(1, len(names) + 1):
                moved["/".join(names[:depth])] += operation.bytes
    low, high = (share * total for share in _SCOPE_SHARE)
    found = [scope for scope, size in moved.most_common() if low <= size <= high]
    return [f"{scope}/*" for scope in found[:_MOST_SCOPES]]
