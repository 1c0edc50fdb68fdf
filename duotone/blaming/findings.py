"""The record of ``blame``: overflows, underflows and errors against a float32 reference."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any

from duotone.text.numbers import json_number


class Verdict(enum.StrEnum):
    """The kinds of answers that :func:`duotone.blame` gives.

    Attributes:
        words: the verdict as a sentence.
    """

    words: str

    def __new__(cls, name: str, words: str) -> Verdict:
        """Makes a verdict from its name and its sentence."""
        verdict = str.__new__(cls, name)
        verdict._value_ = name
        verdict.words = words
        return verdict

    FINITE = "finite", "every value that is finite in float32 is finite in half"
    INPUT = "input", "an argument already contains NaN or infinity"
    FLOAT32 = "float32", "float32 is not finite here either, so the half type is not the cause"
    OVERFLOW = "overflow", "the forward pass overflows: keep the operation full, or use bfloat16"
    UNDERFLOW = (
        "underflow",
        "a number became 0 in half, so a result that follows from it is not finite",
    )
    LOSS_SCALE = (
        "loss scale",
        "only the scaled backward pass overflows: this is normal, and a lower scale fixes it",
    )
    BACKWARD = (
        "backward",
        "only the backward pass overflows: use a smaller loss, or keep the operation full",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Suspect:
    """One operation of the step, compared with its float32 reference.

    Attributes:
        operation: its name; ``"argument"`` for an argument of the step.
        scope: its name scope, or the name of an argument.
        source: the user's source line.
        rule: the rule that painted it; empty if none did.
        dtype: the dtype in which its result is stored.
        shape: the shape of its result.
        reader: the operation for which it was cast to half, if the cast is to blame.
        low: least element of the float32 reference over all iterations of a loop.
        high: greatest element of the float32 reference over all iterations of a loop.
        nonfinite: how many elements are not finite while the reference's are.
        iteration: the first iteration of the innermost loop with such an element; ``None``
            outside of loops.
        underflow: the share of elements that are 0 or subnormal in half while the reference is
            normal.
        error: root mean square of the error, relative to that of the reference. For a sum whose
            terms cancel below float32's own rounding, relative to the terms. 0 if the verdict is
            not ``finite``, since blame then computes no errors.
        backward: whether it is in the backward pass.
    """

    operation: str
    scope: str
    source: str
    rule: str
    dtype: str
    shape: tuple[int, ...]
    reader: str
    low: float
    high: float
    nonfinite: int
    iteration: int | None
    underflow: float
    error: float
    backward: bool

    @property
    def path(self) -> str:
        """The name scope and operation that patterns of a policy match."""
        return f"{self.scope}/{self.operation}" if self.scope else self.operation

    @property
    def largest(self) -> float:
        """The greatest magnitude of the reference."""
        return max(abs(self.low), abs(self.high))


@dataclasses.dataclass(frozen=True)
class BlameRecord:
    """The record that :func:`duotone.blame` returns.

    Attributes:
        verdict: see :class:`Verdict`; it equals its name, ``blame.verdict == "overflow"``.
        first: the first operation that is not finite; ``None`` if all are.
        culprit: the operation whose numbers became 0, if ``first`` is not finite because of it.
        pins: patterns for ``Policy(keep_full=...)`` that keep the overflowing operations full.
        loss_scale: the factor of the loss, ``None`` if blame saw no loss scale.
        fitting_scale: the greatest power of two at which the backward pass fits, ``None`` if blame
            saw no loss scale.
        inputs: the arguments that contain NaN or infinity.
        underflows: operations by the share of their elements that are lost, most first. Lines of
            the user's own files come before libraries and the optimizer's update.
        errors: operations by their error, in the same order; empty if a value is not finite.
        half_dtype: the half type.
        half_largest: its largest number.
        watched: how many operations blame compared.
        of_gradient: whether the step, a loss, is finite and ``first`` is in its float32 gradient.
        in_half: how many of the compared values are half.
    """

    verdict: Verdict
    first: Suspect | None
    culprit: Suspect | None
    pins: tuple[str, ...]
    loss_scale: float | None
    fitting_scale: float | None
    inputs: tuple[str, ...]
    underflows: tuple[Suspect, ...]
    errors: tuple[Suspect, ...]
    half_dtype: str
    half_largest: float
    watched: int
    of_gradient: bool = False
    in_half: int = 0

    def page_section(self) -> dict[str, Any]:
        """Returns the record as a section of the report page."""
        from duotone.blaming.blame_page import blame_section

        return blame_section(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns the record as plain data."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def to_json(self, *, indent: int | None = None) -> str:
        """Returns :meth:`to_dict` as JSON; infinities and NaN are texts such as ``"NaN"``.

        Args:
            indent: spaces of each level, as for ``json.dumps``; ``None`` for one line.

        Example:
            >>> import jax.numpy as jnp, duotone, json
            >>> found = duotone.blame(lambda x: x @ x @ x, jnp.full((8, 8), 3e2), dtype="float16")
            >>> json.loads(found.to_json())["verdict"]
            'overflow'
        """
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Suspect):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return json_number(value)
    return value.value if isinstance(value, Verdict) else value
