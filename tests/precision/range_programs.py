"""Random programs for the soundness of ranges: many operations, few elements, hostile inputs.

Each step takes two earlier ``(4, 4)`` values; the square shape makes statistics over the wrong axis
fit, so that a fact that forgets axes is found out. Nothing keeps values small: overflow, division
by zero and NaN are part of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from duotone.jaxpr.reading.build import build
from duotone.jaxpr.reading.program import BuiltGraph
from duotone.jaxpr.running.observe import observe
from duotone.precision.ranges import Assumptions, Ranges, find_ranges

SIDE = 4
lax = jax.lax


def _scan(body: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def step(a: Any, b: Any) -> Any:
        last, rows = lax.scan(lambda c, x: (body(c, x), c * x), a[0], b)
        return rows + last

    return step


def _softmax(axis: int, other: int) -> Callable[[Any, Any], Any]:
    """By hand; right where both axes agree."""

    def step(a: Any, b: Any) -> Any:
        shifted = a - jnp.max(a, axis, keepdims=True)
        exponential = jnp.exp(shifted)
        return exponential / jnp.sum(exponential, other, keepdims=True)

    return step


def _turned_maximum(a: Any, b: Any) -> Any:
    """The maximum of each row, taken from each column."""
    return a - jnp.max(a, 1)[None, :]


def _rms(axis: int, epsilon: float) -> Callable[[Any, Any], Any]:
    def step(a: Any, b: Any) -> Any:
        return a * lax.rsqrt(jnp.mean(a * a, axis, keepdims=True) + epsilon)

    return step


def _layer_norm(a: Any, b: Any) -> Any:
    centred = a - jnp.mean(a, 1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(jnp.square(centred), 1, keepdims=True) + 1e-5)


_MOVES: dict[str, Callable[[Any], Any]] = {
    "turned": lambda x: x.T,
    "split": lambda x: x.reshape(SIDE, 1, SIDE),
    "repeated": lambda x: jnp.broadcast_to(x[:, None, :], (SIDE, SIDE, SIDE)),
}
"""What may stand between a function of each element and the sum of its results."""


def _sum_of_moved(move: str, axis: int) -> Callable[[Any, Any], Any]:
    """Of the exponentials of rows; at least 1 only where whole rows are summed."""

    def step(a: Any, b: Any) -> Any:
        exponential = jnp.exp(a - jnp.max(a, 1, keepdims=True))
        return a + jnp.sum(_MOVES[move](exponential), axis).sum()

    return step


def _norm_of_moved(move: str, axes: tuple[int, ...], across: int) -> Callable[[Any, Any], Any]:
    """Rows or columns divided by norms, which are those of the other ones half of the time."""

    def step(a: Any, b: Any) -> Any:
        squares = jnp.sum(_MOVES[move](jnp.square(a)), axes)
        return a / jnp.sqrt(jnp.expand_dims(squares, across) + 1e-6)

    return step


def _wrong_norm(a: Any, b: Any) -> Any:
    """Divides by the norm of something else."""
    return a * lax.rsqrt(jnp.mean(b * b, 1, keepdims=True) + 1e-3)


def _of_subnormals(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """A function next to 0, where a device may flush what it reads to 0."""
    return lambda a, b: function(jnp.maximum(jnp.abs(a), 1e-40))


Step = Callable[[Any, Any], Any]
STEPS: dict[str, Step] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "self sub": lambda a, b: a - a,
    "self mul": lambda a, b: a * a,
    "scale": lambda a, b: -3.0 * a + 0.25,
    "shrink": lambda a, b: a / 1024.0,
    "reciprocal": lambda a, b: 1.0 / (1.0 + jnp.abs(a)),
    "square": lambda a, b: jnp.square(a),
    "cube": lambda a, b: a**3,
    "minus two": lambda a, b: lax.integer_pow(a, -2),
    "minus three": lambda a, b: lax.integer_pow(a, -3),
    "pow": lambda a, b: jnp.abs(a) ** 0.75,
    "pow of a positive": lambda a, b: (1.5 + jnp.tanh(a)) ** b,
    "exp": lambda a, b: jnp.exp(a),
    "exp2": lambda a, b: jnp.exp2(a),
    "expm1": lambda a, b: jnp.expm1(a),
    "log": lambda a, b: jnp.log(a),
    "log1p": lambda a, b: jnp.log1p(jnp.abs(a)),
    "sqrt": lambda a, b: jnp.sqrt(a),
    "rsqrt": lambda a, b: lax.rsqrt(jnp.abs(a) + 1e-3),
    "bare rsqrt": lambda a, b: lax.rsqrt(a),
    "cbrt": lambda a, b: jnp.cbrt(a),
    "rsqrt of subnormals": _of_subnormals(lax.rsqrt),
    "log of subnormals": _of_subnormals(jnp.log),
    "pow of subnormals": _of_subnormals(lambda x: x**-0.1),
    "cbrt of subnormals": _of_subnormals(jnp.cbrt),
    "reciprocal of subnormals": _of_subnormals(lambda x: 1.0 / x),
    "by a huge number": lambda a, b: a * 1e36 / 3e38,
    "fill that float32 rounds": lambda a, b: jnp.take(
        jnp.clip(a, -0.05, 0.05), jnp.array([0, 9, 1, 2]), 0, fill_value=0.1
    ),
    "bytes that wrap": lambda a, b: (
        a * lax.broadcasted_iota(jnp.int8, (300, SIDE), 0)[128:132].astype(jnp.float32)
    ),
    "tanh": lambda a, b: jnp.tanh(a),
    "logistic": lambda a, b: jax.nn.sigmoid(a),
    "erf": lambda a, b: lax.erf(a),
    "erfc": lambda a, b: lax.erfc(a),
    "sin": lambda a, b: jnp.sin(a),
    "cos": lambda a, b: jnp.cos(a),
    "atan": lambda a, b: jnp.arctan(a),
    "atan2": lambda a, b: jnp.arctan2(a, b),
    "abs": lambda a, b: jnp.abs(a),
    "sign": lambda a, b: jnp.sign(a),
    "round": lambda a, b: lax.round(a) + lax.round(b, lax.RoundingMethod.TO_NEAREST_EVEN),
    "floor": lambda a, b: jnp.floor(a) - jnp.ceil(b),
    "max": lambda a, b: jnp.maximum(a, b),
    "min": lambda a, b: jnp.minimum(a, b),
    "clip": lambda a, b: jnp.clip(a, -1.5, 2.0),
    "clamp": lambda a, b: lax.clamp(jnp.minimum(a, b), a, b),
    "where": lambda a, b: jnp.where(a > b, a, 0.5),
    "bool": lambda a, b: (a > b).astype(jnp.float32),
    "count": lambda a, b: a + jnp.arange(SIDE, dtype=jnp.float32),
    "integers": lambda a, b: a * (jnp.arange(SIDE) * 3 - 2),
    "sum": lambda a, b: a + jnp.sum(b, 0),
    "mean": lambda a, b: a - jnp.mean(b, 1, keepdims=True),
    "cumsum": lambda a, b: jnp.cumsum(a, 1),
    "prod": lambda a, b: a * jnp.prod(jnp.tanh(b), 0),
    "pool": lambda a, b: lax.reduce_window(a, 0.0, lax.add, (2, 2), (1, 1), "SAME"),
    "cummax": lambda a, b: lax.cummax(a),
    "sort": lambda a, b: jnp.sort(a, 0),
    "top": lambda a, b: lax.top_k(a, 2)[0].repeat(2, 1),
    "dot": lambda a, b: a @ b,
    "conv": lambda a, b: lax.conv_general_dilated(
        a[None, None], b[None, None, :3, :3], (1, 1), "SAME"
    )[0, 0],
    "gather": lambda a, b: a[jnp.array([3, 0, 7, 1])],
    "take with fill": lambda a, b: jnp.take(a, jnp.array([0, 9, 1, 2]), 0, fill_value=-7.0),
    "scatter": lambda a, b: a.at[jnp.array([0, 0])].set(b[:2]),
    "scatter add": lambda a, b: a.at[jnp.array([0, 0, 1])].add(b[:3]),
    "update": lambda a, b: lax.dynamic_update_slice(a, b[:2], (1, 0)),
    "pad": lambda a, b: jnp.pad(a[:3], ((0, 1), (0, 0)), constant_values=9.0),
    "joined": lambda a, b: jnp.concatenate([a[:2], b[2:]]),
    "turned": lambda a, b: jnp.flip(a.T, 0),
    "softmax": lambda a, b: jax.nn.softmax(a),
    "softmax by hand": _softmax(1, 1),
    "softmax of columns": _softmax(0, 0),
    "softmax over the wrong axis": _softmax(1, 0),
    "turned maximum": _turned_maximum,
    "softmax of the turned": lambda a, b: jnp.exp(_turned_maximum(a, b)),
    "maximum of another": lambda a, b: a - jnp.max(b, 1, keepdims=True),
    "log softmax": lambda a, b: jax.nn.log_softmax(a),
    "masked softmax": lambda a, b: jax.nn.softmax(jnp.where(b > 0, a, -1e9)),
    "share": lambda a, b: jnp.abs(a) / jnp.sum(jnp.abs(a), 1, keepdims=True),
    "share with signs": lambda a, b: a / jnp.sum(a, 1, keepdims=True),
    "rms": _rms(1, 1e-5),
    "rms of columns": _rms(0, 1e-6),
    "rms without epsilon": _rms(1, 0.0),
    "layer norm": _layer_norm,
    **{f"sum of {move} {axis}": _sum_of_moved(move, axis) for move in _MOVES for axis in (0, 1)},
    **{
        f"norm of {move} {axes} {across}": _norm_of_moved(move, axes, across)
        for move, axes in [
            ("turned", (0,)),
            ("turned", (1,)),
            ("split", (0, 1)),
            ("split", (1, 2)),
            ("repeated", (0, 1)),
            ("repeated", (1, 2)),
        ]
        for across in (0, 1)
    },
    "wrong norm": _wrong_norm,
    "unit vector": lambda a, b: a / jnp.maximum(jnp.linalg.norm(a, axis=1, keepdims=True), 1e-6),
    "elu": lambda a, b: jax.nn.elu(a),
    "above": lambda a, b: jnp.where(a > 0.1, a, 0.3),
    "not above": lambda a, b: jnp.where(a > jnp.tanh(b), 0.3, a),
    "below": lambda a, b: jnp.where(jnp.greater_equal(0.1, a), a, b),
    "both sides": lambda a, b: jnp.where(jnp.abs(a) < jnp.sin(b), jnp.sin(b), jnp.abs(a)),
    "other places": lambda a, b: jnp.where(a[::-1] > 0.0, 0.0, a),
    "gelu": lambda a, b: jax.nn.gelu(a),
    "softplus": lambda a, b: jax.nn.softplus(a),
    "scan that saturates": _scan(lambda c, x: jnp.tanh(c + x)),
    "scan that grows": _scan(lambda c, x: c * 2.0 + 1.0),
    "scan that adds": _scan(lambda c, x: c + x),
    "scan that alternates": _scan(lambda c, x: -c),
    "loop": lambda a, b: lax.fori_loop(0, 3, lambda i, c: c * 0.5 + i, a),
    "swap": lambda a, b: lax.fori_loop(0, 3, lambda i, c: (c[1], c[0] + 1.0), (a, b))[0],
    "while": lambda a, b: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * b), (0, a)
    )[1],
    "nested loops": lambda a, b: lax.fori_loop(
        0, 2, lambda i, c: lax.fori_loop(0, 2, lambda j, d: jnp.sin(d) + c, c), a
    ),
    "cond": lambda a, b: lax.cond(a[0, 0] > 0, lambda: a * 2.0, lambda: jnp.tanh(b)),
    "remat": lambda a, b: jax.checkpoint(lambda a: jax.nn.softmax(a) * b)(a),
    "gradient": lambda a, b: jax.grad(lambda a: jnp.sum(jax.nn.softmax(a) * b))(a),
    "jit": lambda a, b: jax.jit(lambda a: jnp.tanh(a) + b)(a),
}


@dataclasses.dataclass(frozen=True)
class Program:
    """Steps by name, each with how many values back its operands lie."""

    steps: tuple[tuple[str, int, int], ...]

    def __call__(self, x: Any, y: Any) -> Any:
        """The last value."""
        values = [x, y]
        for name, one, other in self.steps:
            a, b = values[-1 - one % len(values)], values[-1 - other % len(values)]
            values.append(STEPS[name](a, b))
        return values[-1]


def programs(most: int = 5) -> st.SearchStrategy[Program]:
    """Programs of up to ``most`` steps."""
    step = st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 2), st.integers(0, 3))
    return st.lists(step, min_size=1, max_size=most).map(lambda steps: Program(tuple(steps)))


_BOUNDS = (
    -np.inf,
    -1e30,
    -1e4,
    -3.0,
    -1.0,
    -1e-3,
    0.0,
    1e-40,
    1e-30,
    1e-3,
    0.5,
    1.0,
    3.0,
    1e4,
    np.inf,
)


def intervals() -> st.SearchStrategy[tuple[float, float]]:
    """Assumed ranges of an input."""
    bound = st.sampled_from(_BOUNDS)
    pairs = st.tuples(bound, bound).map(lambda pair: (min(pair), max(pair)))
    return pairs.filter(lambda pair: pair[0] < np.inf and pair[1] > -np.inf)


def sample(interval: tuple[float, float], random: np.random.Generator) -> np.ndarray:
    """Elements inside an interval: its ends, zeros, subnormal numbers, and every size between."""
    low, high = np.clip(np.array(interval, np.float32), -3e38, 3e38)
    sizes = 10.0 ** random.uniform(-8, 5, (SIDE, SIDE)) * random.choice([-1.0, 1.0], (SIDE, SIDE))
    even = low + (np.float64(high) - low) * random.uniform(size=(SIDE, SIDE))
    found = np.where(random.random((SIDE, SIDE)) < 0.5, sizes, even)
    ends = random.choice(np.array([low, high, 0.0, -0.0, 1e-40, -1e-25]), (SIDE, SIDE))
    found = np.where(random.random((SIDE, SIDE)) < 0.3, ends, found)
    return np.clip(found, low, high).astype(np.float32)


def built_with_ranges(
    function: Callable[..., Any], stated: list[tuple[float, float]]
) -> tuple[BuiltGraph, Ranges]:
    """The graph of a function of activations, and the ranges of its values."""
    built = build(jax.make_jaxpr(function)(*[np.zeros((SIDE, SIDE), np.float32)] * len(stated)))
    given = dict(zip(built.graph.inputs, stated, strict=True))
    return built, find_ranges(built.graph, Assumptions(stated=given))


def outside(built: BuiltGraph, ranges: Ranges, arrays: list[np.ndarray]) -> list[str]:
    """What lies outside of its proof when the program runs; NaN lies nowhere."""
    found = []

    def show(value: int, array: Any) -> None:
        proved = ranges.of(value)
        if proved is None or not np.size(array):
            return
        elements = np.asarray(array).astype(np.float64)
        low, high = np.fmin.reduce(elements, None), np.fmax.reduce(elements, None)
        if low < proved[0] or high > proved[1]:
            node = built.graph.nodes[built.graph.values[value].producer]
            found.append(f"{node.op} made {low:.9g} to {high:.9g}, proved {proved}")

    observe(built, arrays, show)
    return found
