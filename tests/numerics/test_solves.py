"""Dots around factorisations and solves: results and gradients as good as float32's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest
from jax import lax

import duotone
from tests.numerics.oracle import HALVES, mixed, reference, relative

FORCE = duotone.Policy(ignore_performance=True)
TIMES = 2.0
"""How many times float32's own error a result may have."""
NOISE = 16 * 2.0**-23
"""Of the largest element: below it an error is rounding, however small float32's happens to be."""


def _normal(seed: int, *shape: int) -> Any:
    return np.asarray(jax.random.normal(jax.random.key(seed), shape), np.float32)


MIX = _normal(1, 8, 32)
Z = np.maximum(_normal(0, 40, 8) @ MIX, 0) + np.float32(0.1)
ZQ = np.maximum(_normal(2, 50, 8) @ MIX, 0) + np.float32(0.1)
Y = np.eye(5, dtype=np.float32)[np.arange(40) % 5]
TALL = _normal(3, 40, 12)
SQUARE = _normal(4, 16, 16) / 4
WEIGHTS = _normal(5, 12, 12) / 3
LINE = np.linspace(-1, 1, 30, dtype=np.float32)
POINTS = np.linspace(-1.3, 1.3, 64, dtype=np.float32)


def ridge(z: Any, y: Any, zq: Any) -> Any:
    return zq @ jnp.linalg.solve(z.T @ z + 0.1 * jnp.eye(z.shape[1]), z.T @ y)


def ridge_dual(z: Any, y: Any, zq: Any) -> Any:
    return zq @ (z.T @ jnp.linalg.solve(z @ z.T + 0.1 * jnp.eye(z.shape[0]), y))


def ridge_by_cholesky(z: Any, y: Any, zq: Any) -> Any:
    factor = jsp.linalg.cho_factor(z.T @ z + 0.1 * jnp.eye(z.shape[1]))
    return zq @ jsp.linalg.cho_solve(factor, z.T @ y)


def ridge_by_inverse(z: Any, y: Any, zq: Any) -> Any:
    return zq @ (jnp.linalg.inv(z.T @ z + 0.1 * jnp.eye(z.shape[1])) @ (z.T @ y))


def ridge_by_iteration(z: Any, y: Any, zq: Any) -> Any:
    gram = z.T @ z + 0.1 * jnp.eye(z.shape[1])
    return zq @ jsp.sparse.linalg.cg(lambda v: gram @ v, z.T @ y, maxiter=60)[0]


def ridge_by_eigenvectors(z: Any, y: Any, zq: Any) -> Any:
    values, vectors = jnp.linalg.eigh(z.T @ z + 0.1 * jnp.eye(z.shape[1]))
    return zq @ ((vectors / values) @ (vectors.T @ (z.T @ y)))


def ridges(z: Any, y: Any, zq: Any) -> Any:
    stacked = [jnp.stack([x, 1.1 * x, x[::-1]]) for x in (z, y, zq)]
    return jax.vmap(ridge)(*stacked)


def ridges_in_a_loop(z: Any, y: Any, zq: Any) -> Any:
    return lax.map(lambda s: ridge(s * z, y, zq), jnp.asarray([1.0, 0.7], z.dtype))


def rbf(a: Any, b: Any) -> Any:
    return jnp.exp(-0.5 * ((a[:, None] - b) / 0.5) ** 2)


def rbf_by_dot(a: Any, b: Any) -> Any:
    a, b = jnp.stack([a, a**2] * 4, 1), jnp.stack([b, b**2] * 4, 1)
    square = jnp.sum(a**2, 1)[:, None] + jnp.sum(b**2, 1) - 2 * a @ b.T
    return jnp.exp(-0.5 * square)


def process(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A Gaussian process: mean and variance at some points."""

    def predict(x: Any, at: Any) -> Any:
        y = x + 0.2 * x**3 + 0.5 * (0.5 + x) ** 2 * jnp.sin(4.0 * x)
        factor = jsp.linalg.cho_factor(kernel(x, x) + 1e-2 * jnp.eye(x.shape[0]))
        between = kernel(at, x)
        covariance = kernel(at, at) - between @ jsp.linalg.cho_solve(factor, between.T)
        return between @ jsp.linalg.cho_solve(factor, y), jnp.diag(covariance)

    return predict


def least_squares(a: Any) -> Any:
    b = a @ jnp.linspace(1.0, 2.0, a.shape[1], dtype=a.dtype) + jnp.sin(a[:, 0])
    x = jnp.linalg.lstsq(a, b)[0]
    return b - a @ x


def whitened(a: Any) -> Any:
    centred = a - a.mean(0)
    u, s, v = jnp.linalg.svd(centred.T @ centred / a.shape[0] + 1e-3 * jnp.eye(a.shape[1]))
    return centred @ (u / jnp.sqrt(s)) @ v


def triangular(a: Any) -> Any:
    q, r = jnp.linalg.qr(a)
    return jsp.linalg.solve_triangular(r, q.T @ (a @ jnp.ones((a.shape[1], 3), a.dtype)))


def determinant(a: Any) -> Any:
    return jnp.linalg.slogdet(a.T @ a / a.shape[0])[1]


def exponential(a: Any) -> Any:
    return jsp.linalg.expm(a @ a.T - 2 * jnp.eye(a.shape[0]))


def tridiagonal(a: Any) -> Any:
    diagonal = 2.1 * jnp.ones(a.shape[0], a.dtype)
    side = -jnp.ones(a.shape[0], a.dtype)
    solved = lax.linalg.tridiagonal_solve(
        side.at[0].set(0), diagonal, side.at[-1].set(0), a @ a.T @ a
    )
    return a.T @ solved


def own_solve(a: Any) -> Any:
    gram = a.T @ a + jnp.eye(a.shape[1])
    return a @ lax.custom_linear_solve(
        lambda v: gram @ v,
        a.sum(0),
        lambda matvec, b: jnp.linalg.solve(jax.jacobian(matvec)(b), b),
        symmetric=True,
    )


def filtered(f: Any) -> Any:
    """A Kalman filter of 16 states and 10 observations: the likelihood and the last mean."""
    n, m = 16, 10
    h = jnp.cos(jnp.arange(m * n, dtype=f.dtype)).reshape(m, n)
    f = 0.95 * jnp.eye(n) + 0.05 * f

    def step(state: Any, seen: Any) -> Any:
        mean, p = f @ state[0], f @ state[1] @ f.T + 0.01 * jnp.eye(n)
        s = h @ p @ h.T + 0.001 * jnp.eye(m)
        gain = jnp.linalg.solve(s, h @ p).T
        off = seen - h @ mean
        like = -0.5 * off @ jnp.linalg.solve(s, off) - 0.5 * jnp.linalg.slogdet(s)[1]
        return (mean + gain @ off, p - gain @ h @ p), like

    seen = jnp.sin(jnp.arange(30 * m, dtype=f.dtype)).reshape(30, m)
    (mean, p), like = lax.scan(step, (jnp.zeros(n, f.dtype), jnp.eye(n, dtype=f.dtype)), seen)
    return mean, p, like.sum()


def regulator(a: Any) -> Any:
    """The recursion of Riccati, backward in time."""
    n = a.shape[0]
    b = jnp.sin(jnp.arange(n * 9, dtype=a.dtype)).reshape(n, 9)

    def step(p: Any, _: Any) -> Any:
        gain = jnp.linalg.solve(0.1 * jnp.eye(9) + b.T @ p @ b, b.T @ p @ a)
        return jnp.eye(n) + a.T @ p @ (a - b @ gain), gain

    return lax.scan(step, jnp.eye(n, dtype=a.dtype), None, length=20)[1][-1]


def newton(a: Any) -> Any:
    """Newton's method on ``a @ x + x**3 = 1``."""
    a = a @ a.T + 2 * jnp.eye(a.shape[0])

    def residual(x: Any) -> Any:
        return a @ x + x**3 - 1

    def step(_: Any, x: Any) -> Any:
        return x - jnp.linalg.solve(jax.jacobian(residual)(x), residual(x))

    return lax.fori_loop(0, 6, step, jnp.zeros(a.shape[0], a.dtype))


def exponentials(a: Any) -> Any:
    """Branches that vmap makes choices of stand between a product and its exponential."""
    return jax.vmap(exponential)(jnp.stack([a, a.T]))


def bayesian(a: Any) -> Any:
    """A logistic regression by Newton's method, its Hessian by products, and its variances."""
    y = (a[:, 0] > 0).astype(a.dtype)

    def energy(w: Any) -> Any:
        logits = a @ w
        return jnp.sum(jnp.logaddexp(0.0, logits) - y * logits) + 0.5 * jnp.sum(w**2)

    def step(w: Any, _: Any) -> Any:
        return w - jnp.linalg.solve(jax.hessian(energy)(w), jax.grad(energy)(w)), None

    mode = lax.scan(step, jnp.zeros(a.shape[1], a.dtype), None, length=8)[0]
    return mode, jnp.diag(jnp.linalg.inv(jax.hessian(energy)(mode)))


def kernel_ridge(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def fitted(x: Any, y: Any, at: Any) -> Any:
        gram = kernel(x, x) + 0.1 * jnp.eye(x.shape[0])
        return kernel(at, x) @ jnp.linalg.solve(gram, y)

    return fitted


def cubic(a: Any, b: Any) -> Any:
    return (1 + a @ b.T / a.shape[1]) ** 3


def gaussian(a: Any, b: Any) -> Any:
    square = jnp.sum(a**2, 1)[:, None] - 2 * a @ b.T + jnp.sum(b**2, 1)
    return jnp.exp(-0.05 * square)


def root(a: Any) -> Any:
    a = a @ a.T + 2 * jnp.eye(a.shape[0])

    def solve(f: Any, x: Any) -> Any:
        return lax.fori_loop(0, 6, lambda _, x: x - jnp.linalg.solve(jax.jacobian(f)(x), f(x)), x)

    return lax.custom_root(
        lambda x: a @ x + x**3 - 1,
        jnp.zeros(a.shape[0], a.dtype),
        solve,
        lambda g, y: jnp.linalg.solve(jax.jacobian(g)(y), y),
    )


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "ridge": (ridge, (Z, Y, ZQ)),
    "ridge dual": (ridge_dual, (Z, Y, ZQ)),
    "ridge by cholesky": (ridge_by_cholesky, (Z, Y, ZQ)),
    "ridge by inverse": (ridge_by_inverse, (Z, Y, ZQ)),
    "ridge by iteration": (ridge_by_iteration, (Z, Y, ZQ)),
    "ridge by eigenvectors": (ridge_by_eigenvectors, (Z, Y, ZQ)),
    "ridges": (ridges, (Z, Y, ZQ)),
    "ridges in a loop": (ridges_in_a_loop, (Z, Y, ZQ)),
    "process": (process(rbf), (LINE, POINTS)),
    "process by dot": (process(rbf_by_dot), (LINE, POINTS)),
    "least squares": (least_squares, (TALL,)),
    "whitened": (whitened, (TALL,)),
    "triangular": (triangular, (TALL,)),
    "determinant": (determinant, (TALL,)),
    "exponential": (exponential, (SQUARE,)),
    "tridiagonal": (tridiagonal, (SQUARE,)),
    "own solve": (own_solve, (TALL,)),
    "filtered": (filtered, (SQUARE,)),
    "regulator": (regulator, (SQUARE,)),
    "newton": (newton, (SQUARE,)),
    "root": (root, (SQUARE,)),
    "exponentials": (exponentials, (SQUARE,)),
    "bayesian": (bayesian, (TALL,)),
    "cubic kernel ridge": (kernel_ridge(cubic), (TALL, Y, TALL[::-2] / 2)),
    "gaussian kernel ridge": (kernel_ridge(gaussian), (TALL, Y, TALL[::-2] / 2)),
}
NO_GRADIENT = frozenset({"filtered", "process by dot"})
"""Where float32's own gradient has no digit right, and where one part is all cancellation that no
solve has to do with (a kernel between points and themselves)."""


def errors(got: Any, want: Any) -> list[float]:
    """For each result, the largest error over the largest element."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    return [
        float(np.max(np.abs(np.asarray(a, np.float64) - b)) / np.max(np.abs(b))) for a, b in pairs
    ]


def loss(function: Callable[..., Any]) -> Callable[..., Any]:
    """A weighted sum of all results."""

    def total(*args: Any) -> Any:
        leaves = jax.tree.leaves(function(*args))
        return sum(jnp.sum(x * jnp.cos(jnp.arange(x.size)).reshape(x.shape)) for x in leaves)

    return total


def check(function: Callable[..., Any], painted: Callable[..., Any], args: Any) -> None:
    want = reference(function, *args)
    own = errors(jax.jit(function)(*args), want)
    got = errors(jax.jit(painted)(*args), want)
    for mine, theirs in zip(got, own, strict=True):
        assert mine <= max(TIMES * theirs, NOISE), (got, own)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_results_are_as_good_as_float32s(name: str, half: str) -> None:
    function, args = CASES[name]
    check(function, duotone.autocast(function, dtype=half, policy=FORCE), args)


# The rules ask no half type; bfloat16 shows more of what one of them misses.
@pytest.mark.parametrize("half", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "outside",
    [
        pytest.param(True, id="grad of"),
        pytest.param(False, id="autocast of", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", [name for name in CASES if name not in NO_GRADIENT])
def test_gradients_are_as_good_as_float32s(name: str, outside: bool, half: str) -> None:
    function, args = CASES[name]
    function = loss(function)
    gradient = jax.grad(function, argnums=tuple(range(len(args))))

    def autocast(f: Any) -> Any:
        return duotone.autocast(f, dtype=half, policy=FORCE)

    inner = jax.grad(autocast(function), argnums=tuple(range(len(args))))
    check(gradient, inner if outside else autocast(gradient), args)


def orthogonal_weights(key: Any) -> Any:
    keys, first = jax.random.split(key), jax.nn.initializers.orthogonal()
    return first(keys[0], (16, 32)), first(keys[1], (32, 16))


def descent(weights: Any, x: Any) -> Any:
    """A step of a network, and the loss before it."""

    def error(weights: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ weights[0]) @ weights[1] - x) ** 2)

    loss, gradients = jax.value_and_grad(error)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), loss


def training(key: Any, xs: Any, unchanged: bool) -> Any:
    """Steps of a network whose first weights are orthogonal; the program makes them."""

    def step(weights: Any, x: Any) -> Any:
        moved, loss = descent(weights, x)
        return (weights if unchanged else moved), loss

    return lax.scan(step, orthogonal_weights(key), xs)


def epochs(key: Any, xs: Any, _: bool) -> Any:
    """The same in a loop around it, which skips what is not finite."""

    def step(weights: Any, x: Any) -> Any:
        moved, loss = descent(weights, x)
        good = jnp.isfinite(loss)
        return jax.tree.map(lambda a, b: jnp.where(good, a, b), moved, weights), loss

    def epoch(weights: Any, _: Any) -> Any:
        return lax.scan(step, weights, xs)

    return lax.scan(epoch, orthogonal_weights(key), None, length=2)


@pytest.mark.parametrize(
    ("training", "unchanged"), [(training, False), (training, True), (epochs, False)]
)
def test_weights_that_only_start_at_a_solve_are_half(
    training: Callable[..., Any], unchanged: bool
) -> None:
    arguments = jax.random.key(0), _normal(6, 3, 40, 16), unchanged
    seen = duotone.explain(training, *arguments, dtype="bfloat16", policy=FORCE)
    dots = [o for o in seen.operations if o.operation == "dot_general"]
    assert len(dots) == 5
    reads_a_result = [o for o in dots if o.rule == "solve"]
    assert bool(reads_a_result) == unchanged, [(o.paint, o.rule) for o in dots]


def ridge_of_random_points(key: Any) -> Any:
    """No argument is a floating point number, but dots make the operands of the solve."""
    x = jax.random.normal(key, (64, 16), jnp.float32) * 10.0 ** -np.linspace(0, 2, 16)
    y = x @ jnp.ones((16, 8))
    return jnp.linalg.solve(x.T @ x + 1e-4 * jnp.eye(16), x.T @ y)


def preconditioned(key: Any) -> Any:
    """The preconditioner is a state of the loop, and the dots are in the iterations (Shampoo)."""
    points = jax.random.normal(key, (6, 24, 16), jnp.float32)

    def step(state: Any, x: Any) -> Any:
        weights, second = state
        gradient = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - x) ** 2))(weights)
        values, vectors = jnp.linalg.eigh(second + 1e-6 * jnp.eye(16))
        update = (vectors * values**-0.25) @ vectors.T @ gradient
        return (weights - 0.01 * update, second + gradient @ gradient.T), None

    first = jax.nn.initializers.orthogonal()(key, (16, 16), jnp.float32), jnp.eye(16)
    return lax.scan(step, first, points)[0]


@pytest.mark.parametrize("function", [ridge_of_random_points, preconditioned])
def test_a_solve_of_results_of_dots_is_float32_without_arguments(
    function: Callable[..., Any],
) -> None:
    key = jax.random.key(1)
    seen = duotone.explain(function, key, dtype="bfloat16", policy=FORCE)
    assert {o.paint for o in seen.operations if o.operation == "dot_general"} == {"full"}


def inverse_in_a_loop(xs: Any) -> Any:
    """An inverse of constants has large terms that cancel, also where a loop changes it."""
    side = np.arange(16, dtype=np.float32)
    matrix = (1 / (side[:, None] + side + 1) + 1e-2 * np.eye(16)).astype(np.float32)
    first = jnp.linalg.inv(jnp.asarray(matrix, xs.dtype))

    def step(inverse: Any, x: Any) -> Any:
        z = jnp.tanh(x)
        return inverse * (1 - 1e-6 * jnp.mean(z)), jnp.mean((z @ matrix) @ inverse * z)

    return lax.scan(step, first, xs)[1]


def rotation_in_a_loop(xs: Any) -> Any:
    """A small change between a rotation and its inverse. A loop that only scales trains nothing."""
    first = jax.nn.initializers.orthogonal()(jax.random.key(0), (16, 16), jnp.float32)

    def step(rotation: Any, x: Any) -> Any:
        turned = (x + 100) @ rotation
        back = (turned + 0.1 * jnp.tanh(turned)) @ rotation.T
        return rotation * (1 + 0 * jnp.mean(jnp.tanh(x))), jnp.mean((back - (x + 100)) ** 2)

    return lax.scan(step, first.astype(xs.dtype), xs)[1]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("function", [inverse_in_a_loop, rotation_in_a_loop])
def test_a_state_that_starts_at_a_solve_is_as_good_as_float32(
    function: Callable[..., Any], half: str
) -> None:
    points = _normal(6, 3, 40, 16)
    want = reference(function, points)
    plain = relative(np.asarray(jax.jit(function)(points)), want)
    assert relative(mixed(function, half, points), want) < 4 * plain + 1e-5
    without = mixed(function, half, points, rules_remove={"solve", "distance"})
    assert relative(without, want) > 8 * plain + 1e-4
