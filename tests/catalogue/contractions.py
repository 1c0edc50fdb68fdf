"""Dots and convolutions, in every shape and with every option."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.catalogue.case import Case, integers, limits, reals

A, B = reals(3, 8), reals(8, 10, seed=1)


def _dot(dimensions: Any, **options: Any) -> Any:
    return lambda a, b: lax.dot_general(a, b, dimensions, **options)


def _dots() -> list[Case]:
    plain = (((1,), (0,)), ((), ()))
    batched = (((2,), (1,)), ((0,), (0,)))
    table: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = [
        ("dot_general", _dot(plain), (A, B), {}),
        ("dot_general batched", _dot(batched), (reals(2, 3, 8), reals(2, 8, 3)), {}),
        (
            "dot_general of left transposed",
            _dot((((0,), (0,)), ((), ()))),
            (reals(8, 3), reals(8, 5)),
            {},
        ),
        (
            "dot_general of two contractions",
            _dot((((0, 1), (0, 1)), ((), ()))),
            (A, reals(3, 8)),
            {},
        ),
        ("dot_general outer product", _dot((((), ()), ((), ()))), (reals(3), reals(4)), {}),
        ("vector dot", jnp.dot, (reals(8), reals(8, seed=2)), {}),
        ("matrix times vector", jnp.dot, (A, reals(8)), {}),
        (
            "dot_general with preferred_element_type",
            _dot(plain, preferred_element_type=np.float32),
            (A, B),
            {},
        ),
        (
            "dot_general with precision highest",
            _dot(plain, precision=lax.Precision.HIGHEST),
            (A, B),
            {"forced": "fixed"},
        ),
        ("dot_general with precision default", _dot(plain, precision="default"), (A, B), {}),
        (
            "dot_general with an algorithm",
            _dot(plain, precision=lax.DotAlgorithmPreset.F32_F32_F32),
            (A, B),
            {"forced": "fixed"},
        ),
        (
            "dot of half and float32",
            lambda a, b: jnp.dot(a.astype(jnp.float16), b, preferred_element_type=jnp.float32),
            (A, B),
            {"forced": "fixed"},
        ),
        (
            "dot of float16 with a float32 result",
            lambda a, b: jnp.dot(
                a.astype(np.float16), b.astype(np.float16), preferred_element_type=np.float32
            ),
            (A, B),
            {"forced": "fixed"},
        ),
        (
            "einsum",
            lambda a, b: jnp.einsum("bij,bjk,k->bi", a, b, b[0, 0]),
            (reals(2, 3, 8), reals(2, 8, 8)),
            {},
        ),
        (
            "attention",
            lambda q, k: jax.nn.softmax(q @ k.T + jnp.where(jnp.tri(8, dtype=bool), 0, -1e9)) @ k,
            (reals(8, 8), reals(8, 8, seed=4)),
            {},
        ),
        (
            "dot_product_attention",
            lambda q, k: jax.nn.dot_product_attention(q, k, k, is_causal=True),
            (reals(1, 8, 2, 8), reals(1, 8, 2, 8, seed=5)),
            {},
        ),
        ("multi_dot", lambda a, b: jnp.linalg.multi_dot([a, b, b.T]), (A, B), {}),
        ("dot of empty contraction", _dot(plain), (reals(3, 0), reals(0, 5)), {}),
    ]
    return [
        Case(name=name, function=function, args=args, primitives=("dot_general",), **extra)
        for name, function, args, extra in table
    ] + [
        Case(
            name="integer dot",
            function=lambda a, x: jnp.dot(a, a.T, preferred_element_type=np.int32) + x,
            args=(integers(3, 4), np.float32(0.5)),
            primitives=("dot_general",),
            through=1,
            forced="fixed",
        ),
        Case(
            name="ragged_dot",
            function=lambda a, b: lax.ragged_dot(a, b, jnp.array([1, 2, 1], np.int32)),
            args=(reals(4, 4), reals(3, 4, 5)),
            primitives=("ragged_dot_general",),
            limits=limits(vmap="JAX maps ragged_dot over its first dimension only"),
        ),
        Case(
            name="ragged_dot with preferred_element_type",
            function=lambda a, b: lax.ragged_dot(
                a, b, jnp.array([1, 2, 1], np.int32), preferred_element_type=np.float32
            ),
            args=(reals(4, 4), reals(3, 4, 5)),
            primitives=("ragged_dot_general",),
            limits=limits(vmap="JAX maps ragged_dot over its first dimension only"),
        ),
        Case(
            name="scaled_dot",
            function=lambda a, b: lax.scaled_dot(a, b),
            args=(A, B),
            limits=limits(grad="JAX has no derivative of scaled_dot"),
        ),
    ]


def _conv(window: int, **options: Any) -> Any:
    return lambda x, k: lax.conv_general_dilated(x, k, (1,) * window, "SAME", **options)


def _convolutions() -> list[Case]:
    image, kernel = reals(1, 2, 5, 4), reals(4, 2, 3, 3, seed=1)
    table: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("conv 1d", _conv(1), (reals(2, 3, 8), reals(4, 3, 3, seed=1))),
        ("conv 2d", _conv(2), (image, kernel)),
        ("conv 3d", _conv(3), (reals(1, 2, 3, 3, 4), reals(2, 2, 2, 2, 2, seed=1))),
        (
            "conv NHWC",
            _conv(2, dimension_numbers=("NHWC", "HWIO", "NHWC")),
            (reals(1, 5, 4, 2), reals(3, 3, 2, 4)),
        ),
        (
            "conv strided and padded",
            lambda x, k: lax.conv_general_dilated(x, k, (2, 1), [(1, 0), (2, 2)]),
            (image, kernel),
        ),
        ("conv dilated kernel", _conv(2, rhs_dilation=(2, 1)), (image, kernel)),
        (
            "conv dilated image",
            lambda x, k: lax.conv_general_dilated(
                x, k, (1, 1), [(1, 1), (1, 1)], lhs_dilation=(1, 2)
            ),
            (image, kernel),
        ),
        ("conv grouped", _conv(2, feature_group_count=2), (image, reals(4, 1, 3, 3))),
        (
            "conv with batch_group_count",
            _conv(2, batch_group_count=2),
            (reals(2, 2, 5, 4), reals(4, 2, 3, 3)),
        ),
        (
            "conv with preferred_element_type",
            _conv(2, preferred_element_type=np.float32),
            (image, kernel),
        ),
        (
            "conv_transpose",
            lambda x, k: lax.conv_transpose(x, k, (2,), "SAME"),
            (reals(1, 5, 2), reals(3, 2, 4)),
        ),
        (
            "conv with reversed window",
            lambda x, k: jnp.convolve(x, k, "same"),
            (reals(8), reals(3)),
        ),
        (
            "conv patches",
            lambda x, k: lax.conv_general_dilated_patches(x, (2, 2), (1, 1), "VALID") * k,
            (image, np.float32(2)),
        ),
    ]
    cases = [
        Case(name=name, function=function, args=args, primitives=("conv_general_dilated",))
        for name, function, args in table
    ]
    cases.append(
        Case(
            name="conv with precision highest",
            function=_conv(2, precision="highest"),
            args=(image, kernel),
            primitives=("conv_general_dilated",),
            opaque=("conv_general_dilated",),
            forced="fixed",
        )
    )
    cases.append(
        Case(
            name="conv_general_dilated_local",
            function=lambda x, k: lax.conv_general_dilated_local(x, k, (1,), "VALID", (2,)),
            args=(reals(1, 2, 4), reals(3, 4, 3)),
        )
    )
    return cases


CASES = [*_dots(), *_convolutions()]
