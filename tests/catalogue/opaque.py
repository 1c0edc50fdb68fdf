"""What duotone leaves alone: random numbers, callbacks, kernels, references, foreign functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning

from tests.catalogue.case import (
    NO_FLOAT,
    NOT_DIFFERENTIABLE,
    Case,
    limits,
    positives,
    reals,
)

X = reals(4, 4)
_CALLBACK = limits(grad="JAX differentiates no callback")


def _case(name: str, function: Any, primitive: str, *args: Any, **fields: Any) -> Case:
    fields = {"opaque": (primitive,), "primitives": (primitive,), "forced": "refused", **fields}
    return Case(name=name, function=function, args=args or (X,), **fields)


def _random() -> list[Case]:
    def keyed() -> tuple[Any, ...]:
        return (jax.random.key(3), X)

    def draws(function: Any) -> Any:
        return lambda key, x: x + function(key)

    table = [
        ("random_bits", "random_bits", lambda k: jax.random.uniform(k, (4, 4))),
        ("random normal", "erf_inv", lambda k: jax.random.normal(k, (4, 4))),
        (
            "random_split",
            "random_split",
            lambda k: jax.random.normal(jax.random.split(k)[0], (4, 4)),
        ),
        (
            "random_fold_in",
            "random_fold_in",
            lambda k: jax.random.normal(jax.random.fold_in(k, 3), (4, 4)),
        ),
        ("random_wrap", "random_unwrap", lambda k: jax.random.key_data(k)[0] * 0),
        ("random gamma", "random_gamma", lambda k: jax.random.gamma(k, 2.0, (4, 4))),
        ("bernoulli", "random_bits", lambda k: jax.random.bernoulli(k, 0.5, (4, 4)) * 1.0),
        ("permutation", "random_bits", lambda k: jax.random.permutation(k, 4)),
        ("categorical", "random_bits", lambda k: jax.random.categorical(k, jnp.ones(4))),
        (
            "truncated normal",
            "random_bits",
            lambda k: jax.random.truncated_normal(k, -1, 1, (4, 4)),
        ),
    ]
    cases = [
        Case(
            name=name,
            function=draws(function),
            args=keyed,
            primitives=(primitive,),
            through=1,
            limits=limits(forced="draws its numbers in float32 from bits"),
        )
        for name, primitive, function in table
    ]
    return [
        *cases,
        Case(
            name="random_seed",
            function=lambda s, x: x + jax.random.uniform(jax.random.PRNGKey(s), (4, 4)),
            args=(np.uint32(3), X),
            primitives=("random_seed",),
            through=1,
            limits=limits(forced=NO_FLOAT),
        ),
        Case(
            name="dropout",
            function=lambda k, x: jnp.where(jax.random.bernoulli(k, 0.5, x.shape), x / 0.5, 0),
            args=lambda: (jax.random.key(0), X),
            through=1,
        ),
        Case(
            name="rng_bit_generator",
            function=lambda k, x: lax.rng_bit_generator(k, (4, 4), np.uint32)[1] * 0 + x,
            args=(np.arange(4, dtype=np.uint32), X),
            primitives=("rng_bit_generator",),
            through=1,
            limits=limits(forced=NO_FLOAT, vmap="vmap draws other bits"),
        ),
        _case(
            "rng_uniform",
            lambda x: 0 * lax.rng_uniform(x[0, 0], x[0, 0] + 1, (4, 4)) + x,
            "rng_uniform",
            limits=limits(
                grad="JAX has no derivative of rng_uniform",
                vmap="JAX has no batching rule for rng_uniform",
            ),
            forced="fixed",
        ),
        Case(
            name="key as an operand and a result",
            function=lambda k, x: (jax.random.split(k), x),
            args=lambda: (jax.random.key(1), X),
            through=1,
            limits=limits(vmap="vmap maps no key that stands alone"),
        ),
    ]


def _callbacks() -> list[Case]:
    shape = jax.ShapeDtypeStruct((4, 4), np.float32)

    def host(x: Any) -> np.ndarray:
        assert x.dtype == np.float32, "a callback got other numbers than its author wrote it for"
        return np.sin(np.asarray(x))

    def seen(x: Any) -> None:
        assert x.dtype == np.float32, "a callback got other numbers than its author wrote it for"

    def _host(name: str, function: Any, primitive: str, **fields: Any) -> Case:
        return _case(name, function, primitive, forced="fixed", **fields)

    return [
        _host(
            "pure_callback",
            lambda x: jax.pure_callback(host, shape, x, vmap_method="sequential"),
            "pure_callback",
            limits=_CALLBACK,
        ),
        _host(
            "io_callback", lambda x: io_callback(host, shape, x), "io_callback", limits=_CALLBACK
        ),
        _host(
            "io_callback ordered",
            lambda x: io_callback(host, shape, x, ordered=True),
            "io_callback",
            limits={**_CALLBACK, "vmap": "JAX maps no ordered effect"},
        ),
        _host("debug.callback", lambda x: (jax.debug.callback(seen, x), x)[1], "debug_callback"),
        _host(
            "debug.callback ordered",
            lambda x: (jax.debug.callback(seen, x, ordered=True), x)[1],
            "debug_callback",
            limits=limits(vmap="JAX maps no ordered effect"),
        ),
        _host("debug.print", lambda x: (jax.debug.print("{}", x[0, 0]), x)[1], "debug_print"),
        _host(
            "callback in scan",
            lambda x: lax.scan(
                lambda c, _: (
                    c + jax.pure_callback(host, shape, c, vmap_method="sequential"),
                    None,
                ),
                x,
                None,
                length=2,
            )[0],
            "pure_callback",
            limits=_CALLBACK,
        ),
        _host(
            "debug.callback in checkpoint",
            jax.checkpoint(lambda x: (jax.debug.callback(seen, x), jnp.sin(x))[1]),
            "debug_callback",
        ),
    ]


def _kernels() -> list[Case]:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2 + 1

    def doubled(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, np.float32)
        return pl.pallas_call(kernel, out_shape=shape, interpret=True)(x)

    def mutated(x: Any) -> Any:
        ref = jax.new_ref(x)
        ref[0] = ref[1] * 2
        return ref[...]

    @custom_partitioning
    def partitioned(x: Any) -> Any:
        return jnp.sin(x)

    partitioned.def_partition(
        infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding,
        partition=lambda mesh, args, result: (mesh, jnp.sin, args[0].sharding, (args[0].sharding,)),
        sharding_rule="i j -> i j",
    )

    @jax.jit
    def composed(x: Any) -> Any:
        return lax.composite(lambda x: jnp.sin(x) * 2, name="my.sine")(x)

    def linear_called(x: Any) -> Any:
        return jax.custom_derivatives.linear_call(lambda _, x: x * 3, lambda _, t: t * 3, (), x)

    return [
        _case(
            "pallas_call",
            doubled,
            "pallas_call",
            limits=limits(grad="JAX differentiates no kernel that writes a reference"),
        ),
        _case("references", mutated, "get", limits=limits(forced="refs hold one dtype")),
        _case("references swapped", mutated, "swap", limits=limits(forced="refs hold one dtype")),
        _case(
            "custom_partitioning",
            partitioned,
            "custom_partitioning",
            limits=limits(
                grad="JAX differentiates no custom_partitioning",
                vmap="JAX has no batching rule for custom_partitioning",
            ),
        ),
        _case(
            "composite",
            composed,
            "composite",
            limits=limits(
                grad="JAX has no derivative of composite",
                vmap="JAX has no batching rule for composite",
            ),
        ),
        _case(
            "linear_call",
            linear_called,
            "linear_call",
            limits=limits(vmap="JAX has no batching rule for linear_call"),
        ),
        _case(
            "ffi_call",
            _lapack_cholesky,
            "ffi_call",
            positives(4, 4),
            through=None,
            limits=limits(
                grad=NOT_DIFFERENTIABLE,
                vmap="called with no vmap_method",
                forced="a kernel of the user's decides what it takes",
            ),
            opaque=("ffi_call",),
        ),
        Case(
            name="tokens",
            function=lambda x: (lax.after_all(lax.create_token()), x)[1],
            args=(X,),
            primitives=("after_all", "create_token"),
            limits=limits(forced=NO_FLOAT),
        ),
    ]


def _lapack_cholesky(x: Any) -> Any:
    """LAPACK's spotrf through the foreign function interface.

    jaxlib registers it on import and finds SciPy's LAPACK when JAX first lowers a factorization.
    """
    with jax.ensure_compile_time_eval():
        jnp.linalg.cholesky(jnp.eye(2))
    symmetric = x @ x.T + 20 * jnp.eye(4)
    return _potrf(symmetric)


def _potrf(x: Any) -> Any:
    shapes = (jax.ShapeDtypeStruct((4, 4), np.float32), jax.ShapeDtypeStruct((), np.int32))
    call = jax.ffi.ffi_call(
        "lapack_spotrf_ffi", shapes, input_layouts=[(0, 1)], output_layouts=[(0, 1), ()]
    )
    return jnp.diagonal(call(x, uplo=np.uint8(ord("L")))[0])


CASES = [*_random(), *_callbacks(), *_kernels()]
