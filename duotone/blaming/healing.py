"""Finds an operation that repeatedly overflows in training and keeps it full from then on.

Painting happens in the trace of the user's compiled step, whose arguments may be donated. Healing
therefore retraces the step instead of changing it::

    watch   the step calls back to the host if its loss is not finite, or if it is skipped and the
            loss scale is already at its minimum. A falling loss scale makes no call.
    look    after several such steps, in a row or frequent enough, all steps are retraced. The next
            step that overflows also runs with its float32 reference and passes the rows of both
            to the host, which finds the operation to blame.
    pin     the policy keeps that operation full, one line is logged, and all steps are retraced

A counter in a JAX context is part of the key of every ``jit`` cache. Incrementing it retraces every
step. It never decreases, so no program of an earlier stage runs again.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from duotone import _jax
from duotone.blaming.blame import Instrumented, instrumented
from duotone.blaming.findings import BlameRecord, Suspect, Verdict
from duotone.errors import ArgumentError
from duotone.jaxpr.reading.signature import describe_callable, flatten_call
from duotone.jaxpr.running.inside import collection_now
from duotone.policy.policy import Policy
from duotone.policy.regions import updating
from duotone.scale.optimizer_state import MixedPrecisionState, cannot_fall
from duotone.text.source_lines import short_source

logger = logging.getLogger("duotone")

_HALF_IS_TO_BLAME = (Verdict.OVERFLOW, Verdict.UNDERFLOW, Verdict.BACKWARD)
_NOT_HALF = "So the half type is not why the step is skipped."
_LATE = 200
"""After this many overflows, a warning says that the step was not retraced. One ``scan`` that was
already running may cause many overflows."""
_OFTEN = 4
"""If good steps come between the overflows, a look needs this many times as many overflows."""
_FORGIVEN = 9
"""This many good steps offset one overflow, so one overflow in ten steps is not frequent."""
_PATIENCE = 200
"""A look ends after this many good steps."""
_FRUITLESS = 10
"""Healing ends after this many looks without a finding; each needs twice as many overflows."""
_LOCK = threading.RLock()


class Healer:
    """Watches the steps of one optimizer.

    Args:
        policy: returns the current policy of the steps, ``None`` for the default.
        repaint: sets another policy.
    """

    def __init__(
        self, policy: Callable[[], Policy | None], repaint: Callable[[Policy], None]
    ) -> None:
        self._policy, self._repaint = policy, repaint
        self._after: tuple[Policy | None, int] | None = None
        self._attends = False
        self._looking = self._asked = self._gave_up = False
        self._in_a_row = self._clean = self._late = self._fruitless = 0
        self._often, self._step = 0.0, -1
        self._found: BlameRecord | None = None
        self._reported: set[Any] = set()
        self._watch = jax.jit(self._watched)

    @property
    def after(self) -> int:
        """How many overflows in a row start a look, 0 for never."""
        policy = self._policy()
        if self._after is None or self._after[0] is not policy:
            self._after = policy, (policy or Policy()).merged_with_environment().heal
        return self._after[1]

    def attend(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        loss: Any,
        finite: Any,
        before: MixedPrecisionState,
    ) -> None:
        """Watches a step or looks at it. Call it once for each step, while the step is traced.

        Args:
            function: the rewritten part of the step.
            args: its positional arguments.
            kwargs: its keyword arguments.
            loss: its loss, ``None`` if that is unknown.
            finite: ``bool[]``, whether its gradients are finite.
            before: the optimizer's state before the step.

        Raises:
            ArgumentError: healing is on and there are several processes.
        """
        self._attends = True
        after = self.after
        if collection_now() is not None or not (after or self._looking):
            return
        if jax.process_count() > 1:
            raise ArgumentError(
                f"Policy(heal={after}): there are {jax.process_count()} processes, and they would "
                "notice an overflow at different steps. Train without heal; run "
                "duotone.blame(step, ...) in one process and pass what it prints as "
                "Policy(keep_full=[...])."
            )
        with updating():
            bad = jnp.logical_and(jnp.logical_not(finite), cannot_fall(before.loss_scale))
            if loss is not None:
                bad = jnp.logical_or(bad, jnp.logical_not(jnp.isfinite(loss).all()))
        if self._looking and not self._gave_up:
            self._look_at(function, args, kwargs, bad)
        elif after:
            counts = (getattr(before.loss_scale, name, -1) for name in ("skipped", "good_steps"))
            counts = (jnp.asarray(count, jnp.int32) for count in counts)
            self._watch(bad, finite, before.last_finite, *counts)

    def unseen(self, why: str) -> None:
        """Warns once that healing is on but no step is watched."""
        if self.after and not self._attends and not self._gave_up:
            self._give_up("%s, so overflows in its steps are not seen.", why)

    def ask(self, half: str | None) -> str:
        """Names the operation for a warning about skipped steps, or starts a look.

        Args:
            half: the half type, ``None`` if nothing is rewritten.

        Returns:
            A sentence and a space; empty if nothing is known.
        """
        if half is None:
            return f"duotone computes nothing in half here. {_NOT_HALF} "
        with _LOCK:
            if self._found is not None and self._found.first is not None:
                return f"{_in_words(self._found, self._found.first)} "
            if not self._attends or jax.process_count() > 1:
                return ""
            if not self._looking:
                self._asked = True
                self._look()
            return "The next such step runs next to float32, and a line will name the operation. "

    # These run on the device.

    def _watched(self, bad: Any, *flags: Any) -> None:
        """Calls the host if a step overflowed."""

        def call(*flags: Any) -> None:
            jax.debug.callback(self._overflowed, *flags)

        jax.lax.cond(bad, call, lambda *flags: None, bad, *flags)

    def _look_at(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], bad: Any
    ) -> None:
        """Runs a step that overflowed with its reference, and passes the rows to the host."""
        name = describe_callable(function)
        arrays, signature = flatten_call(name, tuple(args), dict(kwargs))
        try:
            program = instrumented(function, signature, arrays)
            if jax.sharding.get_abstract_mesh().manual_axes:  # devices may disagree on a branch
                rows = program.rows(arrays)
            else:
                like = jax.eval_shape(lambda: program.rows(arrays))
                rows = jax.lax.cond(
                    bad, lambda: program.rows(arrays), lambda: jnp.zeros(like.shape, like.dtype)
                )
        except Exception as error:  # any error of the user's step; training must go on
            self._give_up("%s cannot run next to its float32 reference: %s", name, error)
            return
        jax.debug.callback(functools.partial(self._looked, program), rows, bad)

    # These run on the host, called back by a step.

    def _overflowed(
        self, bad: Any, finite: Any, last_finite: Any, skipped: Any, good_steps: Any
    ) -> None:
        """Counts an overflow; starts a look after enough overflows in a row or in total.

        Args:
            bad: whether the step overflowed; under ``vmap`` the host is also called if not.
            finite: whether the gradients were finite although the loss was not. Such steps are not
                skipped; they count as in a row.
            last_finite: whether the step before was taken.
            skipped: how many steps were skipped before, -1 if unknown.
            good_steps: how many steps were taken since the last skipped one, -1 if unknown.
        """
        if not np.asarray(bad).any():
            return
        with _LOCK:
            step = -1 if np.asarray(finite).any() else int(np.asarray(skipped).max())
            if step >= 0 and step == self._step:
                return  # another device reported this step already
            self._step = step
            if self._looking or self._gave_up:
                self._late += 1
                if self._late == _LATE and self._looking:
                    self._say(
                        "%d more steps overflowed and the step was not retraced, so nothing in it "
                        "can be healed: it was compiled ahead of time, or is one long scan. "
                        "duotone.blame(step, ...) names the operation and prints the pin.",
                        _LATE,
                    )
                return
            if not np.asarray(finite).any() and np.asarray(last_finite).any():
                good = int(np.asarray(good_steps).min())
                self._in_a_row = 0
                self._often = max(self._often - good / _FORGIVEN, 0.0) if good >= 0 else 0.0
            self._in_a_row += 1
            self._often += 1
            enough = self.after << self._fruitless
            if self._in_a_row >= enough or self._often >= _OFTEN * enough:
                self._look()

    def _looked(self, program: Instrumented, rows: Any, bad: Any) -> None:
        """Finds the operation to blame in the rows of a step."""
        with _LOCK:
            if not self._looking or self._gave_up:
                return
            if not np.asarray(bad).any():
                self._clean += 1
                if self._clean >= _PATIENCE:
                    self._stop()  # good batches do not show which operation overflows in others
                return
            self._found = record = program.blamed(rows)
            found = self._pinned(record)
            self._fruitless = 0 if found else self._fruitless + 1
            if self._fruitless >= _FRUITLESS:
                self._give_up("%d looks found nothing that half is to blame for.", _FRUITLESS)
            self._stop()

    def _pinned(self, record: BlameRecord) -> bool:
        """Keeps the operation to blame full; False if there is none."""
        first = record.first
        if self._asked and not self.after:
            if first is not None:
                line = _in_words(record, first) + _remedy(record)
                logger.warning("of the skipped steps: %s", line)
            return False
        if record.verdict not in _HALF_IS_TO_BLAME or first is None:
            if record.verdict not in self._reported:
                self._reported.add(record.verdict)
                self._say("%s Nothing is kept full for it.", _in_words(record, first))
            return False
        policy = self._policy() or Policy()
        taken = {*policy.keep_full, *policy.keep_half}
        pins = tuple(pin for pin in record.pins if pin not in taken)
        if not pins:
            self._give_up("%s It stays so with %s full.", _in_words(record, first), record.pins)
            return False
        self._repaint(policy.replace(keep_full=(*policy.keep_full, *pins)))
        self._say("%s From now on full: %s.", _in_words(record, first), ", ".join(map(repr, pins)))
        return True

    def _look(self) -> None:
        self._looking, self._clean, self._late = True, 0, 0
        _retrace_all()

    def _stop(self) -> None:
        self._looking = self._asked = False
        self._in_a_row, self._often = 0, 0.0
        _retrace_all()

    def _give_up(self, why: str, *words: Any) -> None:
        with _LOCK:
            if not self._gave_up:
                self._gave_up = True
                self._say(f"{why} Nothing more is healed.", *words)

    def _say(self, line: str, *words: Any) -> None:
        logger.warning(f"heal: {line}", *words)


def _retrace_all() -> None:
    """Makes the next call of every compiled function retrace it."""
    _jax.healing.set_global(_jax.healing.get_global() + 1)


def _in_words(record: BlameRecord, first: Suspect | None) -> str:
    """Describes the operation to blame in a sentence or two."""
    if first is None:
        return "a step overflowed, and all its values are finite when it runs again."
    line = f" at {short_source(first.source)}" if first.source else ""
    name = f"{first.path}{line}"
    if record.verdict is Verdict.LOSS_SCALE:
        return (
            f"{name} overflows by the loss scale, {record.loss_scale:g}; the backward pass fits at "
            f"{record.fitting_scale:g}."
        )
    if record.verdict is Verdict.INPUT:
        inputs = ", ".join(record.inputs)
        return f"the arguments of the step contain NaN or infinity: {inputs}. {_NOT_HALF}"
    if record.verdict is Verdict.FLOAT32:
        return f"{name} is not finite in float32 either. {_NOT_HALF}"
    where = "backward" if first.backward else "forward"
    if record.culprit is not None:
        return (
            f"numbers of {record.culprit.path} become 0 in {record.half_dtype}, and {name} divides "
            f"by them, in the {where} pass."
        )
    return (
        f"{name} overflows {record.half_dtype} in the {where} pass: in float32 it ranges from "
        f"{first.low:.4g} to {first.high:.4g}."
    )


def _remedy(record: BlameRecord) -> str:
    if not record.pins:
        return ""
    pins = ", ".join(map(repr, record.pins))
    return f" Keep it full: Policy(keep_full=[{pins}]), or Policy(heal=True) does."
