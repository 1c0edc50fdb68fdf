"""No identity changes a result: what moves, selects or clips has no precision of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import duotone
from duotone import _jax
from duotone.devices.table import TABLE
from duotone.graph.graph import HALF_TYPES, Paint
from duotone.jaxpr import pipeline
from duotone.ops.entries import Kind
from duotone.ops.traits import Trait
from duotone.policy.policy import Policy
from tests import random_programs
from tests.random_programs import STEPS, Program, arguments

MARK = "identity"
IDENTITIES: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: x.reshape(-1).reshape(x.shape),
    "transposes": lambda x: x.T.T,
    "turned": lambda x: (
        jnp.moveaxis(x.reshape(x.shape[0], -1, 2), 0, 1).transpose(1, 0, 2).reshape(x.shape)
    ),
    "pieces": lambda x: jnp.concatenate(jnp.split(x, 2, axis=-1), -1),
    "slices": lambda x: jnp.concatenate([x[..., :2], x[..., 2:]], -1),
    "stacked": lambda x: jnp.stack([x[..., i] for i in range(x.shape[-1])], -1),
    "reversed": lambda x: x[::-1][::-1],
    "rolled": lambda x: jnp.roll(jnp.roll(x, 1, 0), -1, 0),
    "clipped": lambda x: jnp.clip(x, -1024.0, 1024.0),
    "at least": lambda x: jnp.maximum(x, -1024.0),
    "taken": lambda x: x[jnp.arange(x.shape[0])],
    "where": lambda x: jnp.where(jnp.isfinite(x), x, 0.0),
    "barrier": jax.lax.optimization_barrier,
    "negated": lambda x: jnp.negative(jnp.negative(x)),
}


def with_identities(
    function: Callable[..., Any], args: Any, chosen: Callable[[], Callable[[Any], Any] | None]
) -> Callable[..., Any]:
    """The function with identities downstream of some of its operations, inner `jit` included."""

    def evaluate(jaxpr: Any, operands: Any) -> Any:
        opened = _jax.open_jaxpr(jaxpr)
        env = dict(zip(opened.invars, operands, strict=True))
        env.update(zip(opened.constvars, _jax.consts_of(jaxpr), strict=True))
        read_later = [*(atom for eqn in opened.eqns for atom in eqn.invars), *opened.outvars]
        used = {atom for atom in read_later if not _jax.is_literal(atom)}

        def read(atom: Any) -> Any:
            return atom.val if _jax.is_literal(atom) else env[atom]

        for eqn in opened.eqns:
            values = [read(atom) for atom in eqn.invars]
            if eqn.primitive.name == "jit":
                results = evaluate(eqn.params["jaxpr"], values)
            else:
                pairs = zip(eqn.outvars, _jax.bind(eqn, values), strict=True)
                results = [inserted(value) if var in used else value for var, value in pairs]
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in opened.outvars]

    def inserted(value: Any) -> Any:
        two = value.ndim == 2 and value.dtype == jnp.float32 and min(value.shape) > 1
        identity = chosen() if two and value.shape[-1] % 2 == 0 else None
        if identity is None:
            return value
        with jax.named_scope(MARK):
            return identity(value)

    jaxpr = jax.make_jaxpr(function)(*args)
    return lambda *operands: evaluate(jaxpr, jax.tree.leaves(operands))


def precisions(function: Callable[..., Any], args: Any, half: str) -> list[tuple[Any, ...]]:
    """What operations that compute see: their precision, and which operands were rounded."""
    painted = pipeline.paint_jaxpr(
        jax.make_jaxpr(function)(*args), Policy(), HALF_TYPES[half], forms=TABLE["cpu-float16"]
    )
    graph, painting = painted.built.graph, painted.painting
    known: dict[int, bool] = {}

    def commutes(node: Any) -> bool:
        entry = painted.classes.nodes[node.index].entry
        return Trait.COMMUTES in entry.traits and Trait.STRUCTURAL not in entry.traits

    def rounded(value: int) -> bool:
        """Whether some of a value was rounded where it was made, or moved since."""
        held = graph.values[value]
        if value not in known:
            known[value] = graph.stored(painting.store, held) is Paint.HALF
            made = graph.nodes[held.producer] if held.producer >= 0 else None
            if not known[value] and made is not None and commutes(made):
                large = [v for v in made.inputs if graph.values[v].size > 1]
                known[value] = any(rounded(v) for v in large if graph.values[v].paintable)
        return known[value]

    found = []
    for node in graph.nodes:
        floats = [v for v in node.inputs if graph.values[v].paintable]
        if MARK in node.scope.split("/") or commutes(node) or not floats:
            continue
        half_too = painting.compute[node.index] is Paint.HALF
        seen: Any = tuple(half_too or rounded(value) for value in floats)
        if half_too and painted.classes.nodes[node.index].listed is not Kind.CLEAR:
            seen = "half"
        found.append((node.op, graph.values[floats[0]].shape, seen))
    return found


def is_as_exact(mine: Any, theirs: Any) -> bool:
    """Whether an operation sees no more rounding; less, where fewer ranges are known."""
    if "half" in (mine, theirs):
        return theirs == "half"
    return all(not a or b for a, b in zip(mine, theirs, strict=True))


def search(move: Callable[[Any], Any]) -> Callable[..., Any]:
    """An evolution strategy, whose candidates go through ``move``."""
    factor = np.linalg.cholesky(0.5 * np.eye(8) + 0.5).astype(np.float32)

    def run(mean: Any, keys: Any) -> Any:
        def step(state: Any, key: Any) -> Any:
            mean, size = state
            x = move(mean + size * (jax.random.normal(key, (64, 8)) @ factor.T))
            value = jnp.sum((x - 1.23) ** 2, axis=1)
            best = ((x - mean) / size)[jnp.argsort(value)[:16]]
            return (mean + size * jnp.mean(best, axis=0), size * 0.9), value.min()

        return jax.lax.scan(step, (mean, 1.0), keys)[1][-1]

    return run


MOVES = {
    "nothing": lambda x: x,
    "sorted": lambda x: x[jnp.argsort(x[:, 0])],
    "padded": lambda x: jnp.pad(x, ((1, 1), (0, 0)))[1:-1],
    "ordered": lambda x: jnp.take_along_axis(x, jnp.argsort(x, 0), 0),
    **IDENTITIES,
}


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("move", MOVES)
def test_a_search_finds_its_optimum_whatever_moves_its_candidates(move: str, half: str) -> None:
    keys = jax.random.split(jax.random.key(0), 100)
    policy = Policy(ignore_performance=True)
    found = duotone.autocast(search(MOVES[move]), dtype=half, policy=policy)(jnp.zeros(8), keys)
    exact = search(MOVES[move])(jnp.zeros(8), keys)
    assert float(found) <= 2 * float(exact) + 1e-10


_SETTINGS = settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
_EVERYTHING = Program(tuple((name, 1, 2) for name in sorted(STEPS)))


@_SETTINGS
@given(
    random_programs.programs(),
    st.sampled_from(["float16", "bfloat16"]),
    st.booleans(),
    st.integers(0, 999),
)
@example(_EVERYTHING, "float16", False, 0)
@example(_EVERYTHING, "bfloat16", True, 1)
def test_identities_round_nothing_more(
    program: Program, half: str, gradient: bool, seed: int
) -> None:
    function = jax.value_and_grad(program.loss, argnums=(0, 1)) if gradient else program
    draw = random.Random(seed)

    def chosen() -> Callable[[Any], Any] | None:
        return draw.choice(list(IDENTITIES.values())) if draw.random() < 0.4 else None

    args = arguments()
    plain = precisions(with_identities(function, args, lambda: None), args, half)
    moved = precisions(with_identities(function, args, chosen), args, half)
    for mine, theirs in zip(moved, plain, strict=True):
        assert mine[:2] == theirs[:2]
        assert is_as_exact(mine[2], theirs[2]), (mine, theirs)


def test_the_comparison_sees_a_rounded_operand() -> None:
    assert is_as_exact((False, True), (True, True))
    assert not is_as_exact((False, True), (True, False))
    assert is_as_exact((True,), "half")
    assert not is_as_exact("half", (True,))
