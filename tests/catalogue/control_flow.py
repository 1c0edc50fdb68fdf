"""Loops, conditionals and nested jit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.catalogue.case import Case, cases_of, limits, reals, units

X, W = reals(8, 8), units(8, 8, seed=1)
XS = reals(5, 8, 8, seed=2)
_STRUCTURAL = limits(forced="not an operation: a nested program")
_NO_REVERSE = limits(
    grad="JAX has no reverse derivative of a while loop",
    forced="not an operation: a nested program",
)


_case = cases_of(X, W, limits=_STRUCTURAL)


def _step(h: Any, x: Any, w: Any) -> Any:
    return jnp.tanh((h + x) @ w)


def _scans() -> list[Case]:
    def recurrent(**options: Any) -> Any:
        def run(xs: Any, w: Any) -> Any:
            def body(h: Any, x: Any) -> Any:
                h = _step(h, x, w)
                return h, (h, jnp.sum(h))

            return lax.scan(body, xs[0], xs, **options)

        return run

    def accumulator(xs: Any, w: Any) -> Any:
        def body(total: Any, x: Any) -> Any:
            return total + x.T @ jnp.tanh(x @ w), None

        return lax.scan(body, jnp.zeros((8, 8)), xs)[0]

    def nested(xs: Any, w: Any) -> Any:
        def outer(h: Any, x: Any) -> Any:
            inner, ys = lax.scan(lambda c, _: (_step(c, x, w), c), h, None, length=2)
            return inner, ys

        return lax.scan(outer, xs[0], xs)

    def mixed_carry(xs: Any, w: Any) -> Any:
        def body(carry: Any, x: Any) -> Any:
            h, count, done, key = carry
            h = jnp.where(done, h, _step(h, x, w))
            return (h, count + 1, count > 2, jax.random.fold_in(key, count)), count

        return lax.scan(body, (xs[0], 0, False, jax.random.key(0)), xs)[0][:3]

    def weak_carry(xs: Any, w: Any) -> Any:
        return lax.scan(lambda c, x: (c * 0.5 + jnp.sum(x @ w), c), 1.0, xs)

    def half_carry(xs: Any, w: Any) -> Any:
        start = xs[0].astype(jnp.float16)
        return lax.scan(lambda c, x: ((c + x @ w).astype(c.dtype), c), start, xs)[0]

    def swapped(x: Any, w: Any) -> Any:
        return lax.scan(lambda c, _: ((c[1] @ w, jnp.sin(c[0])), None), (x, x), None, length=3)[0]

    args = (XS, W)
    return [
        _case("scan", recurrent(), "scan", *args, primitives=("scan",)),
        _case("scan reverse", recurrent(reverse=True), "scan", *args),
        _case("scan unrolled", recurrent(unroll=2), "scan", *args),
        _case("scan split transpose", recurrent(_split_transpose=True), "scan", *args),
        _case(
            "scan without xs",
            lambda x, w: lax.scan(lambda h, _: (_step(h, x, w), h), x, None, length=3),
            "scan",
        ),
        _case(
            "scan of length 0",
            lambda x, w: lax.scan(lambda h, _: (_step(h, x, w), h), x, None, length=0),
            "scan",
        ),
        _case(
            "scan without carry",
            lambda xs, w: lax.scan(lambda _, x: (None, x @ w), None, xs)[1],
            "scan",
            *args,
        ),
        _case("scan as an accumulator", accumulator, "scan accumulator", *args),
        _case("scan in scan", nested, "scan nested", *args),
        _case("scan with carries of many types", mixed_carry, "scan", *args),
        _case("scan with a weakly typed carry", weak_carry, "scan", *args, grad_ulp=32.0),
        _case("scan with a half carry of the user's", half_carry, "scan", *args),
        _case("scan with swapped carries", swapped, "scan"),
        _case(
            "scan over stacked weights",
            lambda ws, x: lax.scan(lambda h, w: (jnp.tanh(h @ w), h), x, ws),
            "scan",
            units(3, 8, 8),
            X,
        ),
        _case(
            "grad of scan",
            lambda xs, w: jax.grad(lambda w: jnp.sum(recurrent()(xs, w)[0] ** 2))(w),
            "grad of scan",
            *args,
        ),
        _case(
            "jvp of scan",
            lambda xs, w: jax.jvp(lambda w: recurrent()(xs, w)[1][0], (w,), (w,)),
            "jvp of scan",
            *args,
        ),
        _case("lax.map", lambda xs, w: lax.map(lambda x: jnp.tanh(x @ w), xs), "lax.map", *args),
        _case(
            "lax.map in batches",
            lambda xs, w: lax.map(lambda x: jnp.tanh(x @ w), xs, batch_size=2),
            "lax.map",
            *args,
        ),
        _case(
            "associative_scan",
            lambda xs, w: lax.associative_scan(lambda a, b: a + b, xs @ w),
            "associative_scan",
            *args,
        ),
        _case(
            "associative_scan of products",
            lambda xs: lax.associative_scan(jnp.matmul, xs),
            "associative_scan",
            units(4, 8, 8),
        ),
        _case(
            "python loop", lambda xs, w: sum((x @ w for x in xs), jnp.zeros((8, 8))), "jit", *args
        ),
    ]


def _loops() -> list[Case]:
    def counted(x: Any, w: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, _step(c[1], x, w)), (0, x))

    def until_small(x: Any, w: Any) -> Any:
        return lax.while_loop(
            lambda h: jnp.sum(h @ jnp.abs(w)) < 50, lambda h: h + jnp.abs(h @ w) + 1, x
        )

    return [
        _case("while_loop", counted, "while_loop", limits=_NO_REVERSE, primitives=("while",)),
        _case(
            "while_loop with a dot in its condition", until_small, "while_loop", limits=_NO_REVERSE
        ),
        _case(
            "while_loop that never runs",
            lambda x, w: lax.while_loop(lambda h: False, lambda h: h @ w, x),
            "while_loop",
            limits=_NO_REVERSE,
        ),
        _case(
            "jvp of while_loop",
            lambda x, w: jax.jvp(lambda x: counted(x, w)[1], (x,), (x,)),
            "jvp of while_loop",
            limits=_NO_REVERSE,
        ),
        _case(
            "fori_loop static",
            lambda x, w: lax.fori_loop(0, 3, lambda i, h: _step(h, x * i, w), x),
            "fori_loop",
        ),
        _case(
            "fori_loop dynamic",
            lambda x, w, n: lax.fori_loop(0, n, lambda i, h: _step(h, x, w), x),
            "fori_loop",
            X,
            W,
            np.int32(3),
            limits=_NO_REVERSE,
        ),
        _case(
            "fori_loop unrolled",
            lambda x, w: lax.fori_loop(0, 4, lambda i, h: _step(h, x, w), x, unroll=2),
            "fori_loop",
        ),
        _case(
            "fori_loop that updates a buffer",
            lambda x, w: lax.fori_loop(0, 3, lambda i, b: b.at[i].set(x[i] @ w), jnp.zeros((3, 8))),
            "fori_loop",
        ),
    ]


def _conditionals() -> list[Case]:
    def cond(x: Any, w: Any) -> Any:
        return lax.cond(x[0, 0] > 0, lambda x: x @ w, lambda x: jnp.exp(x / 4), x)

    def switch(x: Any, w: Any) -> Any:
        branches = [lambda x: x @ w, lambda x: x * 2, lambda x: jnp.ones_like(x)]
        return lax.switch(jnp.int32(jnp.sum(x) > 0) + 1, branches, x)

    def in_scan(xs: Any, w: Any) -> Any:
        return lax.scan(
            lambda h, x: (lax.cond(x[0, 0] > 0, lambda h: _step(h, x, w), lambda h: h, h), None),
            xs[0],
            xs,
        )[0]

    return [
        _case("cond", cond, "cond", primitives=("cond",)),
        _case(
            "cond of several results",
            lambda x, w: lax.cond(True, lambda x: (x @ w, 1), lambda x: (x, 2), x),
            "cond",
        ),
        _case(
            "cond whose branches return an operand",
            lambda x, w: lax.cond(x[0, 0] > 0, lambda x, y: x, lambda x, y: y, x @ w, x),
            "cond",
        ),
        _case("switch", switch, "switch", primitives=("cond",)),
        _case(
            "switch under vmap",
            lambda x, w: jax.vmap(
                lambda r, i: lax.switch(i, [lambda r: r @ w, jnp.sin, jnp.cos], r)
            )(x, jnp.arange(8) % 3),
            "switch under vmap",
        ),
        _case(
            "cond under vmap",
            lambda x, w: jax.vmap(lambda r: lax.cond(r[0] > 0, lambda r: r @ w, lambda r: r, r))(x),
            "cond under vmap",
        ),
        _case("cond in scan", in_scan, "cond", XS, W),
        _case(
            "cond with no results",
            lambda x, w: (lax.cond(x[0, 0] > 0, lambda: None, lambda: None), x @ w)[1],
            "cond",
        ),
        _case(
            "grad of cond", jax.grad(lambda x, w: jnp.sum(cond(x, w) ** 2), (0, 1)), "grad of cond"
        ),
        _case(
            "platform_dependent",
            lambda x, w: lax.platform_dependent(
                x, cpu=lambda x: x @ w, default=lambda x: x @ w * 1
            ),
            "cond",
        ),
        _case(
            "cond in a branch",
            lambda x, w: lax.cond(x[0, 0] > 0, lambda x: cond(x @ w, w), lambda x: x, x),
            "cond",
        ),
    ]


def _jits() -> list[Case]:
    def block(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w)

    inner = jax.jit(block)
    device = jax.devices()[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    mesh = jax.sharding.Mesh(np.array([device]), ("d",))
    named = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    static = jax.jit(
        lambda x, w, activation, scale: activation(x @ w) * scale,
        static_argnums=(2,),
        static_argnames=("scale",),
    )
    return [
        _case("jit", inner, "jit", primitives=("jit",)),
        _case("jit in jit", jax.jit(lambda x, w: inner(inner(x, w), w)), "jit nested"),
        _case("jit called twice", lambda x, w: inner(x, w) + inner(x @ w, w), "jit nested"),
        _case(
            "jit with static arguments",
            lambda x, w: static(x, w, jnp.tanh, scale=2),
            "jit static arguments",
        ),
        _case(
            "jit with donation",
            lambda x, w: jax.jit(block, donate_argnums=0)(x + 0, w),
            "jit donation",
            limits=limits(forced="not an operation", vmap=""),
        ),
        _case(
            "jit with out_shardings",
            jax.jit(block, out_shardings=named),
            "jit shardings",
            limits={**_STRUCTURAL},
        ),
        _case(
            "jit with in_shardings",
            lambda x, w: jax.jit(block, in_shardings=(named, named))(x @ w, w),
            "jit shardings",
        ),
        _case("jit on a device", jax.jit(block, out_shardings=sharding), "jit shardings"),
        _case("jit kept from inlining", lambda x, w: jax.jit(block, inline=False)(x @ w, w), "jit"),
        _case(
            "with_sharding_constraint",
            lambda x, w: lax.with_sharding_constraint(x @ w, named) @ w,
            "sharding_constraint",
            primitives=("sharding_constraint",),
            limits={},
        ),
        _case(
            "jnp functions with inner jits",
            lambda x, w: jnp.clip(jnp.where(x > 0, x @ w, jnp.var(x)), -1, 1),
            "jit nested",
        ),
        _case("named_scope", lambda x, w: jax.named_call(block, name="block")(x, w), "named_scope"),
    ]


CASES = [*_scans(), *_loops(), *_conditionals(), *_jits()]
