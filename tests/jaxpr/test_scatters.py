"""Forms of equations that must give the same bits: the one-hot select in place of a scatter-add."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from duotone.graph.graph import HALF_TYPES
from duotone.jaxpr.pipeline import paint_jaxpr, rewriter_of
from duotone.jaxpr.rules import scatters as forms
from duotone.policy.policy import Policy
from tests.jaxpr.programs import half, named, traced

MODES = ("clip", "fill", "promise_in_bounds")
DTYPES = ("float32", "float16", "bfloat16", "int32")
INDICES = ("int32", "int8", "uint8", "uint32", "int16")
STRANGE = (0.0, -0.0, 1.5, -3.0, float("nan"), float("inf"), -float("inf"), 1e-30, 60000.0)
SCATTERS = ("scatter-add", "scatter_add")


def rewriter(function: Any, *args: Any) -> Any:
    """What carries the painted program out, op by op; a dot beside it makes it a mixed one."""
    side = jnp.ones((16, 16))
    jaxpr = jax.make_jaxpr(lambda *args: (function(*args), side @ side))(*args)
    run = rewriter_of(paint_jaxpr(jaxpr, Policy(), HALF_TYPES["bfloat16"]))
    return lambda *args: run(*args)[:-1]


def rewritten(function: Any, *args: Any) -> tuple[Any, Any]:
    """The program as the rewriter binds it, painted or not, and its results op by op."""
    painted = rewriter(function, *args)
    return jax.make_jaxpr(painted)(*args), painted(*args)


def scatters(jaxpr: Any) -> list[Any]:
    return [eqn for name in SCATTERS for eqn in named(jaxpr, name)]


def same_bits(got: Any, wanted: Any) -> None:
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    nan = np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    unsigned = np.dtype(f"u{got.dtype.itemsize}")
    bits = [np.where(nan, np.zeros_like(x), x).view(unsigned) for x in (got, wanted)]
    np.testing.assert_array_equal(*bits)


@st.composite
def cases(draw: Any) -> tuple[Any, Any, Any, Any, str]:
    """A constant, indices, updates, their dimensions and a mode; one update for each element."""
    ndim = draw(st.integers(1, 4))
    first = draw(st.sampled_from([0, 1, 2, 5, 130]))
    shape = (first, *[draw(st.sampled_from([0, 1, 2, 3])) for _ in range(ndim - 1)])
    roles = [draw(st.sampled_from(["batch", "scattered", "window"])) for _ in shape]
    roles[draw(st.integers(0, ndim - 1))] = "scattered"
    axes = {role: tuple(a for a in range(ndim) if roles[a] == role) for role in set(roles)}
    batch, window = axes.get("batch", ()), axes.get("window", ())
    scattered = tuple(draw(st.permutations(axes["scattered"])))
    # Rows of the indices: the batch in any order, rows of size 1 between them.
    rows = list(draw(st.permutations([*batch, *[-1] * draw(st.integers(0, 1))])))
    sizes = [1 if row < 0 else shape[row] for row in rows]
    spread = draw(st.permutations([*range(len(rows)), *[-1] * len(window)]))
    update_window = tuple(position for position, row in enumerate(spread) if row < 0)
    rows_then, windows_then = iter(sizes), iter([shape[a] for a in window])
    update_shape = tuple(next(windows_then if row < 0 else rows_then) for row in spread)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=update_window,
        inserted_window_dims=tuple(sorted(scattered)),
        scatter_dims_to_operand_dims=scattered,
        operand_batching_dims=batch,
        scatter_indices_batching_dims=tuple(rows.index(a) for a in batch),
    )
    seed = draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    index_dtype = np.dtype(draw(st.sampled_from(INDICES)))
    low = 0 if index_dtype.kind == "u" else -3
    indices = rng.integers(low, 7, (*sizes, len(scattered))).astype(index_dtype)
    dtype = jnp.dtype(draw(st.sampled_from(DTYPES)))
    strange = np.array([0, -0.0, 7, -2] if dtype == np.int32 else STRANGE)
    fill = np.asarray(draw(st.sampled_from([0.0, -0.0, 2.0]))).astype(dtype)
    updates = jnp.asarray(rng.choice(strange, update_shape).astype(dtype))
    mode = draw(st.sampled_from(MODES))
    bounds = np.array([shape[axis] for axis in scattered])
    if mode == "promise_in_bounds" and (bounds == 0).any():
        mode = "fill"
    elif mode == "promise_in_bounds":  # XLA writes wherever a broken promise points
        indices = (indices % bounds).astype(index_dtype)
    return np.full(shape, fill), indices, updates, numbers, mode


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(cases())
def test_it_gives_the_bits_of_the_scatter(case: Any) -> None:
    constant, indices, updates, numbers, mode = case

    def scatter(indices: Any, updates: Any) -> Any:
        filled = lax.full(constant.shape, constant.flat[0] if constant.size else 0, updates.dtype)
        return lax.scatter_add(filled, indices, updates, numbers, mode=mode)

    painted = rewriter(scatter, indices, updates)
    jaxpr = jax.make_jaxpr(painted)(indices, updates)
    largest = np.iinfo(indices.dtype).max
    bounds = [constant.shape[axis] for axis in numbers.scatter_dims_to_operand_dims]
    fits = all(0 < bound <= largest for bound in bounds)
    assert bool(scatters(jaxpr)) != fits
    if all(bound <= largest for bound in bounds):  # for others XLA's check overflows, and it writes
        (got,) = painted(indices, updates)
        same_bits(got, scatter(indices, updates))


def pick(logits: Any, labels: Any) -> Any:
    """One logit of each row: its derivative is a scatter-add of one number into each row."""
    return jnp.take_along_axis(logits, labels[:, None], 1).sum()


LOGITS = jax.random.normal(jax.random.key(0), (6, 10))
LABELS = jnp.array([0, 9, 3, 3, -1, 5])


def test_the_derivative_of_a_cross_entropy_has_no_scatter() -> None:
    def loss(weights: Any, x: Any, labels: Any) -> Any:
        logits = x @ weights
        return (
            jax.nn.logsumexp(logits, axis=1) - jnp.take_along_axis(logits, labels, 1)[:, 0]
        ).sum()

    w, x = jax.random.normal(jax.random.key(1), (8, 10)), LOGITS[:, :8]
    gradient = jax.grad(loss)
    assert scatters(jax.make_jaxpr(gradient)(w, x, LABELS[:, None]))
    assert not scatters(traced(half(gradient), w, x, LABELS[:, None]))
    got, wanted = half(gradient)(w, x, LABELS[:, None]), gradient(w, x, LABELS[:, None])
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-2)


def test_a_row_picked_under_vmap_has_no_scatter_either() -> None:
    def picked(row: Any, label: Any) -> Any:
        return row[label]

    gradient = jax.vmap(jax.grad(picked))
    jaxpr, (got,) = rewritten(gradient, LOGITS, LABELS)
    assert not scatters(jaxpr)
    same_bits(got, gradient(LOGITS, LABELS))


def add_rows(table: Any, tokens: Any) -> Any:
    return table[tokens].sum()


def add_twice(x: Any, tokens: Any) -> Any:
    return jnp.zeros((10, 8)).at[tokens].add(x)


def add_to_argument(x: Any, y: Any) -> Any:
    return x.at[3].add(y)


def add_a_part(x: Any, i: Any) -> Any:
    zeros = jnp.zeros((10, 8))
    numbers = lax.ScatterDimensionNumbers((0,), (0,), (0,))
    return lax.scatter_add(zeros, i[None], x[0, :5], numbers)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (jax.grad(add_rows), (LOGITS, LABELS)),
        (add_twice, (LOGITS[:, :8], LABELS)),
        (jax.grad(lambda x, i: x[jnp.arange(6), i].sum()), (LOGITS, LABELS)),
        (add_to_argument, (LOGITS[:, 0], LOGITS[0, 0])),
        (add_a_part, (LOGITS, LABELS[1])),
    ],
    ids=["embedding", "several rows", "pairs of places", "an argument", "part of a window"],
)
def test_other_scatters_stay(function: Any, args: Any) -> None:
    """An element may get two updates, the operand is in memory, or a window is not whole."""
    jaxpr, (got,) = rewritten(function, *args)
    assert scatters(jaxpr)
    same_bits(got, function(*args))


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "hessian"])
def test_it_has_derivatives(transform: str) -> None:
    """Of the rewritten program: the select has the derivatives of the scatter."""
    rows = LOGITS[:3, :4]
    labels = LABELS[1:4] % 4

    def scattered(x: Any) -> Any:
        gradient = jax.grad(lambda y: (jnp.sin(jnp.take_along_axis(y, labels[:, None], 1))).sum())
        return (gradient(x) ** 2).sum()

    made = {
        "grad": jax.grad,
        "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])),
        "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
        "hessian": jax.hessian,
    }[transform]
    jaxpr, _ = rewritten(scattered, rows)
    assert not scatters(jaxpr)
    got, wanted = made(lambda x: rewritten_call(scattered, x))(rows), made(scattered)(rows)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-6, atol=1e-6), got, wanted)


def rewritten_call(function: Any, x: Any) -> Any:
    return rewriter(function, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)[0]


def test_a_symbolic_size_is_left_alone() -> None:
    def gradient(logits: Any, labels: Any) -> Any:
        return jax.grad(lambda y: pick(y, labels))(logits) @ jnp.ones((10, 4))

    rows = export.symbolic_shape("b")[0]
    shapes = (
        jax.ShapeDtypeStruct((rows, 10), "float32"),
        jax.ShapeDtypeStruct((rows,), "int32"),
    )
    exported = export.export(jax.jit(half(gradient)))(*shapes)
    np.testing.assert_allclose(exported.call(LOGITS, LABELS), gradient(LOGITS, LABELS), rtol=1e-2)


def test_a_sharded_type_is_left_alone() -> None:
    mesh = jax.make_mesh((1,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
    with jax.set_mesh(mesh):
        logits, labels = jax.device_put(LOGITS, place), jax.device_put(LABELS, place)
        gradient = jax.vmap(jax.grad(lambda row, label: row[label]))
        _, (got,) = rewritten(gradient, logits, labels)
        assert jax.typeof(got) == jax.typeof(gradient(logits, labels))
        same_bits(got, gradient(logits, labels))


@pytest.mark.parametrize("fault", ["no bound", "two updates"])
def test_a_planted_fault_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests would see a wrong clamp and a wrong count of updates."""
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    indices = np.array([[7]] if fault == "no bound" else [[1], [1]], np.int32)
    if fault == "no bound":
        monkeypatch.setattr(forms, "GatherScatterMode", type("None_", (), {"CLIP": None}))
    else:
        monkeypatch.setattr(forms, "all", lambda _: True, raising=False)

    def scatter(indices: Any, updates: Any) -> Any:
        return lax.scatter_add(lax.full((4,), 0.0), indices, updates, numbers, mode="clip")

    def compare() -> None:
        updates = jnp.arange(1.0, len(indices) + 1)
        _, (got,) = rewritten(scatter, indices, updates)
        same_bits(got, scatter(indices, updates))

    with pytest.raises((AssertionError, ValueError)):
        compare()
