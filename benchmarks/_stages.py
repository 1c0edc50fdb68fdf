"""The road of ``duotone.api`` with a clock at every stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from duotone import Policy, _jax
from duotone.api import PAINTERS, Painted, rewriter_of
from duotone.graph.casts import plan_casts
from duotone.graph.classes import Pins, check_classes, classify
from duotone.graph.graph import HALF_TYPES, check_graph
from duotone.graph.lists import OpLists
from duotone.graph.painting import check_painting
from duotone.jaxpr.build import build
from duotone.jaxpr.lists import ENTRIES
from duotone.jaxpr.signature import flatten_call
from duotone.jaxpr.trace import trace

STAGES = ("trace", "build", "classify", "paint", "plan", "check", "rewrite", "bind again")
"""In this order; ``check`` is the sum of the checks on the results of the other stages."""


class Clock:
    """Adds up seconds of processor time by name: each stage runs in one thread."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)

    def __call__(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Calls ``function`` and adds its time to ``name``."""
        start = time.process_time()
        result = function(*args)
        self.seconds[name] += time.process_time() - start
        return result


def stage_seconds(
    fn: Callable[..., Any], args: Sequence[Any], half_name: str = "bfloat16"
) -> tuple[dict[str, float], Any, int]:
    """Takes ``fn`` down the whole road once.

    Args:
        fn: a function of arrays.
        args: its arguments or their shapes.
        half_name: the half type.

    Returns:
        Seconds of processor time of each stage, the jaxpr traced, and how many nodes are painted half.
    """
    clock, half, policy = Clock(), HALF_TYPES[half_name], Policy()
    arrays, signature = flatten_call("benchmark", tuple(args), {})
    jaxpr = clock("trace", trace, fn, signature, arrays).jaxpr
    lists = OpLists.for_half(ENTRIES, half.name)
    built = clock("build", build, jaxpr)
    graph = clock("check", check_graph, built.graph)
    classes = clock("classify", classify, graph, lists, half, Pins())
    clock("check", check_classes, classes, graph)
    painting = clock("paint", PAINTERS["duotone"], graph, classes)
    clock("check", check_painting, painting, graph)
    plan = clock("plan", plan_casts, graph, painting)
    rewriter = rewriter_of(Painted(built, classes, painting, plan, half), policy)
    rewritten = clock("rewrite", jax.make_jaxpr(rewriter), *arrays)
    clock("bind again", jax.make_jaxpr(_jax.jaxpr_as_fun(rewritten)), *arrays)
    painted = sum(1 for paint in painting.compute if paint)
    assert painted or half.name == jnp.float32, "nothing was painted: nothing was measured"
    return clock.seconds, jaxpr, painted
