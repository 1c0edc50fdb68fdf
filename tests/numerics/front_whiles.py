"""While loops that end by a number, and adaptive solvers, as people write them."""

from __future__ import annotations

from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.numerics.front_loops import COST, IMAGE, PSF, SHARES, VS, A, N, normal, unit

SMALL = (A / 8).astype("f")
CAP = 100
TOLERANCE = np.float32(1e-5)


def until(test: Any, *, cap: int = 0) -> Any:
    """A program that solves ``x = tanh(m @ x) + b``, until ``test`` is false; gives the turns too.

    The network is the point: a loop without an activation is an iteration in any case.
    """

    def run(dot: Any, m: Any, b: Any, *more: Any) -> Any:
        def field(x: Any) -> Any:
            return jnp.tanh(dot("ij,jk->ik", m, x)) + b

        def go(state: Any) -> Any:
            old, new, i = state
            on = test(old, new, field, b, *more)
            return on & (i < cap) if cap else on

        start = jnp.zeros_like(b)
        turn = lambda s: (s[1], field(s[1]), s[2] + 1)  # noqa: E731
        return lax.while_loop(go, turn, (start, field(start), 0))[1:]

    return run


norm = jnp.linalg.norm
TESTS = {
    "norm": lambda o, n, f, b: norm(n - o) > 1e-5,
    "relative norm": lambda o, n, f, b: norm(n - o) > 1e-5 * norm(n),
    "relative norm and more": lambda o, n, f, b: norm(n - o) > 1e-6 + 1e-5 * norm(n),
    "guarded ratio": lambda o, n, f, b: norm(n - o) / jnp.maximum(norm(n), 1e-12) >= 1e-5,
    "square": lambda o, n, f, b: jnp.sum((n - o) ** 2) > 1e-10 * jnp.sum(n**2),
    "not allclose": lambda o, n, f, b: ~jnp.allclose(o, n, rtol=1e-5, atol=1e-6),
    "any": lambda o, n, f, b: jnp.any(jnp.abs(n - o) > 1e-5 * jnp.abs(n).max()),
    "not all": lambda o, n, f, b: ~jnp.all(jnp.abs(n - o) <= 1e-5 * jnp.abs(n).max()),
    "max": lambda o, n, f, b: jnp.max(jnp.abs(n - o)) > 1e-5,
    "residual": lambda o, n, f, b: norm(f(n) - n) > 1e-5 * norm(b),
    "sum of rows": lambda o, n, f, b: (jnp.sum((n - o) ** 2, 0) > 1e-10).any(),
    "argument": lambda o, n, f, b, tol: norm(n - o) > tol * norm(n),
    "negative added": lambda o, n, f, b: norm(n + (-o)) > 1e-5 * norm(n),
    "ratio of norms": lambda o, n, f, b: jnp.abs(norm(n) / norm(o + 1e-30) - 1) > 1e-6,
    "difference of logs": lambda o, n, f, b: (
        jnp.abs(jnp.log(norm(n)) - jnp.log(norm(o) + 1e-9)) > 1e-5
    ),
    "log": lambda o, n, f, b: jnp.log10(norm(n - o)) > -5,
    "cond": lambda o, n, f, b: lax.cond(norm(n - o) > 1e-5, lambda: True, lambda: False),
    "select": lambda o, n, f, b: jnp.where(norm(n - o) > 1e-5, True, False),
    "isfinite": lambda o, n, f, b: jnp.isfinite(norm(n)) & (norm(n - o) > 1e-5),
    "integer": lambda o, n, f, b: jnp.floor(-jnp.log10(norm(n - o))).astype(jnp.int32) < 5,
    "count": lambda o, n, f, b: jnp.sum(jnp.abs(n - o) > 1e-5) > 0,
    "dot": lambda o, n, f, b: jnp.einsum("ij,ij->", n - o, n - o) > 1e-10,
    "sorted": lambda o, n, f, b: jnp.sort(jnp.abs(n - o).ravel())[-1] > 1e-5,
}
ENDS = {
    name: (until(test, cap=CAP), (SMALL, VS, *((TOLERANCE,) if name == "argument" else ())))
    for name, test in TESTS.items()
}
ENDS |= {
    f"{name} without a cap": (until(TESTS[name]), (SMALL, VS))
    for name in ("relative norm", "not allclose", "cond", "negative added")
}


def carried_error(dot: Any, m: Any, b: Any) -> Any:
    """The error is a carry, infinite at first."""

    def turn(s: Any) -> Any:
        x, _, i = s
        new = jnp.tanh(m @ x) + b
        return new, norm(new - x) / norm(new), i + 1

    start = (jnp.zeros_like(b), jnp.asarray(jnp.inf, b.dtype), 0)
    return lax.while_loop(lambda s: (s[1] > 1e-5) & (s[2] < CAP), turn, start)[::2]


def carried_flag(dot: Any, m: Any, b: Any) -> Any:
    def turn(s: Any) -> Any:
        x, _, i = s
        new = jnp.tanh(m @ x) + b
        return new, norm(new - x) < 1e-5 * norm(new), i + 1

    return lax.while_loop(lambda s: ~s[1] & (s[2] < CAP), turn, (jnp.zeros_like(b), False, 0))[::2]


def flag_by_cond(dot: Any, m: Any, b: Any) -> Any:
    def turn(s: Any) -> Any:
        x, _, i = s
        new = jnp.tanh(m @ x) + b
        done = lax.cond(i > 1, lambda: norm(new - x) < 1e-5 * norm(new), lambda: False)
        return new, done, i + 1

    return lax.while_loop(lambda s: ~s[1], turn, (jnp.zeros_like(b), False, 0))[::2]


def integer_flag(dot: Any, m: Any, b: Any) -> Any:
    def turn(s: Any) -> Any:
        x, _, i = s
        new = jnp.tanh(m @ x) + b
        return new, (norm(new - x) < 1e-5 * norm(new)).astype(jnp.int32), i + 1

    return lax.while_loop(lambda s: (s[1] == 0) & (s[2] < CAP), turn, (jnp.zeros_like(b), 0, 0))[
        ::2
    ]


def float_flag(dot: Any, m: Any, b: Any) -> Any:
    def turn(s: Any) -> Any:
        x, _, i = s
        new = jnp.tanh(m @ x) + b
        return new, jnp.where(norm(new - x) < 1e-5 * norm(new), 0.0, 1.0), i + 1

    return lax.while_loop(lambda s: (s[1] > 0.5) & (s[2] < CAP), turn, (jnp.zeros_like(b), 1.0, 0))[
        ::2
    ]


def patience(dot: Any, m: Any, b: Any) -> Any:
    """Ends after three turns without an improvement."""

    def turn(s: Any) -> Any:
        x, best, worse, i = s
        new = jnp.tanh(m @ x) + b
        error = norm(new - x)
        better = error < 0.99 * best
        return (
            new,
            jnp.minimum(error, best),
            jnp.where(better & (error > 1e-5), 0, worse + 1),
            i + 1,
        )

    start = (jnp.zeros_like(b), jnp.asarray(jnp.inf, b.dtype), 0, 0)
    return lax.while_loop(lambda s: (s[2] < 3) & (s[3] < CAP), turn, start)[::3]


def counter_jumps(dot: Any, m: Any, b: Any) -> Any:
    """The counter goes to its end where the error is small."""

    def turn(s: Any) -> Any:
        x, i = s
        new = jnp.tanh(m @ x) + b
        return new, jnp.where(norm(new - x) < 1e-5 * norm(new), i + 1000, i + 1)

    x, i = lax.while_loop(lambda s: s[1] < CAP, turn, (jnp.zeros_like(b), 0))
    return x, i % 1000


def rows_of_their_own(dot: Any, m: Any, b: Any) -> Any:
    """Each column under vmap, with a test of its own."""

    def one(b: Any) -> Any:
        def turn(s: Any) -> Any:
            x, _, i = s
            new = jnp.tanh(m @ x) + b
            return new, norm(new - x), i + 1

        start = (jnp.zeros_like(b), jnp.asarray(jnp.inf, b.dtype), 0)
        return lax.while_loop(lambda s: s[1] > 1e-5, turn, start)[::2]

    return jax.vmap(one, 1)(b)


def nested(dot: Any, m: Any, b: Any) -> Any:
    """Solves inside, moves the side outside."""

    def outside(s: Any) -> Any:
        x, b, _, i = s
        inside = lambda x: jnp.tanh(m @ x) + b  # noqa: E731
        new = lax.while_loop(lambda x: norm(inside(x) - x) > 1e-5 * norm(x), inside, x)
        return new, 0.5 * b + 0.1 * new, norm(new - x), i + 1

    start = (jnp.zeros_like(b) + 1e-3, b, jnp.asarray(jnp.inf, b.dtype), 0)
    return lax.while_loop(lambda s: (s[2] > 1e-4) & (s[3] < CAP), outside, start)[::3]


def nested_in_scan(dot: Any, m: Any, b: Any) -> Any:
    def outside(x: Any, side: Any) -> Any:
        inside = lambda s: (jnp.tanh(m @ s[0]) + side[:, None], s[1] + 1)  # noqa: E731
        go = lambda s: norm(jnp.tanh(m @ s[0]) + side[:, None] - s[0]) > 1e-5 * norm(s[0])  # noqa: E731
        x, i = lax.while_loop(go, inside, (x, 0))
        return x, i

    return lax.scan(outside, jnp.ones_like(b), b.T)


def equilibrium(dot: Any, w: Any, x: Any) -> Any:
    """A deep equilibrium: a network, and a tolerance."""

    def turn(s: Any) -> Any:
        z, _, i = s
        new = jnp.tanh(dot("bd,dk->bk", z, w) + x)
        return new, norm(new - z) / (1e-5 + norm(new)), i + 1

    start = (jnp.zeros_like(x), jnp.asarray(jnp.inf, x.dtype), 0)
    return lax.while_loop(lambda s: (s[1] > 1e-3) & (s[2] < CAP), turn, start)[::2]


def power_until(dot: Any, a: Any, v: Any) -> Any:
    def turn(s: Any) -> Any:
        v, _, i = s
        new = unit(a @ v)
        return new, jnp.abs(jnp.sum(new * (a @ new), 0) - jnp.sum(v * (a @ v), 0)).max(), i + 1

    start = (unit(v), jnp.asarray(jnp.inf, v.dtype), 0)
    return lax.while_loop(lambda s: (s[1] > 1e-5) & (s[2] < CAP), turn, start)[2]


def power_until_cosine(dot: Any, a: Any, v: Any) -> Any:
    def turn(s: Any) -> Any:
        v, _, i = s
        new = unit(a @ v)
        return new, jnp.sum(new * v, 0).min(), i + 1

    start = (unit(v), jnp.asarray(0.0, v.dtype), 0)
    return lax.while_loop(lambda s: (s[1] < 1 - 1e-5) & (s[2] < CAP), turn, start)[2]


def gradient_until(dot: Any, a: Any, b: Any) -> Any:
    """Gradient descent until the gradient is small: no difference of two turns."""
    g = lambda x: a @ x - b  # noqa: E731
    go = lambda s: (norm(g(s[0])) > 1e-4) & (s[1] < CAP)  # noqa: E731
    return lax.while_loop(go, lambda s: (s[0] - 0.5 * g(s[0]), s[1] + 1), (jnp.zeros_like(b), 0))


def bisection(dot: Any, a: Any, b: Any) -> Any:
    """The multiplier at which a shrunk solution has the norm 1."""
    f = lambda t: norm(jnp.maximum(jnp.abs(a @ b) - t, 0)) - 1.0  # noqa: E731

    def turn(s: Any) -> Any:
        low, high = s
        middle = 0.5 * (low + high)
        up = f(middle) > 0
        return jnp.where(up, middle, low), jnp.where(up, high, middle)

    start = (jnp.zeros((), b.dtype), jnp.asarray(100.0, b.dtype))
    return lax.while_loop(lambda s: s[1] - s[0] > 1e-4, turn, start)[0]


def total(dot: Any, m: Any, b: Any) -> Any:
    """A series until its terms are small: the last term, not a difference."""

    def turn(s: Any) -> Any:
        term, total, i = s
        term = m @ term
        return term, total + term, i + 1

    go = lambda s: (norm(s[0]) > 1e-5) & (s[2] < CAP)  # noqa: E731
    return lax.while_loop(go, turn, (b, b, 0))[1:]


def conjugate(dot: Any, a: Any, b: Any) -> Any:
    def turn(s: Any) -> Any:
        x, r, p, rr, i = s
        q = a @ p
        alpha = rr / jnp.sum(p * q, 0)
        x, r = x + alpha * p, r - alpha * q
        new = jnp.sum(r * r, 0)
        return x, r, r + new / rr * p, new, i + 1

    go = lambda s: (s[3].max() > 1e-8) & (s[4] < CAP)  # noqa: E731
    x, *_, i = lax.while_loop(go, turn, (jnp.zeros_like(b), b, b, jnp.sum(b * b, 0), 0))
    return x, i


def blurred(dot: Any, seen: Any, psf: Any) -> Any:
    blur = lambda x: lax.conv_general_dilated(x, psf, (1, 1), "SAME")  # noqa: E731

    def turn(s: Any) -> Any:
        x, _, i = s
        new = x * blur(seen / (blur(x) + 1e-6))
        return new, jnp.max(jnp.abs(new - x) / (jnp.abs(x) + 1e-6)), i + 1

    start = (jnp.full_like(seen, 0.5), jnp.asarray(jnp.inf, seen.dtype), 0)
    return lax.while_loop(lambda s: (s[1] > 3e-3) & (s[2] < CAP), turn, start)[::2]


def transport(dot: Any, cost: Any, a: Any, b: Any) -> Any:
    k = jnp.exp(-cost / 0.2)

    def turn(s: Any) -> Any:
        u, v, _, i = s
        u = a / (k @ v)
        new = b / (k.T @ u)
        return u, new, jnp.max(jnp.abs(new - v) / jnp.abs(new)), i + 1

    start = (jnp.ones_like(a), jnp.ones_like(b), jnp.asarray(jnp.inf, a.dtype), 0)
    u, v, _, i = lax.while_loop(lambda s: (s[2] > 1e-5) & (s[3] < CAP), turn, start)
    return u[:, None] * k[..., None] * v[None], i


ENDS |= {
    "carried error": (carried_error, (SMALL, VS)),
    "carried flag": (carried_flag, (SMALL, VS)),
    "flag by cond": (flag_by_cond, (SMALL, VS)),
    "integer flag": (integer_flag, (SMALL, VS)),
    "float flag": (float_flag, (SMALL, VS)),
    "patience": (patience, (SMALL, VS)),
    "counter jumps": (counter_jumps, (SMALL, VS)),
    "rows of their own": (rows_of_their_own, (SMALL, VS)),
    "nested": (nested, (SMALL, VS)),
    "nested in scan": (nested_in_scan, (SMALL, VS)),
    "equilibrium": (equilibrium, (normal(N, N, scale=0.1), normal(8, N))),
    "power until": (power_until, (A, VS)),
    "power until cosine": (power_until_cosine, (A, VS)),
    "gradient until": (gradient_until, (A / 3, VS)),
    "bisection": (bisection, (A, VS)),
    "series": (total, (SMALL, VS)),
    "conjugate": (conjugate, (A, VS)),
    "blurred": (blurred, (IMAGE, PSF)),
    "transport": (transport, (COST, SHARES, SHARES[::-1].copy())),
}

# ---------------------------------------------------------------- adaptive steps


def network(dot: Any, params: Any, t: Any, y: Any) -> Any:
    w1, w2 = params
    return dot("bk,kd->bd", jnp.tanh(dot("bd,dk->bk", y, w1) + t), w2)


def heun(dot: Any, params: Any, t: Any, y: Any, dt: Any) -> Any:
    k1 = network(dot, params, t, y)
    k2 = network(dot, params, t + dt, y + dt * k1)
    new = y + 0.5 * dt * (k1 + k2)
    error = jnp.sqrt(
        jnp.mean(
            (0.5 * dt * (k2 - k1) / (1e-4 + 1e-3 * jnp.maximum(jnp.abs(y), jnp.abs(new)))) ** 2
        )
    )
    return new, error


def advance(dot: Any, params: Any, state: Any, *, by_cond: Any = False) -> Any:
    t, y, dt, steps = state
    dt = jnp.minimum(dt, 1.0 - t)
    new, error = heun(dot, params, t, y, dt)
    accept = error <= 1.0
    factor = jnp.clip(0.9 * (error + 1e-10) ** -0.5, 0.2, 5.0)
    if by_cond:
        t, y = lax.cond(accept, lambda: (t + dt, new), lambda: (t, y))
    else:
        t, y = jnp.where(accept, t + dt, t), jnp.where(accept, new, y)
    return t, y, dt * factor, steps + 1


def adaptive(dot: Any, params: Any, y: Any, *, by_cond: Any = False, capped: Any = False) -> Any:
    start = (jnp.zeros((), y.dtype), y, jnp.asarray(0.1, y.dtype), 0)
    go = (lambda s: (s[0] < 1.0) & (s[3] < 64)) if capped else (lambda s: s[0] < 1.0)
    _, y, _, steps = lax.while_loop(go, lambda s: advance(dot, params, s, by_cond=by_cond), start)
    return y, steps


def adaptive_in_scan(
    dot: Any, params: Any, y: Any, *, remat: Any = False, by_cond: Any = False, steps: Any = 40
) -> Any:
    def turn(s: Any, _: Any) -> Any:
        done = s[0] >= 1.0 - 1e-6
        new = advance(dot, params, s, by_cond=by_cond)
        return jax.tree.map(lambda a, b: jnp.where(done, a, b), s, new), None

    turn = jax.checkpoint(turn) if remat else turn
    start = (jnp.zeros((), y.dtype), y, jnp.asarray(0.1, y.dtype), 0)
    s, _ = lax.scan(turn, start, None, length=steps)
    return s[1], s[3]


def adaptive_checkpointed(dot: Any, params: Any, y: Any, *, by_cond: Any = False) -> Any:
    start = (jnp.zeros((), y.dtype), y, jnp.asarray(0.1, y.dtype), 0)
    s = eqxi.while_loop(
        lambda s: s[0] < 1.0 - 1e-6,
        lambda s: advance(dot, params, s, by_cond=by_cond),
        start,
        max_steps=64,
        kind="checkpointed",
    )
    return s[1], s[3]


def gradient(solver: Any, **more: Any) -> Any:
    def run(dot: Any, params: Any, y: Any) -> Any:
        return jax.grad(lambda p: jnp.mean((solver(dot, p, y, **more)[0] - y[::-1]) ** 2))(params)

    return run


PARAMS = (normal(8, 32, scale=0.8), normal(32, 8, scale=0.6))
START = normal(16, 8)
ADAPTIVE = {
    "select": (adaptive, (PARAMS, START)),
    "cond and a cap": (lambda *a: adaptive(*a, by_cond=True, capped=True), (PARAMS, START)),
    "checkpointed": (adaptive_checkpointed, (PARAMS, START)),
    "gradient in scan": (gradient(adaptive_in_scan), (PARAMS, START)),
    "gradient in rematerialized scan": (
        gradient(adaptive_in_scan, remat=True, by_cond=True),
        (PARAMS, START),
    ),
    "gradient checkpointed": (gradient(adaptive_checkpointed), (PARAMS, START)),
}
