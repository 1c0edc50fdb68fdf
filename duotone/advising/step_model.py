"""The model of a step that the checks read: operations, kernels on the target, and arguments."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from duotone.advising.advice import Finding
from duotone.cost.compiled_record import Kernel
from duotone.cost.estimate import kernels_of
from duotone.devices.specifications import Target
from duotone.graph.graph import FULL_DTYPE, HALF_TYPES
from duotone.ops.jax import DOTS
from duotone.precision.record import CastRecord, OperationRecord, Record

LEAST_SHARE = 0.05
"""The least share of the step that makes a finding. The estimate of a step is 10 to 50% off
(``docs/compare.md``), so smaller shares are noise."""
LEAST_IF_LAUNCH_BOUND = 0.25
"""The least share in a step that is bound by launches. It does so little work that smaller shares
do not matter."""
MOST = 0.5
"""The share of the step from which a part bounds it."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepArgument:
    """An array that the step takes.

    Attributes:
        name: ``params/dense/kernel``.
        shape: its dimensions.
        dtype: its name.
        devices: over how many devices it is laid out.
        whole: whether each device has all of it.
    """

    name: str
    shape: tuple[str, ...]
    dtype: str
    devices: int = 1
    whole: bool = True


@dataclasses.dataclass(frozen=True)  # no slots, since cached properties need a __dict__
class StepModel:
    """A step as it runs.

    Attributes:
        record: its operations, painted for the target.
        target: the device.
        half: its half type; empty for none.
        arguments: its arrays, in the order in which records number them.
        results: shapes of its results.
        calls: names of the arguments that differ between calls, with their types in each call.
        programs: how many programs those calls need, or how many a jitted step has compiled.
    """

    record: Record
    target: Target
    half: str
    arguments: tuple[StepArgument, ...] = ()
    results: frozenset[tuple[str, ...]] = frozenset()
    calls: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    programs: int = 1

    @functools.cached_property
    def kernels(self) -> tuple[tuple[Kernel, OperationRecord | CastRecord], ...]:
        """The kernels of the estimate, each with the operation or cast that names it."""
        return tuple(kernels_of(self.record, self.target))

    @functools.cached_property
    def operations(self) -> Mapping[int, OperationRecord]:
        """The operations that run, by number."""
        return {o.index: o for o in self.record.operations if o.runs}

    @functools.cached_property
    def readers(self) -> Mapping[int, tuple[OperationRecord, ...]]:
        """The operations that read the results of each operation."""
        found: dict[int, list[OperationRecord]] = {}
        for operation in self.operations.values():
            for maker in operation.reads:
                found.setdefault(maker, []).append(operation)
        return {maker: tuple(readers) for maker, readers in found.items()}

    @functools.cached_property
    def spent_by(self) -> Mapping[int, float]:
        """The cost of the kernels that each operation names, see :meth:`cost`."""
        found: Counter[int] = Counter()
        for kernel, of in self.kernels:
            if isinstance(of, OperationRecord):
                found[of.index] += self.cost(kernel)  # pyright: ignore[reportArgumentType]
        return found

    @property
    def timed(self) -> bool:
        """True if the target's speed is known. Costs are then seconds, otherwise bytes."""
        return bool(self.target.bandwidth)

    def cost(self, kernel: Kernel) -> float:
        """Returns the cost of all runs of a kernel in seconds or bytes."""
        return kernel.total_seconds if self.timed else float(kernel.total_bytes)

    @functools.cached_property
    def total(self) -> float:
        """The cost of the step in seconds or bytes."""
        return sum(self.cost(kernel) for kernel, _ in self.kernels)

    @functools.cached_property
    def launches(self) -> float:
        """The seconds that the launches of kernels take."""
        return self.target.launch * sum(k.runs for k, _ in self.kernels) if self.timed else 0.0

    @functools.cached_property
    def seconds(self) -> float:
        """The seconds of one call."""
        return sum(kernel.total_seconds for kernel, _ in self.kernels)

    @functools.cached_property
    def bytes(self) -> int:
        """The bytes that one call moves."""
        return sum(kernel.total_bytes for kernel, _ in self.kernels)

    @property
    def launch_bound(self) -> bool:
        """True if launches take most of the time."""
        return bool(self.total) and self.launches >= MOST * self.total

    def matters(self, cost: float, least: float = LEAST_SHARE) -> bool:
        """Returns True if a cost is a large enough share of the step without its launches.

        The remedy of a step that is too small for the device is a larger batch. Other findings
        must not depend on whether the user applied it.
        """
        work = self.total - self.launches
        if self.launch_bound:
            least = max(least, LEAST_IF_LAUNCH_BOUND)
        return bool(work > 0) and cost >= least * work

    def saved(
        self, change: Mapping[int, OperationRecord], half: str, without: Iterable[CastRecord] = ()
    ) -> tuple[float, int]:
        """Estimates the cost that a changed step would save.

        Args:
            change: the changed operations, by number.
            half: their half type.
            without: casts that the changed step does not need.

        Returns:
            The saved cost, and saved bytes.
        """
        gone = set(map(id, without))
        summary = dataclasses.replace(self.record.summary, half_dtype=half)
        other = Record(
            tuple(change.get(o.index, o) for o in self.record.operations),
            tuple(cast for cast in self.record.casts if id(cast) not in gone),
            summary,
        )
        kernels = [kernel for kernel, _ in kernels_of(other, self.target)]
        moved = sum(kernel.total_bytes for kernel in kernels)
        return self.total - sum(map(self.cost, kernels)), self.bytes - moved

    def finding(
        self,
        kind: str,
        what: str,
        remedy: str,
        concerned: Iterable[OperationRecord] = (),
        cost: float | None = None,
        moved: int = 0,
        at: OperationRecord | None = None,
        of: float | None = None,
    ) -> Finding:
        """Makes a finding about the ``concerned`` operations; none for the whole step.

        It names the operation ``at``, by default the most expensive one. ``cost`` is as
        :meth:`cost`, ``None`` if not known; its share is ``of`` the step, if nothing else is given.
        """
        found, of = list(concerned), of or self.total
        at = at or max(found, key=lambda o: self.spent_by.get(o.index, 0.0), default=None)
        return Finding(
            kind,
            what,
            remedy,
            operation=at.operation if at else "",
            scope=at.scope if at else "",
            source=at.source if at else "",
            count=len(found),
            seconds=cost if cost and self.timed else 0.0,
            bytes=max(moved, 0) if self.timed else int(cost or 0),
            share=None if cost is None or not of else cost / of,
        )


Check = Callable[[StepModel], Iterator[Finding]]
"""Yields findings in any order."""


def in_half(operation: OperationRecord, half: str) -> OperationRecord:
    """Returns an operation with its precision changed to half."""
    factor = 2 if operation.paint == "full" else 1
    return dataclasses.replace(
        operation,
        paint="half",
        stored="half",
        fixed="",
        dtype=FULL_DTYPE if operation.dtype == FULL_DTYPE else operation.dtype,
        operands=tuple(half if dtype == FULL_DTYPE else dtype for dtype in operation.operands),
        bytes=operation.bytes // factor,
        given=tuple((number, size // factor) for number, size in operation.given),
    )


def is_dot(operation: OperationRecord) -> bool:
    """Returns True if an operation is a floating-point dot or convolution."""
    return operation.operation in DOTS and "float" in operation.dtype


def multiplies_half(operation: OperationRecord) -> bool:
    """Returns True if an operation is a dot or convolution with two half operands."""
    pair = operation.operands[:2]
    return is_dot(operation) and len(pair) == 2 and HALF_TYPES.keys() >= set(pair)


def as_shape(shape: Iterable[object]) -> str:
    """Joins dimensions with ``x``.

    Example:
        >>> as_shape(("8", "16"))
        '8x16'
    """
    return "x".join(map(str, shape))
