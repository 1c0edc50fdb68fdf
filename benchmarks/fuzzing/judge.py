"""Is a program, painted, as good as the same in half by hand?

A *case* is a program with a form and a half type. Its error, against float64, is taken of each
output: the largest and the root of the mean square, both relative to the output's own size (of
gradients: at least a ten thousandth of the largest gradient's). If half by hand has no correct
digit of a gradient, an error of an epsilon of the largest gradient is accepted. One draw of inputs
shows little: where a half number lies next to a kink or a tie, either way is wrong by chance. So
inputs are drawn again, and what counts is the median, over the draws, of duotone's error over the
naive one's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import duotone
from benchmarks.fuzzing.evaluate import AsWritten, Naive, Wide, evaluate
from benchmarks.fuzzing.programs import Program, draw
from duotone.devices.assumed import AssumedDevice, assuming

FORMS = ("forward", "autocast(value_and_grad(f))", "value_and_grad(autocast(f))")
WAYS = ("float16", "bfloat16", "default")
"""Half types that are forced, and what duotone chooses for an H200."""
_OPTIMIZED: dict[str, Any] = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
}
_DEFAULT = AssumedDevice("h200", "cuda", "9.0")
LIMIT = 3.0
"""The largest ratio."""
DRAWS = 15
_FIRST_DRAWS = 2
_FIRST_LIMIT = 2.0
_FLOAT32_ROUNDING = 2.0**-21
"""An error below is float32's, not a half type's."""
_TIMES_FLOAT32 = 4.0
"""Neither is one that is not larger than float32's own by this factor."""
_CHAOS = 0.02
"""Where float32 is wrong by as much, no half result can be judged."""
_NOT_SMALLER = 1e-4
_NO_DIGIT = 0.5
"""An error as large, relative to what is wrong, leaves no digit."""
_COUNTED = 0.2
"""Share of the draws in which a result that is not finite counts, beyond naive half's."""
_TIMES_NAIVE = 2.0
"""A pole that half numbers hit (1 / (x - 3), say) is hit by either way, in other draws: duotone's
results must be not finite more than twice as often."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, painted in one way.

    Attributes:
        program: what is painted.
        form: one of :data:`FORMS`.
        way: one of :data:`WAYS`.
        seed: of its inputs.
        compiled: whether the painted program is compiled, with all optimizations, or evaluated.
    """

    program: Program
    form: str
    way: str
    seed: int
    compiled: bool = False


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict on a case.

    Attributes:
        kind: ``"good"``, ``"skipped"`` (float32 or naive half has no numbers to compare with),
            ``"worse"``, ``"not finite"``, ``"changed type"`` or ``"exception"``.
        text: one line for people.
        ratio: duotone's error over naive's, of the worst output.
        beside_float32: duotone's error over float32's, of the same figure.
        error: duotone's error of the worst output.
    """

    kind: str
    text: str = ""
    ratio: float = 0.0
    beside_float32: float = 0.0
    error: float = 0.0

    @property
    def is_finding(self) -> bool:
        """Returns True if a person must look at it."""
        return self.kind not in ("good", "skipped")


class Traced:
    """The jaxprs of a case: plain and painted."""

    def __init__(self, case: Case) -> None:
        self.case = case
        arguments = draw(case.program, [case.seed, 0])
        self.plain = jax.make_jaxpr(_formed(case, lambda f: f))(*arguments)
        function = jax.jit(_formed(case, painter(case.way)))
        with painting(case.way):
            self.painted = jax.make_jaxpr(function)(*arguments)
        self.compiled: Any = None
        if case.compiled and case.way != "default":
            self.compiled = function.lower(*arguments).compile(_OPTIMIZED)
        half = case.way
        if half == "default":
            half = "float16" if "f16[" in str(self.painted).replace("bf16[", "") else "bfloat16"
        self.naive, self._epsilon = Naive(half), float(jnp.finfo(half).eps) / 2

    def types_differ(self) -> str:
        """Where the painted program returns another type; empty if nowhere."""
        pairs = zip(self.plain.out_avals, self.painted.out_avals, strict=True)
        return ", ".join(
            f"{a} became {b}" for a, b in pairs if (a.shape, a.dtype) != (b.shape, b.dtype)
        )

    def draws(self, which: Sequence[int]) -> list[_Draw]:
        """Errors with several inputs."""
        return [self._draw(number) for number in which]

    def _draw(self, number: int) -> _Draw:
        arguments = draw(self.case.program, [self.case.seed, number])
        truth = evaluate(self.plain, arguments, Wide())
        plain = evaluate(self.plain, arguments, AsWritten())
        naive = evaluate(self.plain, arguments, self.naive)
        if self.compiled is None:
            painted = evaluate(self.painted, arguments, AsWritten())
        else:
            painted = [np.asarray(x) for x in jax.tree.leaves(self.compiled(*arguments))]
        scales = self._scales(truth)
        errors = [
            np.array([_errors(x, y, s) for x, y, s in zip(found, truth, scales, strict=True)])
            for found in (painted, naive, plain)
        ]
        for output, (x, y) in enumerate(zip(naive, truth, strict=True)):
            if self.case.form != "forward" and output > 0 and not _rms(x - y) < _NO_DIGIT * _rms(y):
                # It may be 0 by luck, where equal roundings cancel or everything underflows.
                least = self._epsilon * np.max(scales[1:], 0, initial=0) / scales[output]
                errors[1][output] = np.maximum(errors[1][output], least)
        is_finite = all(np.isfinite(x).all() for x in (*truth, *plain))
        return _Draw(errors[0], errors[1], errors[2], is_finite)

    def _scales(self, truth: list[np.ndarray]) -> list[tuple[float, float]]:
        """For each output the largest and the root mean square that its errors are relative to."""
        sizes = [(float(np.max(np.abs(x), initial=0)), _rms(x)) for x in truth]
        if self.case.form == "forward":
            return sizes
        gradients = np.array(sizes[1:])
        least = _NOT_SMALLER * np.max(gradients, 0, initial=0)
        return [sizes[0], *[(max(a, least[0]), max(b, least[1])) for a, b in sizes[1:]]]


@dataclasses.dataclass(frozen=True)
class _Draw:
    """Errors, ``[output, measure]``; not finite where a result is not."""

    painted: np.ndarray
    naive: np.ndarray
    plain: np.ndarray
    is_finite: bool


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0


def _errors(
    found: np.ndarray, truth: np.ndarray, scale: tuple[float, float]
) -> tuple[float, float]:
    if not np.isfinite(found).all():
        return np.inf, np.inf
    difference = found.astype(np.float64) - truth
    return (
        float(np.max(np.abs(difference), initial=0)) / max(scale[0], 1e-30),
        _rms(difference) / max(scale[1], 1e-30),
    )


def painter(way: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``autocast`` with the settings of a way."""
    if way == "default":
        return duotone.autocast
    policy = duotone.Policy(ignore_performance=True)
    return lambda f: duotone.autocast(f, dtype=way, policy=policy)


def painting(way: str) -> contextlib.AbstractContextManager[None]:
    """The device that a way is painted for."""
    return assuming(_DEFAULT) if way == "default" else contextlib.nullcontext()


def loss_of(program: Program, seed: int) -> Callable[..., Any]:
    """A scalar that all elements of all outputs have a part in, by fixed random factors."""
    function = program.function()

    def loss(*arguments: Any) -> Any:
        random = np.random.default_rng([seed, 7])
        total: Any = 0.0
        for output in function(*arguments):
            factors = random.normal(size=output.shape) / np.sqrt(max(output.size, 1))
            total = total + (output * factors.astype(np.float32)).sum()
        return total

    return loss


def _formed(case: Case, paint: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    if case.form == "forward":
        return paint(case.program.function())
    loss, positions = loss_of(case.program, case.seed), case.program.floats()
    if case.form == "autocast(value_and_grad(f))":
        return paint(jax.value_and_grad(loss, positions))
    return jax.value_and_grad(paint(loss), positions)


def judge(case: Case, draws: int = DRAWS) -> Verdict:
    """Judges a case: at first with few draws, with all of them where these leave a doubt."""
    try:
        traced = Traced(case)
        changed = traced.types_differ()
        if changed:
            return Verdict("changed type", changed)
        first = traced.draws(range(_FIRST_DRAWS))
        verdict = _verdict(first)
        if not verdict.is_finding and verdict.ratio < _FIRST_LIMIT:
            return verdict
        return _verdict([*first, *traced.draws(range(_FIRST_DRAWS, draws))])
    except Exception as error:  # every one is what is looked for
        if case.compiled and _plain_fails(case):
            return Verdict("skipped", "float32 cannot be compiled or run either")
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = str(error).strip().split("\n")[0][:200]
        return Verdict("exception", f"{type(error).__name__} in {where.name}: {message}")


def _plain_fails(case: Case) -> bool:
    """Whether JAX cannot run the program without duotone, compiled for this machine.

    XLA's CPU compiler (JAX 0.10.2) sometimes gives ``fft`` an operand in another layout than it
    can read.
    """
    arguments = draw(case.program, [case.seed, 0])
    plain = jax.jit(_formed(case, lambda f: f))
    try:
        jax.block_until_ready(plain.lower(*arguments).compile(_OPTIMIZED)(*arguments))
    except Exception:  # whichever it is
        return True
    return False


def _verdict(draws: list[_Draw]) -> Verdict:
    usable = [d for d in draws if d.is_finite]
    if len(usable) < len(draws) / 2:
        return Verdict("skipped", "float32 is not finite")
    painted, naive, plain = (
        np.array([getattr(d, name) for d in usable]) for name in ("painted", "naive", "plain")
    )
    whole, by_hand = (np.all(np.isfinite(x), (1, 2)) for x in (painted, naive))
    lost, also = np.mean(~whole), np.mean(~by_hand)
    if lost - also > _COUNTED and lost > _TIMES_NAIVE * also:
        text = f"in {lost:.0%} of {len(usable)} draws, naive half in {also:.0%}"
        return Verdict("not finite", text, np.inf, np.inf, np.inf)
    fine = whole & by_hand
    if np.sum(fine) < len(draws) / 2:
        return Verdict("skipped", "half by hand is not finite")
    return _compared(painted[fine], naive[fine], plain[fine])


def _compared(painted: np.ndarray, naive: np.ndarray, plain: np.ndarray) -> Verdict:
    """Compares finite errors, ``[draw, output, measure]``."""
    floor = np.maximum(_FLOAT32_ROUNDING, _TIMES_FLOAT32 * plain)
    ratios = np.median(painted / np.maximum(naive, floor), 0)
    of_medians = np.median(painted, 0) / np.maximum(np.median(naive, 0), np.median(floor, 0))
    sure = np.mean(painted > LIMIT * np.maximum(naive, floor), 0) >= 0.7
    judged = np.median(plain, 0) < _CHAOS
    score = np.where(judged & sure, np.minimum(ratios, of_medians), 0.0)
    ranked = np.where(judged, np.minimum(ratios, of_medians), -1.0)
    output, measure = np.unravel_index(np.argmax(np.where(score > 0, score, ranked)), score.shape)
    at = (slice(None), output, measure)
    figures = [float(np.median(x[at])) for x in (painted, naive, plain)]
    if not judged.any():
        return Verdict("skipped", "float32 itself is wrong")
    ratio = float(ranked[output, measure])
    beside = figures[0] / max(figures[2], _FLOAT32_ROUNDING)
    text = (
        f"output {output}, {('largest', 'rms')[measure]} error: painted {figures[0]:.2g}, "
        f"naive {figures[1]:.2g}, float32 {figures[2]:.2g}; ratio {ratio:.2g}"
    )
    kind = "worse" if score[output, measure] > LIMIT else "good"
    return Verdict(kind, text, ratio, beside, figures[0])
