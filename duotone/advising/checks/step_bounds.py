"""Finds what bounds a whole step: launches, the optimizer, or embedding tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from duotone.advising.advice import Finding
from duotone.advising.step_model import MOST, StepModel, as_shape, is_dot
from duotone.errors import plural
from duotone.ops.entries import names_with
from duotone.ops.jax import TRAITS
from duotone.ops.traits import Trait
from duotone.precision.record import OperationRecord

_LOOKUPS = names_with(TRAITS, Trait.GATHERS, Trait.UPDATES)


def launches(step: StepModel) -> Iterator[Finding]:
    """Yields ``launches`` if kernels take less time than their launches."""
    if step.launch_bound:
        count = sum(kernel.runs for kernel, _ in step.kernels)
        yield step.finding(
            "launches",
            f"the step spends most of its time on launching {plural(count, 'kernel')}: a launch "
            "takes longer than a kernel",
            "raise the batch, or run several steps in one call with lax.scan; half does not help "
            "here",
            cost=step.launches,
        )


def optimizer(step: StepModel) -> Iterator[Finding]:
    """Yields ``optimizer`` if updates of weights take longer than the gradients."""
    found = _updates(step)
    learns = any(is_dot(o) for o in step.operations.values())
    if learns and found.bounds(step) and not _lookups(step).bounds(step):
        yield step.finding(
            "optimizer",
            "most of the step updates weights and the optimizer's state, whose size does not "
            "depend on the batch",
            "raise the batch or add up gradients over several batches; or use a smaller state: "
            "bfloat16 moments (optax.adamw(mu_dtype=...)), Adafactor, state sharded over devices",
            found.operations,
            found.cost,
            found.bytes,
        )


def embeddings(step: StepModel) -> Iterator[Finding]:
    """Yields ``embedding`` if table look-ups, their gradients and updates take most time."""
    found = _lookups(step)
    if found.bounds(step):
        shapes = ", ".join(sorted(map(as_shape, _tables(step))))
        yield step.finding(
            "embedding",
            f"most of the step reads, adds to and updates embedding tables ({shapes})",
            "update only the rows that were looked up (gradients of the rows, applied by "
            ".at[ids].add); use smaller or half tables; or do more work on each row",
            found.operations,
            found.cost,
            found.bytes,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """A part of a step: the operations that name its kernels, and what these cost and move."""

    operations: tuple[OperationRecord, ...]
    cost: float
    bytes: int

    def bounds(self, step: StepModel) -> bool:
        """Returns True if it takes most of the step."""
        return bool(self.operations) and self.cost >= MOST * step.total


def _part(step: StepModel, belongs: Callable[[OperationRecord], bool]) -> _Part:
    """Collects the kernels that some operations name."""
    members = [(k, o) for k, o in step.kernels if isinstance(o, OperationRecord) and belongs(o)]
    cost = sum(step.cost(kernel) for kernel, _ in members)
    moved = sum(kernel.total_bytes for kernel, _ in members)
    return _Part(tuple(o for _, o in members), cost, moved)


def _updates(step: StepModel) -> _Part:
    before = _before_dots(step)
    return _part(
        step, lambda o: o.index not in before and not is_dot(o) and _is_state(step, o.shape)
    )


def _lookups(step: StepModel) -> _Part:
    tables, before = _tables(step), _before_dots(step)

    def belongs(o: OperationRecord) -> bool:
        reads = o.shape in tables or any(_is_table(step, number) for number, _ in o.given)
        updates = o.shape in tables and o.index not in before and not is_dot(o)
        return updates or (reads and o.operation in _LOOKUPS)

    return _part(step, belongs)


def _is_state(step: StepModel, shape: tuple[str, ...]) -> bool:
    """Returns True if an argument and a result have this shape and are not scalars."""
    taken = any(a.shape == shape and "float" in a.dtype for a in step.arguments)
    return bool(shape) and taken and shape in step.results


def _is_table(step: StepModel, number: int) -> bool:
    """Returns True if a value is an argument with rows to look up."""
    known = 0 <= number < len(step.arguments)
    return known and len(step.arguments[number].shape) > 1


def _tables(step: StepModel) -> frozenset[tuple[str, ...]]:
    """Returns the shapes of the embedding tables among the arguments."""
    return frozenset(
        step.arguments[number].shape
        for o in step.operations.values()
        if o.operation == "gather"
        for number, _ in o.given
        if _is_table(step, number) and "float" in step.arguments[number].dtype
    )


def _before_dots(step: StepModel) -> set[int]:
    """Returns the operations with a dot downstream of them."""
    found: set[int] = set()
    for operation in reversed(list(step.operations.values())):
        readers = step.readers.get(operation.index, ())
        if any(r.index > operation.index and (is_dot(r) or r.index in found) for r in readers):
            found.add(operation.index)
    return found
