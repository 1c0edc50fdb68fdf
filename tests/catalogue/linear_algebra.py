"""Linear algebra, Fourier transforms and complex numbers: all without a half form."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.catalogue.case import NOT_DIFFERENTIABLE, Case, limits, matrix, reals, symmetric

M, S = matrix(4), symmetric(4)
_LOOSE = (24.0, "a solution magnifies the rounding of the dots around it by its condition number")


def _abs(x: Any) -> Any:
    """Without the sign, which a factorization leaves open."""
    return jax.tree.map(jnp.abs, x)


def _case(name: str, function: Any, args: tuple[Any, ...], primitive: str, **fields: Any) -> Case:
    return Case(
        name=name,
        function=function,
        args=args,
        primitives=(primitive,),
        opaque=(primitive,),
        forced="fixed",
        loose=_LOOSE,
        **fields,
    )


def _no_grad(reason: str) -> dict[str, str]:
    return limits(grad=reason)


def _factorizations() -> list[Case]:
    la = lax.linalg
    return [
        _case("cholesky", lambda x: la.cholesky(x), (S,), "cholesky"),
        _case(
            "cholesky_update",
            lambda r, v: la.cholesky_update(r, v),
            (np.linalg.cholesky(S).T.copy(), reals(4)),
            "cholesky_update",
            limits=limits(grad=NOT_DIFFERENTIABLE, vmap="JAX has no batching rule for it"),
        ),
        _case(
            "eig",
            lambda x: jnp.sort(jnp.real(la.eig(x)[0])),
            (S,),
            "eig",
            limits=_no_grad("JAX has no derivative of eigenvectors of a general matrix"),
        ),
        _case("eigh", lambda x: la.eigh(x)[1], (S,), "eigh"),
        _case("lu", lambda x: la.lu(x)[0], (M,), "lu"),
        _case(
            "lu pivots",
            lambda x: la.lu_pivots_to_permutation(la.lu(x)[1], 4) + 0 * x,
            (M,),
            "lu_pivots_to_permutation",
        ),
        _case("qr", lambda x: _abs(la.qr(x, full_matrices=False)), (M,), "qr"),
        _case("svd", lambda x: la.svd(x, compute_uv=False), (M,), "svd"),
        _case("svd with vectors", lambda x: _abs(la.svd(x, full_matrices=False)), (S,), "svd"),
        _case(
            "schur",
            lambda x: _abs(la.schur(x)[0]),
            (S,),
            "schur",
            limits=_no_grad("JAX has no derivative of schur"),
        ),
        _case(
            "hessenberg",
            lambda x: _abs(la.hessenberg(x)[1]),
            (M,),
            "hessenberg",
            limits=_no_grad("JAX has no derivative of hessenberg"),
        ),
        _case(
            "householder_product",
            lambda x: la.householder_product(x, jnp.full((4,), 0.25)),
            (M,),
            "householder_product",
            limits=_no_grad("JAX has no derivative of householder_product"),
        ),
        _case(
            "ormqr",
            lambda x, c: la.ormqr(x, jnp.full((4,), 0.25), c),
            (M, reals(4, 4)),
            "ormqr",
            limits=_no_grad("JAX has no derivative of ormqr"),
        ),
        _case(
            "tridiagonal",
            lambda x: _abs(la.tridiagonal(x)[1]),
            (S,),
            "tridiagonal",
            limits=_no_grad("JAX has no derivative of tridiagonal"),
        ),
        _case(
            "tridiagonal_solve",
            lambda d, b: la.tridiagonal_solve(0 * d + 0.25, d + 4, 0 * d + 0.25, b),
            (reals(4), reals(4, 2)),
            "tridiagonal_solve",
        ),
        _case(
            "triangular_solve",
            lambda x, b: la.triangular_solve(x, b, left_side=True, lower=True),
            (M, reals(4, 2)),
            "triangular_solve",
        ),
        _case(
            "symmetric_product",
            lambda a, c: la.symmetric_product(a, c, symmetrize_output=True),
            (M, S),
            "symmetric_product",
            limits=_no_grad("JAX has no derivative of symmetric_product"),
        ),
        _case("solve", jnp.linalg.solve, (M, reals(4)), "custom_linear_solve"),
        _case(
            "cho_solve",
            lambda c, b: jax.scipy.linalg.cho_solve((c, True), b),
            (np.linalg.cholesky(S), reals(4)),
            "triangular_solve",
        ),
        _case("inv", jnp.linalg.inv, (M,), "custom_linear_solve"),
        _case("slogdet", jnp.linalg.slogdet, (M,), "lu"),
        _case("lstsq", lambda a, b: jnp.linalg.lstsq(a, b)[0], (M, reals(4)), "svd"),
        Case(name="expm", function=jax.scipy.linalg.expm, args=(M / 4,), loose=_LOOSE),
        Case(
            name="matrix_power",
            function=lambda x: jnp.linalg.matrix_power(x, 3),
            args=(M,),
            loose=_LOOSE,
        ),
    ]


def _complex() -> list[Case]:
    x, y = reals(3, 4), reals(3, 4, seed=1)
    return [
        _case("complex", lambda x, y: jnp.abs(lax.complex(x, y)), (x, y), "complex"),
        _case("real", lambda x: lax.real(lax.complex(x, x) * 2), (x,), "real"),
        _case("imag", lambda x: lax.imag(lax.complex(x, x) * 2), (x,), "imag"),
        _case("conj", lambda x: jnp.real(lax.conj(lax.complex(x, x))), (x,), "conj"),
        _case("conj of a real", lambda x: jnp.real(lax.conj(x)), (x,), "conj"),
        _case("fft", lambda x: jnp.abs(jnp.fft.fft(x)), (x,), "fft"),
        _case("rfft", lambda x: jnp.abs(jnp.fft.rfft(x)), (x,), "fft"),
        _case("irfft", lambda x: jnp.fft.irfft(jnp.fft.rfft(x)), (x,), "fft"),
        _case("fft2", lambda x: jnp.abs(jnp.fft.fft2(x)), (x,), "fft"),
        _case(
            "fftconvolve",
            lambda x, y: jax.scipy.signal.fftconvolve(x, y, "same"),
            (x[0], y[0]),
            "fft",
        ),
        Case(
            name="complex dot",
            function=lambda a, b: jnp.abs(lax.complex(a, a) @ lax.complex(b.T, b.T)),
            args=(x, y),
            loose=_LOOSE,
        ),
        Case(
            name="complex result",
            function=lambda x: lax.complex(x, x),
            args=(x,),
            limits=limits(grad="the result is complex"),
        ),
    ]


CASES = [*_factorizations(), *_complex()]
