"""The pipeline of ``duotone.precision.pipeline`` with a clock at every stage.

The stages are found by the names under which the pipeline calls them; a stage renamed there has to
be renamed here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax

from duotone import Policy
from duotone.graph.collector import collector_paused
from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr import pipeline as jaxpr_pipeline
from duotone.jaxpr.reading.signature import flatten_call
from duotone.jaxpr.reading.trace import trace
from duotone.precision import pipeline

STAGES: tuple[str, ...] = (
    "trace",
    "build",
    "classify",
    "ranges",
    "safety rules",
    "paint",
    "plan",
    "check",
    "rewrite",
)
"""In this order; ``check`` is the sum of the checks on the results of the other stages."""

_AROUND = {"build": "build", "resolved_for": "classify", "assumptions_of": "ranges"}
"""Functions that ``duotone.jaxpr.pipeline`` calls before the pipeline, by stage."""

_NAMES = {
    "check_graph": "check",
    "classify": "classify",
    "find_ranges": "ranges",
    "check_classes": "check",
    "allow_small_addends": "safety rules",
    "keep_accumulators": "paint",
    "fewer_casts": "paint",
    "check_painting": "check",
    "cast_beforehand": "paint",
    "find_optimizations": "plan",
    "plan_casts": "plan",
    "plan_residuals": "plan",
    "with_statistics": "plan",
    "without_scale": "plan",
    "materialize_rows": "plan",
    "find_reductions": "plan",
}
"""Functions that the pipeline calls, by stage; painters, safety rules and the rewriter are clocked
apart."""


class Clock:
    """Adds up seconds of processor time by name: each stage runs in one thread."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose time is added to ``name``."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += time.process_time() - start

        return timed

    @contextlib.contextmanager
    def in_the_pipeline(self) -> Iterator[None]:
        """Every stage that the pipeline calls is timed."""
        modules = ((jaxpr_pipeline, _AROUND), (pipeline, _NAMES))
        tables = (("PAINTERS", "paint"), ("SAFETY_RULES", "safety rules"))
        with contextlib.ExitStack() as stack:
            for module, names in modules:
                for name, stage in names.items():
                    timed = self.around(stage, getattr(module, name))
                    stack.enter_context(mock.patch.object(module, name, timed))
            for name, stage in tables:
                found = getattr(pipeline, name).items()
                timed = {key: self.around(stage, function) for key, function in found}
                stack.enter_context(mock.patch.object(pipeline, name, timed))
            yield


def stage_seconds(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[dict[str, float], Any]:
    """Takes a function of arrays, or of shapes, down the whole pipeline once, in bfloat16.

    Garbage collection is paused, as in a call.

    Returns:
        Seconds of processor time of each stage, and the jaxpr traced.
    """
    clock, half = Clock(), HALF_TYPES["bfloat16"]
    arrays, signature = flatten_call("benchmark", tuple(args), {})
    jaxpr = clock.around("trace", trace)(fn, signature, arrays).jaxpr
    with collector_paused(), clock.in_the_pipeline():
        painted = jaxpr_pipeline.paint_for_device(jaxpr, Policy(), half)
        run = jaxpr_pipeline.lower(jaxpr, painted)
    with collector_paused():
        clock.around("rewrite", jax.make_jaxpr(run))(*arrays)
    return clock.seconds, jaxpr
