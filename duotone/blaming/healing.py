"""Healing: what overflows step after step in the forward pass is found and kept full from then on.

Painting happens while a step is traced, and the step is the user's: compiled, its arguments perhaps
donated. So nothing is done to it from outside; it is traced again::

    watch   the step calls back to the host when its loss is not finite, or when it is skipped
            though the loss scale can fall no more; a loss scale on its way down calls nobody
    look    after a few of these in a row, or often enough with good steps between, all steps are
            traced again. The next one that overflows runs once more beside its float32 reference,
            whose rows are passed to the host: they tell what is to blame
    pin     that goes into the policy, one line is logged, and all steps are traced once more

What makes them be traced again is a number in a context of JAX's, which is part of the key of every
``jit`` cache: it is counted up and never down, so that nothing is run that was traced on the way.
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
"""Overflows after which a step that was not traced again is told of; what is under way may hold
many, in a ``scan``."""
_OFTEN = 4
"""How many times as many overflows are asked for if there are good steps between them."""
_FORGIVEN = 9
"""Good steps that make up for one overflow: less than one in ten is not often."""
_PATIENCE = 200
"""Good steps after which a look that met no overflow ends."""
_FRUITLESS = 10
"""Looks that found nothing after which healing ends; each asks for twice as many overflows."""
_LOCK = threading.RLock()


class Healer:
    """Watches the steps of one optimizer.

    Args:
        policy: gives the policy by which its steps are painted now, ``None`` for the default.
        repaint: paints them by another one.
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
        self._told: set[Any] = set()
        self._watch = jax.jit(self._watched)

    @property
    def after(self) -> int:
        """Overflows in a row after which to heal, 0 for never."""
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
        """Watches a step, or looks at it; called once for each one, while it is traced.

        Args:
            function: what is rewritten of the step.
            args: its arguments.
            kwargs: likewise.
            loss: that it gave, ``None`` where it is not known.
            finite: ``bool[]``, whether its gradients are finite.
            before: the optimizer's state before the step.

        Raises:
            ArgumentError: it is to heal, in several processes.
        """
        self._attends = True
        after = self.after
        if collection_now() is not None or not (after or self._looking):
            return
        if jax.process_count() > 1:
            raise ArgumentError(
                f"Policy(heal={after}): there are {jax.process_count()} processes, and they would "
                "hear of an overflow at different steps. Train without heal; run "
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
        """Says once that steps are not watched that were to be healed, unless others are.

        Args:
            why: the reason.
        """
        if self.after and not self._attends and not self._gave_up:
            self._give_up("%s, so overflows in its steps are not seen.", why)

    def ask(self, half: str | None) -> str:
        """Names the operation for a warning of skipped steps, or has the next step looked at.

        Args:
            half: the half type, ``None`` where nothing is rewritten.

        Returns:
            A sentence with a space after it; empty if nothing can be said.
        """
        if half is None:
            return f"Duotone computes nothing in half here. {_NOT_HALF} "
        with _LOCK:
            if self._found is not None and self._found.first is not None:
                return f"{_told(self._found, self._found.first)} "
            if not self._attends or jax.process_count() > 1:
                return ""
            if not self._looking:
                self._asked = True
                self._look()
            return "The next such step is looked at, and a line will name the operation. "

    # On the device.

    def _watched(self, bad: Any, *flags: Any) -> None:
        """Calls the host where a step overflowed; elsewhere nothing runs."""

        def call(*flags: Any) -> None:
            jax.debug.callback(self._overflowed, *flags)

        jax.lax.cond(bad, call, lambda *flags: None, bad, *flags)

    def _look_at(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        bad: Any,
    ) -> None:
        """Runs a step that overflowed beside its reference, and passes the rows to the host."""
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
        except Exception as error:  # of whatever the step holds: the training is to go on
            self._give_up("%s cannot be run beside its float32 reference: %s", name, error)
            return
        jax.debug.callback(functools.partial(self._looked, program), rows, bad)

    # On the host, called back by a step that runs.

    def _overflowed(
        self, bad: Any, finite: Any, last_finite: Any, skipped: Any, good_steps: Any
    ) -> None:
        """Counts, and after enough in a row, or often enough, has the next steps looked at.

        Args:
            bad: whether the step overflowed; ``vmap`` calls for those that did not too.
            finite: whether the gradients were, in spite of the loss: such steps are not skipped,
                and count whether in a row or not.
            last_finite: whether the step before was taken.
            skipped: how many steps were skipped before, -1 if nobody counts.
            good_steps: how many steps were taken since the last skipped one, likewise.
        """
        if not np.asarray(bad).any():
            return
        with _LOCK:
            step = -1 if np.asarray(finite).any() else int(np.asarray(skipped).max())
            if step >= 0 and step == self._step:
                return  # of another device
            self._step = step
            if self._looking or self._gave_up:
                self._late += 1
                if self._late == _LATE and self._looking:
                    self._say(
                        "%d more steps overflowed and the step was not traced again, so nothing "
                        "can be healed in it: it was compiled ahead of time, or is one long scan. "
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
        """Reads what a step beside its reference has shown."""
        with _LOCK:
            if not self._looking or self._gave_up:
                return
            if not np.asarray(bad).any():
                self._clean += 1
                if self._clean >= _PATIENCE:
                    self._stop()  # it shows nothing about what overflows in other batches
                return
            self._found = record = program.blamed(rows)
            found = self._pinned(record)
            self._fruitless = 0 if found else self._fruitless + 1
            if self._fruitless >= _FRUITLESS:
                self._give_up("%d looks found nothing that half is to blame for.", _FRUITLESS)
            self._stop()

    def _pinned(self, record: BlameRecord) -> bool:
        """Keeps full what is to blame; False if there is nothing to keep full."""
        first = record.first
        if self._asked and not self.after:
            if first is not None:
                logger.warning("of the skipped steps: %s", _told(record, first) + _remedy(record))
            return False
        if record.verdict not in _HALF_IS_TO_BLAME or first is None:
            if record.verdict not in self._told:
                self._told.add(record.verdict)
                self._say("%s Nothing is kept full for it.", _told(record, first))
            return False
        policy = self._policy() or Policy()
        taken = {*policy.keep_full, *policy.keep_half}
        pins = tuple(pin for pin in record.pins if pin not in taken)
        if not pins:
            self._give_up("%s It stays so with %s full.", _told(record, first), record.pins)
            return False
        self._repaint(policy.replace(keep_full=(*policy.keep_full, *pins)))
        self._say("%s From now on full: %s.", _told(record, first), ", ".join(map(repr, pins)))
        return True

    def _look(self) -> None:
        self._looking, self._clean, self._late = True, 0, 0
        _trace_again()

    def _stop(self) -> None:
        self._looking = self._asked = False
        self._in_a_row, self._often = 0, 0.0
        _trace_again()

    def _give_up(self, why: str, *words: Any) -> None:
        with _LOCK:
            if not self._gave_up:
                self._gave_up = True
                self._say(f"{why} Nothing more is healed.", *words)

    def _say(self, line: str, *words: Any) -> None:
        logger.warning(f"heal: {line}", *words)


def _trace_again() -> None:
    """Has all compiled functions traced again when they are called next."""
    _jax.healing.set_global(_jax.healing.get_global() + 1)


def _told(record: BlameRecord, first: Suspect | None) -> str:
    """Says what is to blame, in a sentence or two."""
    if first is None:
        return "a step overflowed, and all its values are finite when it is run once more."
    place = f" at {short_source(first.source)}" if first.source else ""
    if record.verdict is Verdict.LOSS_SCALE:
        return (
            f"{first.path}{place} overflows by the loss scale, {record.loss_scale:g}; the backward "
            f"pass fits at {record.fitting_scale:g}."
        )
    if record.verdict is Verdict.INPUT:
        held = ", ".join(record.inputs)
        return f"the arguments of the step hold NaN or infinity: {held}. {_NOT_HALF}"
    if record.verdict is Verdict.FLOAT32:
        return f"{first.path}{place} is not finite in float32 either. {_NOT_HALF}"
    where = "backward" if first.backward else "forward"
    if record.culprit is not None:
        lost = record.culprit
        return (
            f"numbers of {lost.path} become 0 in {record.half_dtype}, and {first.path}{place} "
            + (f"divides by them, in the {where} pass.")
        )
    return (
        f"{first.path}{place} overflows {record.half_dtype} in the {where} pass: in float32 it is "
        f"from {first.low:.4g} to {first.high:.4g}."
    )


def _remedy(record: BlameRecord) -> str:
    if not record.pins:
        return ""
    pins = ", ".join(map(repr, record.pins))
    return f" Keep it full: Policy(keep_full=[{pins}]), or Policy(heal=True) does."
