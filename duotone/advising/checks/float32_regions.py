"""Finds full operations between half ones, and dots that stay full.

::

    for each cause (an operation that is denied, pinned, unlisted, or has a precision):
        region = the cause and the operations that are full only because of it
        cost   = cost of the step - cost of the step with the region in half,
                 or the cost of the cause if it has no half form

An operation that computes in float32 but reads and stores half values costs nothing. Softmax and
norms are painted in this way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from duotone.advising.advice import Finding
from duotone.advising.step_model import StepModel, in_half, is_dot
from duotone.graph.graph import FULL_DTYPE, PRECISION
from duotone.precision.record import OperationRecord
from duotone.precision.rules import WORDS, Rule

_FULL = frozenset({FULL_DTYPE, "complex64"})
_REMEDIES: Mapping[str, str] = {
    Rule.PINNED: "narrow the pin (keep_full, a policy's patterns), if the numbers fit half",
    Rule.FIXED: "nothing makes it half: do it where the values are small, or do without",
    Rule.UNLISTED: "if it takes half operands, Policy(infer_add={{{op!r}}}) or "
    "Policy(allow_add={{{op!r}}}); else move it to where the values are small",
    Rule.DENY: "if its values fit, Policy(keep_half=[{path!r}]); else do it where the values are "
    "small, or before the half part",
    Rule.CONSTANT: "use a constant that half holds, or bfloat16",
    Rule.OVERFLOW: "state a range that fits (Policy(ranges=...), duotone.calibrate), or bfloat16",
    Rule.UNDERFLOW: "use bfloat16, or values of a larger scale",
}
"""Remedies by rule. Operations of rules that protect numbers (``solve``, ``iteration``, ``carry``,
…) are not findings."""


def islands(step: StepModel) -> Iterator[Finding]:
    """Yields ``full``: full operations between half ones, with the rule that keeps them full."""
    if not step.half:
        return
    after_half = _after_half(step)
    groups: dict[tuple[str, ...], dict[int, OperationRecord]] = {}
    causes: dict[tuple[str, ...], list[OperationRecord]] = {}
    for operation in step.operations.values():
        if not _is_cause(operation):
            continue
        region, ends = _region(step, operation)
        if is_dot(operation) or (ends and operation.index in after_half):
            groups.setdefault(_key(operation), {}).update(region)
            causes.setdefault(_key(operation), []).append(operation)
    for key, region in groups.items():
        if not step.matters(sum(step.spent_by.get(index, 0.0) for index in region)):
            continue  # it cannot save more than it takes
        casts = [
            cast
            for cast in step.record.casts
            if (cast.sources and region.keys() >= set(cast.sources) and cast.to == step.half)
            or (cast.targets and region.keys() >= set(cast.targets) and cast.to == FULL_DTYPE)
        ]
        change = {index: in_half(o, step.half) for index, o in region.items()}
        if all(map(_has_no_form, causes[key])):  # the remedy is to remove the operations
            cost = sum(step.spent_by.get(o.index, 0.0) for o in causes[key])
            moved = sum(o.bytes for o in causes[key])
        else:
            cost, moved = step.saved(change, step.half, casts)
        if step.matters(cost):
            most_expensive = max(causes[key], key=lambda o: step.spent_by.get(o.index, 0.0))
            rest = [o for o in causes[key] if o is not most_expensive]
            yield step.finding(
                "full",
                _in_words(most_expensive),
                _remedy(most_expensive),
                [most_expensive, *rest],
                cost,
                moved,
            )


def _is_cause(operation: OperationRecord) -> bool:
    full = operation.paint == "full" and operation.dtype in _FULL
    if not full or operation.rule not in _REMEDIES:
        return False
    if operation.rule == Rule.FIXED:  # types that the user mixes are `promotion` and `float64`
        return _is_asked(operation) or _has_no_form(operation)
    return not operation.operation.startswith("reduce_")  # its result is small, or it is a norm's


def _is_asked(operation: OperationRecord) -> bool:
    """Returns True for a dot with a precision that the user asked for."""
    return is_dot(operation) and operation.fixed.startswith(PRECISION)


def _has_no_form(operation: OperationRecord) -> bool:
    """Returns True for linear algebra and complex numbers, which have no half form."""
    return operation.fixed.endswith("no half form")


def _key(operation: OperationRecord) -> tuple[str, ...]:
    """Returns a key that operations with a common remedy share."""
    if operation.rule in (Rule.PINNED, Rule.FIXED):
        return operation.rule, operation.fixed
    return operation.rule, operation.operation, operation.source


def _is_full(operation: OperationRecord) -> bool:
    kept = operation.dtype in _FULL and operation.stored == "full"
    return kept and operation.rule != Rule.STATE


def _is_half(operation: OperationRecord) -> bool:
    return operation.dtype == FULL_DTYPE and operation.stored == "half"


def _after_half(step: StepModel) -> set[int]:
    """Returns the operations that depend on half values through full ones."""
    found: set[int] = set()
    for operation in step.operations.values():
        makers = [step.operations[i] for i in operation.reads if i in step.operations]
        if any(_is_half(m) or (_is_full(m) and m.index in found) for m in makers):
            found.add(operation.index)
    return found


def _region(step: StepModel, cause: OperationRecord) -> tuple[dict[int, OperationRecord], bool]:
    """Returns the operations that one operation keeps full, and whether half ones read them."""
    region, waiting, ends = {cause.index: cause}, [cause], False
    while waiting:
        for reader in step.readers.get(waiting.pop().index, ()):
            if reader.paint == "half" or _is_half(reader):
                ends = True
            elif reader.index not in region and _is_full(reader) and _follows(reader):
                region[reader.index] = reader
                waiting.append(reader)
    return region, ends


def _follows(operation: OperationRecord) -> bool:
    """Returns True if an operation is full because another one is."""
    rules = (Rule.TAINT, Rule.FULL_READERS, Rule.NO_HALF_OPERAND, Rule.MIXED, Rule.OPERAND)
    return operation.rule in rules or _has_no_form(operation)


def _in_words(o: OperationRecord) -> str:
    if o.fixed:
        return f"{o.operation} stays full: {o.fixed}"
    state = "stays full" if is_dot(o) else "is full between half operations"
    return f"{o.operation} {state}, rule {o.rule}: {WORDS.get(o.rule, o.reason)}"


def _remedy(o: OperationRecord) -> str:
    if _is_asked(o):
        return "leave precision= out, and jax_default_matmul_precision, which some libraries set"
    return _REMEDIES[o.rule].format(op=o.operation, path=o.path)
