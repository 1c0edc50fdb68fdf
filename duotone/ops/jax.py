"""The table of JAX primitives: one row for each, with its list, reason, source and traits.

To add a primitive, add its name to the row of its family, or write a row. Operations without a row
stay float32, keep every safety rule on, and are reported. Seven names here are not primitives but
meanings that the front end tells apart: ``square`` (also ``mul`` of a value with itself),
``convert_exact`` (a ``convert_element_type`` that half loses nothing in), ``exact_power``
(``integer_pow`` with exponent 0, 1 or -1), ``eq_calculated`` (``eq`` of two floating point values
of which none is a literal), ``sum_of_two`` (``reduce_sum`` of two terms), ``sum_of_products`` (a
``dot_general`` that fills no matrix instruction, see :mod:`duotone.graph.products`) and
``scatter_once`` (a ``scatter-add`` to zeros of which no place gets more than one update).

Sources: TensorFlow 2.21, ``auto_mixed_precision_lists.h`` (float16 and bfloat16 lists of the CUDA
and oneDNN modes); NVIDIA, "Training with Mixed Precision", user guide DU-08617, section on the
choice of operations; PyTorch, "CUDA Op-Specific Behavior", automatic mixed precision documentation.
Where none of them has the operation, the reason stands for itself. What is expensive to recompute
was read from XLA's instruction fusion, and for a TPU from its programs (``benchmarks/NOTES.md``).
"""

from __future__ import annotations

from duotone.ops.entries import (
    STRUCTURAL_ENTRIES,
    Entry,
    Kind,
    Pointwise,
    Taint,
    rows,
    traits_by_name,
)

TF = "TensorFlow 2.21"
NVIDIA = "NVIDIA DU-08617"
TORCH = "PyTorch AMP"
OWN = "duotone"

LINEAR_ALGEBRA = tuple(
    "cholesky cholesky_update lu eig eigh hessenberg householder_product qr geqrf geqp3 ormqr "
    "schur svd symmetric_product triangular_solve tridiagonal tridiagonal_solve "
    "lu_pivots_to_permutation custom_linear_solve custom_root linear_solve".split()
)
"""Factorisations and solves: also of Lineax (``linear_solve``), and ``jax.lax.custom_root``, which
is a ``call_hi_primitive`` from JAX 0.12 on."""

_CHEAP, _DEAR, _DEAREST = Pointwise.CHEAP, Pointwise.DEAR, Pointwise.DEAREST


_MATRIX = "runs on Tensor Cores, accumulates in float32"
_ALLOW = [
    *rows(
        Kind.ALLOW, "dot_general", "contracts wide", _MATRIX, f"{TF} MatMul, BatchMatMulV2, Einsum"
    ),
    *rows(Kind.ALLOW, "ragged_dot_general", "contracts", _MATRIX, f"{OWN}: a grouped MatMul"),
    *rows(
        Kind.ALLOW,
        "conv_general_dilated",
        "contracts",
        _MATRIX,
        f"{TF} Conv2D, Conv3D and their gradients",
    ),
]

_SAFE = "safe where its operands are"
_BOUNDED = "bounded result, small relative error"
_BOUNDED_SOURCE = f"{TF} Tanh, TanhGrad, Sigmoid, Erf, Erfc"
_INFER = [
    *rows(Kind.INFER, "add add_any", "adds", _SAFE, f"{TF} Add, AddV2, Sub, AddN", cost=_CHEAP),
    *rows(Kind.INFER, "sub", "adds subtracts", _SAFE, f"{TF} Add, AddV2, Sub, AddN", cost=_CHEAP),
    *rows(Kind.INFER, "mul", "multiplies", _SAFE, f"{TF} Mul", cost=_CHEAP),
    *rows(Kind.INFER, "div", "divides", _SAFE, f"{TF} RealDiv", cost=_CHEAP),
    *rows(Kind.INFER, "tanh logistic erf", "activation", _BOUNDED, _BOUNDED_SOURCE, cost=_DEAR),
    *rows(Kind.INFER, "one_minus_square", "", _BOUNDED, _BOUNDED_SOURCE, cost=_CHEAP),
    *rows(Kind.INFER, "erfc", "activation", _BOUNDED, _BOUNDED_SOURCE, cost=_DEAREST),
    *rows(Kind.INFER, "sqrt", "roots", "halves the exponent's range", f"{TF} Sqrt", cost=_DEAR),
    *rows(
        Kind.INFER,
        "asinh atan",
        "",
        "no larger than its operand and no pole",
        f"{OWN}: |f(x)| <= |x|; TensorFlow lists neither",
        cost=_DEAR,
    ),
    *rows(
        Kind.INFER,
        "rsqrt",
        "roots",
        "bfloat16 has float32's range",
        f"{TF} bfloat16: Rsqrt",
        cost=_DEAR,
        only=("bfloat16",),
    ),
    *rows(
        Kind.INFER,
        "cbrt",
        "",
        "bfloat16 has float32's range",
        f"{TF} bfloat16: Rsqrt",
        cost=_DEAR,
        only=("bfloat16",),
    ),
    *rows(
        Kind.INFER,
        "select_and_scatter_add",
        "",
        "adds at most a few overlapping windows",
        f"{TF} MaxPoolGrad",
    ),
    *rows(Kind.INFER, "sum_of_two", "adds", "an addition", f"{TF} Add"),
    *rows(
        Kind.INFER,
        "exact_power",
        "raises",
        "a copy, a constant or a reciprocal",
        f"{TF} Reciprocal",
        cost=_CHEAP,
    ),
]

_EXP = "overflows half for operands above 11 (float16); magnifies the operand's error"
_LOG = "used by difference: its absolute error counts"
_POWER = (
    "doubles the exponent's range, and is summed and subtracted in variances, where rounding "
    "before the sum leaves nothing (TensorFlow's norms are single operations)"
)
_VARIANCE = "reads variances, which underflow in half"
_MANY = "accumulates many terms"
_MANY_SOURCE = f"{TF} Sum, Mean; {TORCH} prod, cumsum, cumprod"
_PLACE = "accumulates many terms into one place"
_LOW_BITS = "argument reduction or a pole: needs the operand's low bits"
_LOW_BITS_SOURCE = f"{TORCH} tan, sinh, cosh, acos, asin"
_GRID = "depends on the float32 grid"
_GRID_SOURCE = f"{OWN}: means something else in half"
_DENY = [
    *rows(
        Kind.DENY,
        "exp exp2 expm1",
        "exponential activation",
        _EXP,
        f"{TF} Exp, Expm1; {NVIDIA}",
        cost=_DEAR,
    ),
    *rows(
        Kind.DENY,
        "log log2",
        "logarithm",
        _LOG,
        f"{NVIDIA}; {TORCH} log, log1p",
        cost=_DEAR,
        taint=Taint.ADDITIVE,
    ),
    *rows(
        Kind.DENY,
        "log1p",
        "logarithm activation",
        _LOG,
        f"{NVIDIA}; {TORCH} log, log1p",
        cost=_DEAR,
        taint=Taint.ADDITIVE,
    ),
    *rows(Kind.DENY, "pow", "raises", "overflows half", f"{TF} Pow", cost=_DEAR),
    *rows(
        Kind.DENY,
        "square integer_pow",
        "raises",
        _POWER,
        f"{TF}: absent from the float16 lists; {TORCH} pow",
        cost=_CHEAP,
    ),
    *rows(
        Kind.DENY,
        "rsqrt",
        "roots",
        _VARIANCE,
        f"{TF}: absent from the float16 lists; {TORCH} rsqrt",
        cost=_DEAR,
        only=("float16",),
    ),
    *rows(
        Kind.DENY,
        "cbrt",
        "",
        _VARIANCE,
        f"{TF}: absent from the float16 lists; {TORCH} rsqrt",
        cost=_DEAR,
        only=("float16",),
    ),
    *rows(Kind.DENY, "reduce_sum", "sums averages", _MANY, f"{TF} Sum, Mean; {TORCH} sum"),
    *rows(
        Kind.DENY,
        "sum_of_products",
        "contracts",
        "a sum of products, or a dot that is too short to fill a matrix instruction",
        f"{OWN}: reads as much as it multiplies, so half gains nothing and loses digits",
    ),
    *rows(Kind.DENY, "cumsum reduce_window_sum", "sums", _MANY, _MANY_SOURCE),
    *rows(Kind.DENY, "reduce_prod cumprod cumlogsumexp", "", _MANY, _MANY_SOURCE),
    *rows(Kind.DENY, "scatter-add", "sums adds_into", _PLACE, f"{OWN}: gradients of embeddings"),
    *rows(Kind.DENY, "scatter-sub", "sums adds_into", _PLACE, f"{OWN}: gradients of embeddings"),
    *rows(Kind.DENY, "scatter-mul", "", _PLACE, f"{OWN}: gradients of embeddings"),
    *rows(Kind.DENY, "sin cos tan", "sine", _LOW_BITS, _LOW_BITS_SOURCE, cost=_DEAR),
    *rows(
        Kind.DENY,
        "sinh cosh asin acos acosh atanh atan2",
        "",
        _LOW_BITS,
        _LOW_BITS_SOURCE,
        cost=_DEAR,
    ),
    *rows(
        Kind.DENY,
        "lgamma digamma polygamma polynomial igamma igammac igamma_grad_a "
        "regularized_incomplete_beta zeta bessel_i0e bessel_i1e erf_inv",
        "",
        "a special function: evaluated by series in float32",
        f"{TORCH} erfinv and losses",
    ),
    *rows(Kind.DENY, "rem", "rounds", _GRID, _GRID_SOURCE),
    *rows(Kind.DENY, "nextafter reduce_precision", "", _GRID, _GRID_SOURCE),
    *rows(
        Kind.DENY,
        " ".join(LINEAR_ALGEBRA),
        "solves",
        "linear algebra: has no half form, and magnifies the errors of its operands",
        f"{OWN}: {TF} has it on no list",
    ),
]

_MOVES = "moves data; a cast commutes with it"
_MOVES_SOURCE = f"{TF} Reshape, Transpose, Slice, Snapshot, StopGradient"
_PICKS = "picks one of its operands, monotone: a cast commutes with it"
_PICKS_SOURCE = f"{TF} Max, MaxPool, ClipByValue"
_COMPARES = "compares; exact on a value that is half already"
_ROUNDS = "compares or rounds; exact on a value that is half already"
_CLEAR = [
    *rows(
        Kind.CLEAR, "reshape squeeze copy", "commutes reshapes", _MOVES, _MOVES_SOURCE, cost=_CHEAP
    ),
    *rows(Kind.CLEAR, "name stop_gradient", "commutes", _MOVES, _MOVES_SOURCE, cost=_CHEAP),
    *rows(Kind.CLEAR, "transpose", "commutes transposes", _MOVES, _MOVES_SOURCE),
    *rows(
        Kind.CLEAR,
        "rev slice split unstack sharding_constraint reshard pvary optimization_barrier device_put",
        "commutes",
        _MOVES,
        _MOVES_SOURCE,
    ),
    *rows(
        Kind.CLEAR,
        "broadcast_in_dim",
        "commutes repeats reshapes",
        _MOVES,
        f"{TF} BroadcastTo, Tile",
        cost=_CHEAP,
    ),
    *rows(Kind.CLEAR, "tile", "commutes repeats", _MOVES, f"{TF} BroadcastTo, Tile"),
    *rows(
        Kind.CLEAR,
        "concatenate pad stack dynamic_update_slice",
        "commutes parts",
        _MOVES,
        f"{TF} ConcatV2, Pad, Pack",
    ),
    *rows(
        Kind.CLEAR,
        "dynamic_slice gather",
        "commutes repeats indexes",
        "moves data; reads less than it is given",
        f"{TF} GatherV2, StridedSlice",
    ),
    *rows(
        Kind.CLEAR,
        "all_gather all_gather_invariant all_to_all ppermute pbroadcast",
        "commutes",
        "moves data between devices; a cast commutes with it",
        f"{OWN}: half of the bytes travel",
    ),
    *rows(Kind.CLEAR, "scatter", "commutes", "moves data", f"{TF} bfloat16 ScatterNd"),
    *rows(
        Kind.CLEAR,
        "scatter_once",
        "commutes",
        "adds one update at most to each place of zeros: " + _MOVES,
        f"{OWN}: counted, where the indices are constants",
    ),
    *rows(
        Kind.CLEAR,
        "select_n",
        "commutes bounds chooses",
        _PICKS,
        f"{TF} SelectV2, Maximum",
        cost=_CHEAP,
    ),
    *rows(
        Kind.CLEAR,
        "max",
        "commutes bounds activation",
        _PICKS,
        f"{TF} SelectV2, Maximum",
        cost=_CHEAP,
    ),
    *rows(Kind.CLEAR, "min", "commutes bounds", _PICKS, f"{TF} SelectV2, Maximum", cost=_CHEAP),
    *rows(
        Kind.CLEAR,
        "neg abs",
        "commutes negates",
        "changes the sign bit",
        f"{TF} Neg, Abs",
        cost=_CHEAP,
    ),
    *rows(Kind.CLEAR, "reduce_max reduce_min", "commutes selects", _PICKS, _PICKS_SOURCE),
    *rows(
        Kind.CLEAR,
        "cummax cummin reduce_window_max reduce_window_min select_and_gather_add",
        "commutes selects",
        _PICKS,
        _PICKS_SOURCE,
    ),
    *rows(Kind.CLEAR, "clamp", "commutes selects bounds", _PICKS, f"{TF} ClipByValue", cost=_CHEAP),
    *rows(
        Kind.CLEAR,
        "scatter-max scatter-min sort top_k argmax argmin",
        "selects",
        "compares; does not calculate",
        f"{TF} TopKV2, ArgMax",
    ),
    *rows(
        Kind.CLEAR,
        "eq ne lt le gt ge",
        "bounds compares",
        _COMPARES,
        f"{TF} Equal, Less",
        cost=_CHEAP,
    ),
    *rows(Kind.CLEAR, "eq_to lt_to le_to", "bounds compares", _COMPARES, f"{TF} Equal, Less"),
    *rows(Kind.CLEAR, "eq_calculated", "compares equality", _COMPARES, f"{TF} Equal"),
    *rows(
        Kind.CLEAR,
        "floor ceil round",
        "rounds",
        _ROUNDS,
        f"{TF} Sign, Floor, IsFinite",
        cost=_CHEAP,
    ),
    *rows(Kind.CLEAR, "sign is_finite", "", _ROUNDS, f"{TF} Sign, Floor, IsFinite", cost=_CHEAP),
    *rows(
        Kind.CLEAR,
        "convert_element_type",
        "converts",
        "the user's own conversion of a value",
        f"{OWN}: reads what is stored",
        cost=_CHEAP,
    ),
    *rows(
        Kind.CLEAR,
        "convert_exact",
        "commutes converts",
        "a conversion in which half loses nothing (bool, int8, half to float32)",
        f"{OWN}: {_MOVES}",
        cost=_CHEAP,
    ),
]

ENTRIES: tuple[Entry, ...] = (*_ALLOW, *_INFER, *_DENY, *_CLEAR)
"""The rows of operations on a list; :meth:`duotone.graph.classify.lists.OpLists.for_half` picks
those of one half type."""

_ON_NO_LIST = (
    *rows(Kind.UNLISTED, "iota", "counts", "on no list", OWN),
    *rows(Kind.UNLISTED, "bitcast_convert_type", "", "reads bits: random numbers", OWN),
)
TRAITS = traits_by_name((*STRUCTURAL_ENTRIES, *ENTRIES, *_ON_NO_LIST))
"""The traits of each operation that has a row, by name."""
