"""The settings of an autocast function, and its runner on each device.

::

    a call ─► the device assumed now ─► its runner: merge the environment into the policy,
                                        ask the device for the half type, then trace, paint and
                                        rewrite at the first call of each signature

Compiled programs are not part of the settings. A copy in another process (:mod:`pickle`,
``cloudpickle``) compiles again, because that process may have another device.

The first rewrite of a function logs one line on the logger ``duotone`` at level INFO.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import Tracer

from duotone import _jax
from duotone.devices import current_choice
from duotone.devices.assumed import assumed
from duotone.devices.half_type import device_in_words, saves_no_time
from duotone.devices.table import DeviceForms
from duotone.errors import ArgumentTypeError
from duotone.explaining.summary_line import first_line
from duotone.graph.graph import HALF_TYPES, HalfType, Paint
from duotone.jaxpr.painted import CallSite, PaintedProgram
from duotone.jaxpr.pipeline import (
    lower,
    lower_for_values,
    paint_for_device,
    resolved_for_device,
)
from duotone.jaxpr.reading.scopes import MARKER
from duotone.jaxpr.reading.signature import describe_callable, name_of
from duotone.jaxpr.reading.trace import Traced
from duotone.jaxpr.running import backward
from duotone.jaxpr.running.derived import DerivedRunner
from duotone.jaxpr.running.inside import collection_now
from duotone.jaxpr.running.jaxprs import add_note_once
from duotone.jaxpr.running.own_jit import when_decided
from duotone.jaxpr.running.passes import Passes
from duotone.jaxpr.running.run import Runner
from duotone.policy.arguments import half_named
from duotone.policy.policy import Policy
from duotone.policy.regions import switched_off
from duotone.precision.optimize.optimizations import (
    IN_FLOAT32,
    NO_OPTIMIZATIONS,
    Optimizations,
)
from duotone.precision.removable import BACKWARD
from duotone.precision.resolved import Resolved
from duotone.transforms.log_observers import observer
from duotone.transforms.nvtx import call_range, rewrite_range
from duotone.transforms.static_weights import Weights, WeightsRunner

logger = logging.getLogger("duotone")

Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Takes the positional and the keyword arguments of a call."""


class FunctionSettings:
    """The function and the arguments that the user passed to :func:`duotone.autocast`.

    Attributes:
        function: the function to rewrite.
        dtype: the half type as the user gave it, or ``None``; float32 means off.
        chosen: whether duotone chooses the half type.
        policy: the user's policy, or ``None``.
        weights: the weights if they are the same at every call, or ``None``.
        name: the name of the function.
        off: whether the function runs unchanged.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        dtype: Any,
        chosen: bool,
        policy: Policy | None,
        weights: Weights | None,
    ) -> None:
        self.function, self.dtype, self.chosen = function, dtype, chosen
        self.policy, self.weights = policy, weights
        self.name = name_of(function)
        self._half = None if dtype is None else half_named("autocast", dtype)
        self.off = dtype is not None and self._half is None
        self._runs: dict[Any, Call] = {}
        self._whole = Runner(function, lambda traced: _jax.jaxpr_as_fun(traced.jaxpr))
        self._logged = False

    def __reduce__(self) -> Any:
        return FunctionSettings, (self.function, self.dtype, self.chosen, self.policy, self.weights)

    def run(self, device: Any) -> Call:
        """Returns the runner for the assumed device, or for none, the same one at each call.

        The first call makes the runner. Making it earlier would start JAX's backends, because it
        asks the device.
        """
        found = self._runs.get(device)
        if found is None:
            found = self._runs[device] = self._make_runner()
        return found

    def call(self, device: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call on a device inside an NVTX range."""
        run = self.run(device)
        with call_range(self.name, args, kwargs):
            try:
                return run(args, kwargs)
            except FloatingPointError as error:
                add_note_once(error, "")
                raise

    def _make_runner(self) -> Call:
        """Makes the runner for the device assumed now."""
        fn, weights = self.function, self.weights
        device = assumed()
        if self.off:
            return self._switched_off
        if device is not None and not device.rewrites:
            return self._plain
        merged = (self.policy or Policy()).merged_with_environment()
        half = self._half or half_of_device(merged, describe_callable(fn))
        if half is None and merged.float32_math is None and merged.convolution_math is None:
            return self._plain
        _PAINTED.set()  # before it is traced: an optimizer inside of it asks

        def painted_at(site: CallSite, jaxpr: _jax.ClosedJaxpr) -> PaintedProgram:
            return paint_for_device(jaxpr, merged, half, chosen=self.chosen, site=site)

        def rewritten(
            given: Sequence[Paint], whole: _jax.ClosedJaxpr, count: int
        ) -> Callable[..., list[Any]]:
            """Rewrites the differentiated program; its last arguments are cotangents."""
            site = CallSite(given=(*given, *[Paint.FULL] * count))
            with rewrite_range(self.name):
                found = painted_at(site, whole)
                return self._announced(lower(whole, found), found)

        def paint(traced: Traced, count: int) -> tuple[Sequence[Paint], Callable[..., list[Any]]]:
            site = CallSite(arguments=argument_names(traced, merged), weights=count)
            with rewrite_range(self.name):
                painted = painted_at(site, traced.jaxpr)
                if (collection := collection_now()) is not None:
                    collection.latest = painted
                run = lower(traced.jaxpr, painted)
                if painted.changed and not leaves_backward(
                    painted.resolved, painted.forms, painted.optimizations
                ):
                    both = functools.partial(rewritten, painted.given)
                    values = lower_for_values(traced.jaxpr, painted)
                    run = backward.with_backward(traced.jaxpr, run, values, both)
            return painted.given, self._announced(run, painted) if half else run

        def passes(
            flat: Callable[..., list[Any]], leaves: Sequence[Any], moved: tuple[bool, ...]
        ) -> Passes | None:
            types = [jax.typeof(leaf) for leaf in leaves]
            both = functools.partial(rewritten, [Paint.FULL] * len(leaves))
            return backward.passes_of(flat, types, leaves, moved, both, MARKER)

        if weights is not None:
            return WeightsRunner(fn, weights, paint, half.name if half else None)

        def rewrite(traced: Traced) -> Callable[..., list[Any]]:
            return paint(traced, 0)[1]

        if half is None or leaves_backward(*resolved_for_device(merged, half, chosen=self.chosen)):
            return Runner(fn, rewrite)
        return DerivedRunner(fn, rewrite, passes)

    def _announced(
        self, run: Callable[..., list[Any]], painted: PaintedProgram
    ) -> Callable[..., list[Any]]:
        """Wraps a rewritten program so that the first run logs one line."""

        def announced(*leaves: Any) -> list[Any]:
            hear = observer.get()
            observed = hear is not None or logger.isEnabledFor(logging.INFO)
            if observed and not self._logged and collection_now() is None:
                when_decided(functools.partial(announce, hear))
            return run(*leaves)

        def announce(hear: Callable[[str], None] | None) -> None:
            if not self._logged:
                self._logged = True
                _log_once(self.name, painted, hear)

        return announced

    def _switched_off(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the function unchanged and tells an outer rewrite not to change it either.

        Raises:
            ArgumentTypeError: Keras is building a functional model. The model later calls the
                layer without this wrapper, so the layer would not be switched off.
        """
        if any(type(leaf).__name__ == "KerasTensor" for leaf in jax.tree.leaves((args, kwargs))):
            raise ArgumentTypeError(
                f"{self.name} is switched off, and an argument is a KerasTensor: the model will "
                "call the layer itself, which is not switched off. Write `with "
                "duotone.keep_full():` in the layer's call, or name the layer: "
                "duotone.Policy(keep_full=['*/NAME/*'])."
            )
        with switched_off():
            return self._plain(args, kwargs)

    def _plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the function unchanged. A function with fixed weights is compiled, as in half."""
        if self.weights is None:
            return self.function(*args, **kwargs)
        args = (self.weights.full(), *args)
        traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((args, kwargs)))
        if traced or collection_now() is not None or _jax.is_jitted(self.function):
            return self.function(*args, **kwargs)
        return self._whole(args, kwargs)


def leaves_backward(
    resolved: Resolved, forms: DeviceForms, optimizations: Optimizations = NO_OPTIMIZATIONS
) -> str:
    """Returns why the backward pass of a function is not painted together with its forward pass.

    The ranges in a policy describe values of the function, not values of its derivative.

    Returns:
        The reason; empty if both passes are painted together.
    """
    if not resolved.by_rules:
        return "TensorFlow's painter paints one pass"
    if BACKWARD in resolved.rules_off:
        return f"rule {BACKWARD} is removed"
    gains = forms.profitability
    others = any(map(optimizations.named, IN_FLOAT32))
    if gains.only_allow and gains.convolutions == math.inf and not others:
        return "only dots gain on this device"
    if resolved.knows_values:
        return "what is known is of the forward pass"
    return ""


_PAINTED = threading.Event()
"""Set as soon as this process rewrites a function."""


def rewrote_anything() -> bool:
    """Returns True if this process has rewritten a function."""
    return _PAINTED.is_set()


_LINES: set[str] = set()
"""Lines logged so far, so that a function created in every step is announced once."""


def _log_once(name: str, painted: PaintedProgram, hear: Callable[[str], None] | None) -> None:
    """Logs a summary of a painting, unless it was logged before, and passes it to the observer."""
    line = first_line(
        name,
        painted.built.graph,
        painted.classes,
        painted.painting,
        painted.half.name,
        device_in_words(),
        saves_no_time(painted.half.name),
        painted.lacks_options,
    )
    if hear is not None:
        hear(line)
    if line not in _LINES:
        _LINES.add(line)
        logger.info("%s", line)


def settings_of(fn: Callable[..., Any]) -> FunctionSettings | None:
    """Returns the settings of a function that :func:`duotone.autocast` returned, else ``None``.

    ``jax.jit`` of such a function has the same settings. ``jax.grad`` or ``jax.vmap`` of it has
    none.
    """
    while _jax.is_jitted(fn) and "__wrapped__" in vars(fn):
        fn = vars(fn)["__wrapped__"]
    # An attribute would not do: `jax.grad` and other wrappers copy the attributes of a function.
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            found = cell.cell_contents
        except ValueError:  # still empty
            continue
        if isinstance(found, FunctionSettings):
            return found
    return None


def argument_names(traced: Traced, policy: Policy) -> tuple[str, ...] | None:
    """Returns the names of the arguments if the policy has ranges or a calibration."""
    return traced.arguments() if policy.ranges or policy.calibration is not None else None


def fast_half(policy: Policy) -> HalfType | None:
    """Returns the half type that is fast here, or one that the policy asks for; logs nothing."""
    choice = current_choice()
    if choice.dtype is None:
        return HALF_TYPES["bfloat16"] if policy.ignore_performance else None
    return HALF_TYPES[choice.dtype]


def half_of_device(policy: Policy, name: str) -> HalfType | None:
    """Returns the half type that is fast here; logs a warning if there is none.

    Returns:
        The half type, or ``None`` if the function stays unchanged.
    """
    half = fast_half(policy)
    if half is None:
        logger.warning(
            "%s: not rewritten, half is not faster here: %s. "
            "Policy(ignore_performance=True) or dtype=... rewrites it anyway.",
            name,
            current_choice().reason,
        )
    return half
