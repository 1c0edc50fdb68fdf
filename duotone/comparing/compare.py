"""``duotone.compare`` compares a function in float32, as written and with duotone on devices.

::

    make the forms of the function: with duotone off, as written, with autocast; merge equal ones
    for each target, for each form:
        compile it for the target and count its kernels    if the compiler is installed (exact)
        otherwise paint it for the target and estimate     (duotone.cost.estimate)
    compute speed-ups over float32; add notes
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from duotone._checks import check_switch
from duotone.comparing.batches import batch_of
from duotone.comparing.comparison import (
    DOUBT,
    DUOTONE,
    ESTIMATE,
    EXACT,
    FLOAT32,
    FORMS,
    LARGEST,
    NO_TIME,
    NOTE,
    SHARDED,
    WRITTEN,
    ComparisonRow,
    SideBySide,
    make_row,
    with_speedups,
    without_estimate,
)
from duotone.comparing.comparison_view import ComparisonView
from duotone.comparing.variants import Forms, bytes_of
from duotone.cost.estimate import Bound, bound_of
from duotone.devices.specifications import TARGETS, Target, find_target
from duotone.errors import (
    ArgumentError,
    ArgumentTypeError,
    CompilationError,
    MissingExtraError,
    shown,
)
from duotone.graph.graph import HALF_TYPES
from duotone.policy.dtypes import OFF
from duotone.policy.policy import Policy
from duotone.text.lines import Viewed
from duotone.transforms.compile_for import compile_for


class Comparison(Viewed, SideBySide):
    """The result of ``duotone.compare``; see :class:`duotone.comparing.comparison.SideBySide`.

    ``print`` and notebooks show a table for each target, at most 80 columns wide. ``rows`` are
    data, :meth:`row` finds one, and :meth:`to_json` writes all.
    """

    def __rich__(self) -> ComparisonView:
        return ComparisonView(self)


def compare(
    step: Callable[..., Any],
    *args: Any,
    targets: str | Target | Sequence[str | Target],
    dtype: Any = None,
    policy: Policy | None = None,
    exact: bool | None = None,
    batch: int | Sequence[int] | None = None,
    **kwargs: Any,
) -> Comparison:
    """Reports the cost of a function in float32, as written and with duotone, on several devices.

    No device need be present, and nothing runs. If the compiler of a target is installed
    (``duotone[cuda]``, ``duotone[tpu]``), the figures are those of :func:`duotone.compile_for`.
    Otherwise they are an estimate between two bounds, from the FLOPs and bytes of the traced
    program, and the result says so. If the estimate may be far off, the result has only the
    bounds. If arrays are sharded over a mesh, the function is compiled for that many devices of the
    target, and the figures describe one of them.

    Args:
        step: a function, one that ``jax.jit`` returned, or one that calls
            :func:`duotone.autocast`, :func:`duotone.grad` or the like.
        *args: its arguments: arrays or ``jax.ShapeDtypeStruct``.
        targets: names as for :func:`duotone.compile_for`, or :class:`duotone.Target`.
        dtype: half type of the form ``"duotone"``, as for :func:`duotone.autocast`. ``None``
            takes that of a function made by ``autocast``, or the fast one of the target.
        policy: policy of the form ``"duotone"``, as for :func:`duotone.autocast`.
        exact: ``None`` compiles if possible; ``True`` compiles or raises; ``False`` compiles
            nothing.
        batch: positions of the arguments whose first axis is the batch. Each compiled form then
            has the largest batch that fits, from a second compilation with twice the batch.
        **kwargs: keyword arguments of ``step``. For a function with an argument of a name above,
            pass ``functools.partial(step, policy=...)``.

    Returns:
        A record with a row for each target and form; print it for tables.

    Raises:
        UnknownTargetError: no such target.
        MissingExtraError: ``exact=True``, and the compiler of a target is not installed.
        CompilationError: ``exact=True``, and the compiler of a target refused the program.
        ArgumentTypeError, ArgumentError: as for :func:`duotone.autocast`; or there is no target, or
            no array among the arguments.

    Example:
        >>> import jax, jax.numpy as jnp, duotone
        >>> x = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
        >>> seen = duotone.compare(lambda x: x @ x, x, targets=["h100", "a100"], exact=False)
        >>> seen.row("h100").half, seen.row("h100").bounded_by
        ('bfloat16', 'dots')
        >>> round(seen.row("h100").speedup, 2)
        1.63
    """
    return ComparisonPlan(step, args, kwargs, targets, dtype, policy, exact, batch).run()


class ComparisonPlan:
    """A comparison with checked arguments."""

    def __init__(
        self,
        step: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        targets: str | Target | Sequence[str | Target],
        dtype: Any = None,
        policy: Policy | None = None,
        exact: bool | None = None,
        batch: int | Sequence[int] | None = None,
    ) -> None:
        """Checks the arguments, which are those of :func:`compare`; traces nothing."""
        if exact is not None:
            check_switch("compare", "exact", exact)
        self.forms = Forms("compare", step, args, kwargs, dtype, policy)
        self.name, self.exact = self.forms.name, exact
        self.targets = _found(targets)
        self.forms.half(self.targets[0])  # refuses float32
        self._batch = None if batch is None else batch_of(args, batch)
        self._resized: dict[int, Forms] = {}
        if self._batch is not None:
            for size in self._batch.others:
                given = self._batch.resized(args, size)
                self._resized[size] = Forms("compare", step, given, kwargs, dtype, policy)

    @functools.cached_property
    def _same_as(self) -> dict[str, str]:
        return self.forms.same_as(self.targets[0])

    @property
    def count(self) -> int:
        """How many programs :meth:`run` compiles or estimates."""
        return len(self.targets) * (len(FORMS) - len(self._same_as))

    def run(self, report: Callable[[str], None] = lambda program: None) -> Comparison:
        """Makes the comparison."""
        rows: list[ComparisonRow] = []
        notes: dict[str, list[str]] = {}
        for target in self.targets:
            exact, why = self._compiles(target)
            try:
                made = list(self._rows(target, exact, report))
            except CompilationError as error:
                if self.exact:
                    raise
                exact, why = False, f"not compiled: {error}"
                made = list(self._rows(target, False, lambda program: None))
            rows += with_speedups(made)
            known = "" if target.bandwidth else NO_TIME
            whole = SHARDED if not exact and self.forms.is_sharded else ""
            largest = LARGEST[exact] if self._batch else ""
            about = list(_about_forms(made))
            for note in (EXACT if exact else ESTIMATE, *about, why, known, whole, largest):
                if note:
                    notes.setdefault(note, []).append(target.name)
        lines = [f"{', '.join(names)}: {note}" for note, names in notes.items()]
        return Comparison(self.name, tuple(rows), (*self._unknown(), *lines))

    def _compiles(self, target: Target) -> tuple[bool, str]:
        """Returns whether to compile for a target; if not, and ``exact`` is ``None``, also why."""
        if self.exact is False:
            return False, ""
        from duotone.devices import topology

        try:
            topology.find(target)
        except MissingExtraError:
            if self.exact:
                raise
            extra = target.platform
            return False, f"to compile, python -m pip install 'duotone[{extra}]'"
        except CompilationError as error:
            if self.exact:
                raise
            return False, f"not compiled: {error}"
        return True, ""

    def _rows(
        self, target: Target, exact: bool, report: Callable[[str], None]
    ) -> Iterator[ComparisonRow]:
        made: dict[str, ComparisonRow] = {}
        for form in (FLOAT32, DUOTONE, WRITTEN):
            other = self._same_as.get(form, "")
            if other:
                row = dataclasses.replace(made[other], form=form, same_as=other)
            else:
                report(f"{target.name}: {form}")
                row = self._row(target, form, exact)
            made[form] = row
        yield from (made[form] for form in FORMS)

    def _row(self, target: Target, form: str, exact: bool) -> ComparisonRow:
        half = self.forms.half(target) if form == DUOTONE else ""
        shape = self.forms[form]
        if exact:
            cost = compile_for(shape.function, *shape.args, target=target, **shape.kwargs)
            row = make_row(cost, target, form, half, None)
            return dataclasses.replace(row, largest_batch=self._largest(target, form, row))
        found = self._bound(target, form)
        bounds = found.least_seconds, found.most_seconds
        row = make_row(found.estimate, target, form, half, bounds)
        return without_estimate(row, found.doubt)

    def _largest(self, target: Target, form: str, row: ComparisonRow) -> int | None:
        """Extrapolates the largest batch that fits from the memory of two sizes."""
        if self._batch is None or not target.memory:
            return None
        for size, made in self._resized.items():
            shape = made[form]
            try:
                cost = compile_for(shape.function, *shape.args, target=target, **shape.kwargs)
            except CompilationError:  # twice the batch may be too large for the compiler
                continue
            return self._batch.largest(row.memory, size, cost.peak_bytes, target.memory)
        return None

    def _bound(self, target: Target, form: str) -> Bound:
        arguments, results, donated = self.forms.memory
        settings = self.forms.settings
        if form != FLOAT32 and settings is not None and settings.weights is not None:
            # The weights may be stored in half.
            weights = settings.weights.types
            arguments -= sum(bytes_of(kind) // 2 for kind in weights if kind.dtype == OFF)
        return bound_of(self.forms.record(target, form), target, arguments, results, donated)

    def _unknown(self) -> Iterator[str]:
        """Yields a note if the function has half types of its own."""
        operations = self.forms.record(self.targets[0], FLOAT32).operations
        if any(HALF_TYPES.keys() & {o.dtype, *o.operands} for o in operations):
            yield (
                f"{self.name} has float16 or bfloat16 of its own, duotone aside; the row float32 "
                "keeps it, since its float32 version is not known"
            )


def _about_forms(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """Yields each note that concerns some forms only, with their names."""
    forms: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for template, about in ((DOUBT, row.doubt), *((NOTE, note) for note in row.notes)):
            if about and not row.same_as:
                forms.setdefault((template, about), []).append(row.form)
    for (template, about), names in forms.items():
        yield template.format(" and ".join(names), about)


def _found(targets: str | Target | Sequence[str | Target]) -> tuple[Target, ...]:
    """Finds the targets and removes duplicates."""
    given = [targets] if isinstance(targets, str | Target) else targets
    if not isinstance(given, Sequence):
        raise ArgumentTypeError(
            f"compare: targets is {shown(targets)}; pass a list of names, as ['h100', 'v5e']"
        )
    if not given:
        raise ArgumentError(f"compare: targets is empty; name some of {', '.join(TARGETS)}")
    found = {target.name: target for target in map(find_target, given)}
    return tuple(found.values())
