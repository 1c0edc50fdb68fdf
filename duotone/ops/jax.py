"""The table of JAX primitives: one row for each, with its list, reason, source and traits.

The rows of the clear list are in :mod:`duotone.ops.jax_moves`.

To add a primitive, add its name to the row of its family, or write a row. Operations without a
row stay float32, keep every safety rule on, and are reported. Nine names here are not
primitives but meanings that the front end distinguishes: ``square`` (also ``mul`` of a value
with itself), ``convert_exact`` (a ``convert_element_type`` that loses nothing in half),
``exact_power`` (``integer_pow`` with exponent 0, 1 or -1), ``eq_calculated`` (``eq`` of two
floating point values that are not literals), ``sum_of_two`` (``reduce_sum`` of two terms),
``keep_precision`` (``reduce_precision`` to all digits of float32, which changes nothing),
``sum_of_products`` and ``short_dot`` (a ``dot_general`` that fills no matrix instruction,
:mod:`duotone.graph.products`), ``scatter_once`` (a ``scatter-add`` to zeros that adds at most
one update to each element).

Sources: TensorFlow 2.21, ``auto_mixed_precision_lists.h`` (float16 and bfloat16 lists of the CUDA
and oneDNN modes); NVIDIA, "Training with Mixed Precision", user guide DU-08617, section on the
choice of operations; PyTorch, "CUDA Op-Specific Behavior", automatic mixed precision documentation.
If none of them lists the operation, its reason is duotone's own. The costs of recomputing come from
XLA's instruction fusion, and for a TPU from its compiled programs (``benchmarks/NOTES.md``).
"""

from __future__ import annotations

from types import MappingProxyType

from duotone.ops.entries import (
    NVIDIA,
    OWN,
    STRUCTURAL_ENTRIES,
    TF,
    TORCH,
    Entry,
    Kind,
    Pointwise,
    Taint,
    intervals_by_name,
    names_with,
    rows,
    traits_by_name,
)
from duotone.ops.jax_moves import CLEAR
from duotone.ops.traits import Trait

LINEAR_ALGEBRA = tuple(
    "cholesky cholesky_update lu eig eigh hessenberg householder_product+orthogonal qr+orthogonal "
    "geqrf geqp3 ormqr schur svd symmetric_product triangular_solve tridiagonal tridiagonal_solve "
    "lu_pivots_to_permutation custom_linear_solve custom_root linear_solve".split()
)
"""Factorisations and solves, including Lineax's (``linear_solve``) and ``jax.lax.custom_root``,
which is a ``call_hi_primitive`` from JAX 0.12 on."""

_CHEAP, _EXPENSIVE, _VERY_EXPENSIVE = Pointwise.CHEAP, Pointwise.EXPENSIVE, Pointwise.VERY_EXPENSIVE


_MATRIX = "runs on Tensor Cores, accumulates in float32"
_ALLOW = [
    *rows(
        Kind.ALLOW,
        "dot_general",
        "contracts einsum wide",
        _MATRIX,
        f"{TF} MatMul, BatchMatMulV2, Einsum",
    ),
    *rows(Kind.ALLOW, "ragged_dot_general", "contracts", _MATRIX, f"{OWN}: a grouped MatMul"),
    *rows(
        Kind.ALLOW,
        "conv_general_dilated",
        "contracts convolves",
        _MATRIX,
        f"{TF} Conv2D, Conv3D and their gradients",
    ),
]

_SAFE = "safe where its operands are"
_BOUNDED = "bounded result, small relative error"
_BOUNDED_SOURCE = f"{TF} Tanh, TanhGrad, Sigmoid, Erf, Erfc"
_INFER = [
    *rows(
        Kind.INFER,
        "add add_any",
        "adds keeps_nan",
        _SAFE,
        f"{TF} Add, AddV2, Sub, AddN",
        cost=_CHEAP,
        interval="add",
    ),
    *rows(
        Kind.INFER,
        "sub",
        "adds subtracts keeps_nan",
        _SAFE,
        f"{TF} Add, AddV2, Sub, AddN",
        cost=_CHEAP,
    ),
    *rows(Kind.INFER, "mul", "multiplies keeps_nan", _SAFE, f"{TF} Mul", cost=_CHEAP),
    *rows(Kind.INFER, "div", "divides keeps_nan", _SAFE, f"{TF} RealDiv", cost=_CHEAP),
    *rows(
        Kind.INFER,
        "tanh logistic+nonzero erf",
        "activation bounded saturates keeps_nan",
        _BOUNDED,
        _BOUNDED_SOURCE,
        cost=_EXPENSIVE,
    ),
    *rows(Kind.INFER, "one_minus_square", "", _BOUNDED, _BOUNDED_SOURCE, cost=_CHEAP),
    *rows(
        Kind.INFER,
        "erfc",
        "activation bounded saturates nonzero keeps_nan",
        _BOUNDED,
        _BOUNDED_SOURCE,
        cost=_VERY_EXPENSIVE,
    ),
    *rows(
        Kind.INFER,
        "sqrt",
        "roots square_root pole keeps_nan",
        "halves the exponent's range",
        f"{TF} Sqrt",
        cost=_EXPENSIVE,
    ),
    *rows(
        Kind.INFER,
        "asinh atan",
        "keeps_nan",
        "no larger than its operand and no pole",
        f"{OWN}: |f(x)| <= |x|; TensorFlow lists neither",
        cost=_EXPENSIVE,
    ),
    *rows(
        Kind.INFER,
        "rsqrt cbrt",
        "roots pole keeps_nan",
        "bfloat16 has float32's range",
        f"{TF} bfloat16: Rsqrt",
        cost=_EXPENSIVE,
        only=("bfloat16",),
    ),
    *rows(
        Kind.INFER,
        "select_and_scatter_add",
        "pools",
        "adds at most a few overlapping windows",
        f"{TF} MaxPoolGrad",
    ),
    *rows(
        Kind.INFER,
        "sum_of_two",
        "adds sums_axes",
        "an addition",
        f"{TF} Add",
        interval="reduce_sum",
    ),
    *rows(
        Kind.INFER,
        "exact_power",
        "raises power",
        "a copy, a constant or a reciprocal",
        f"{TF} Reciprocal",
        cost=_CHEAP,
        interval="integer_pow",
    ),
]

_EXP = "overflows half for operands above 11 (float16); magnifies the operand's error"
_LOG = "used by difference: its absolute error counts"
_POWER = (
    "doubles the exponent's range, and variances sum and subtract it, where rounding before the "
    "sum leaves nothing (TensorFlow's norms are single operations)"
)
_VARIANCE = "reads variances, which underflow in half"
_MANY = "accumulates many terms"
_MANY_SOURCE = f"{TF} Sum, Mean; {TORCH} prod, cumsum, cumprod"
_SLOT = "accumulates many terms into one element"
_EMBEDDINGS = f"{OWN}: gradients of embeddings"
_LOW_BITS = "argument reduction or a pole: needs the operand's low bits"
_LOW_BITS_SOURCE = f"{TORCH} tan, sinh, cosh, acos, asin"
_GRID = "depends on the float32 grid"
_GRID_SOURCE = f"{OWN}: means something else in half"
_DENY = [
    *rows(
        Kind.DENY,
        "exp+nonzero exp2+nonzero expm1",
        "exponential activation keeps_nan",
        _EXP,
        f"{TF} Exp, Expm1; {NVIDIA}",
        cost=_EXPENSIVE,
    ),
    *rows(
        Kind.DENY,
        "log log2",
        "logarithm logs keeps_nan",
        _LOG,
        f"{NVIDIA}; {TORCH} log, log1p",
        cost=_EXPENSIVE,
        taint=Taint.ADDITIVE,
    ),
    *rows(
        Kind.DENY,
        "log1p",
        "logarithm activation logs adds_one keeps_nan",
        _LOG,
        f"{NVIDIA}; {TORCH} log, log1p",
        cost=_EXPENSIVE,
        taint=Taint.ADDITIVE,
    ),
    *rows(Kind.DENY, "pow", "raises power pole", "overflows half", f"{TF} Pow", cost=_EXPENSIVE),
    *rows(
        Kind.DENY,
        "square+squares integer_pow",
        "raises power keeps_nan",
        _POWER,
        f"{TF}: absent from the float16 lists; {TORCH} pow",
        cost=_CHEAP,
    ),
    *rows(
        Kind.DENY,
        "rsqrt cbrt",
        "roots pole keeps_nan",
        _VARIANCE,
        f"{TF}: absent from the float16 lists; {TORCH} rsqrt",
        cost=_EXPENSIVE,
        only=("float16",),
    ),
    *rows(
        Kind.DENY, "reduce_sum", "sums averages sums_axes", _MANY, f"{TF} Sum, Mean; {TORCH} sum"
    ),
    *rows(
        Kind.DENY,
        "sum_of_products",
        "contracts einsum",
        "a sum of products: too small for a matrix instruction",
        f"{OWN}: reads as much as it multiplies, so half gains nothing and loses digits",
        interval="dot_general",
    ),
    *rows(
        Kind.DENY,
        "short_dot",
        "contracts einsum short",
        "contracts fewer elements than a matrix instruction takes",
        f"{OWN}: half gains nothing and loses digits",
        interval="dot_general",
    ),
    *rows(Kind.DENY, "cumsum+running reduce_window_sum+pools", "sums", _MANY, _MANY_SOURCE),
    *rows(
        Kind.DENY,
        "reduce_prod+multiplies_up cumprod+multiplies_up+running cumlogsumexp+logs+running",
        "",
        _MANY,
        _MANY_SOURCE,
    ),
    *rows(Kind.DENY, "scatter-add scatter-sub", "sums updates adds_into", _SLOT, _EMBEDDINGS),
    *rows(Kind.DENY, "scatter-mul", "updates", _SLOT, _EMBEDDINGS),
    *rows(
        Kind.DENY,
        "sin+bounded cos+bounded+nonzero tan",
        "sine keeps_nan",
        _LOW_BITS,
        _LOW_BITS_SOURCE,
        cost=_EXPENSIVE,
    ),
    *rows(
        Kind.DENY,
        "sinh cosh+nonzero asin+pole+steep acos+pole+steep acosh+pole+steep atanh+pole+steep atan2",
        "keeps_nan",
        _LOW_BITS,
        _LOW_BITS_SOURCE,
        cost=_EXPENSIVE,
    ),
    *rows(
        Kind.DENY,
        "lgamma+pole digamma+pole polygamma polynomial igamma igammac igamma_grad_a "
        "regularized_incomplete_beta zeta bessel_i0e bessel_i1e erf_inv+pole",
        "",
        "a special function: evaluated by series in float32",
        f"{TORCH} erfinv and losses",
    ),
    *rows(Kind.DENY, "rem", "rounds decides", _GRID, _GRID_SOURCE),
    *rows(Kind.DENY, "nextafter+decides reduce_precision", "", _GRID, _GRID_SOURCE),
    *rows(
        Kind.DENY,
        " ".join(LINEAR_ALGEBRA),
        "solves",
        "linear algebra: has no half form, and magnifies the errors of its operands",
        f"{OWN}: on no list of {TF}",
        fixed="linear algebra has no half form",
    ),
]

ENTRIES: tuple[Entry, ...] = (*_ALLOW, *_INFER, *_DENY, *CLEAR)
"""The rows of operations on a list; :meth:`duotone.precision.classify.lists.OpLists.for_half`
picks those of one half type."""


def _fixed(ops: str, why: str, traits: str = "") -> list[Entry]:
    return rows(Kind.UNLISTED, ops, traits, "on no list", OWN, fixed=why)


_ON_NO_LIST = [
    *rows(Kind.UNLISTED, "and or not", "", "on no list", OWN, cost=_CHEAP),
    *rows(Kind.UNLISTED, "iota", "moves counts", "on no list", OWN),
    *rows(Kind.UNLISTED, "psum psum_invariant reduce_scatter", "sums_devices", "on no list", OWN),
    *rows(Kind.UNLISTED, "duotone_dot", "contracts einsum", "a dot that is half already", OWN),
    *_fixed("complex real imag conj fft", "complex numbers have no half form", "linear"),
    *_fixed(
        "pure_callback io_callback debug_callback debug_print",
        "host code expects the values of the original program",
        "undescribed",
    ),
    *_fixed("bitcast_convert_type", "reads the bits of float32"),
    *_fixed("rng_uniform random_gamma", "draws float32 numbers"),
    *_fixed("approx_top_k", "has no half form"),
]
ROWS = (*STRUCTURAL_ENTRIES, *ENTRIES, *_ON_NO_LIST)
"""All rows."""
TRAITS = traits_by_name(ROWS)
"""The traits of each operation that has a row, by name."""
DOTS = names_with(TRAITS, Trait.EINSUM, Trait.CONVOLVES)
"""Dots and convolutions."""
CHEAP = frozenset(entry.op for entry in ROWS if entry.pointwise is Pointwise.CHEAP)
"""Operations that compilers fuse into each of their readers."""
FIXED = MappingProxyType({entry.op: entry.fixed for entry in ROWS if entry.fixed})
"""Why primitives stay as they are whatever a list says, by name."""
INTERVALS = intervals_by_name(ROWS)
"""The name of the interval function of each, by name."""
