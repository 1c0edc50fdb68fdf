"""The lists for JAX primitives: allow, infer, deny, clear, each entry with its reason and source.

To add a primitive, add one line to the family it belongs to. Operations on no list stay float32 and
are reported. Seven names here are not primitives but meanings that the front end tells apart:
``square`` (also ``mul`` of a value with itself), ``convert_exact`` (a ``convert_element_type`` that
half loses nothing in), ``exact_power`` (``integer_pow`` with exponent 0, 1 or -1),
``eq_calculated`` (``eq`` of two floating point values of which none is a literal), ``sum_of_two``
(``reduce_sum`` of two terms), ``sum_of_products`` (a ``dot_general`` without a free axis, or with
fewer than 4 elements along each) and ``scatter_once`` (a ``scatter-add`` to zeros of which no place
gets more than one update).

Sources: TensorFlow 2.21, ``auto_mixed_precision_lists.h`` (float16 and bfloat16 lists of the CUDA
and oneDNN modes); NVIDIA, "Training with Mixed Precision", user guide DU-08617, section on the
choice of operations; PyTorch, "CUDA Op-Specific Behavior", automatic mixed precision documentation.
Where none of them has the operation, the reason stands for itself.
"""

from __future__ import annotations

from typing import Any

from duotone.graph.classify.lists import Entry, Kind, Pointwise, Taint
from duotone.jaxpr.reading.operations import LINEAR_ALGEBRA

TF = "TensorFlow 2.21"
NVIDIA = "NVIDIA DU-08617"
TORCH = "PyTorch AMP"
OWN = "duotone"

_CHEAP = frozenset(
    "add sub add_any mul div square integer_pow exact_power one_minus_square neg abs max min sign "
    "select_n clamp floor ceil round is_finite eq ne lt le gt ge convert_element_type "
    "convert_exact copy stop_gradient name reshape broadcast_in_dim squeeze".split()
)
_DEAR = frozenset(
    "exp exp2 expm1 log log1p log2 pow sqrt rsqrt cbrt tanh logistic erf sin cos tan sinh "
    "cosh asin acos atan asinh acosh atanh atan2".split()
)
_DEAREST = frozenset({"erfc"})


def _pointwise(op: str) -> Pointwise:
    """XLA's instruction fusion holds the same functions for expensive, or dear and dearest.

    What a TPU's compiler keeps was seen in its programs, see ``benchmarks/NOTES.md``.
    """
    if op in _CHEAP:
        return Pointwise.CHEAP
    if op in _DEAREST:
        return Pointwise.DEAREST
    return Pointwise.DEAR if op in _DEAR else Pointwise.NO


def _entries(kind: Kind, ops: str, reason: str, source: str, **features: Any) -> list[Entry]:
    """One entry for each name in ``ops``; ``features`` are fields of :class:`Entry`."""
    return [
        Entry(op, kind, reason, source, pointwise=_pointwise(op), **features) for op in ops.split()
    ]


_ALLOW = [
    *_entries(
        Kind.ALLOW,
        "dot_general",
        "runs on Tensor Cores, accumulates in float32",
        f"{TF} MatMul, BatchMatMulV2, Einsum",
        wide=True,
    ),
    *_entries(
        Kind.ALLOW,
        "ragged_dot_general",
        "runs on Tensor Cores, accumulates in float32",
        f"{OWN}: a grouped MatMul",
    ),
    *_entries(
        Kind.ALLOW,
        "conv_general_dilated",
        "runs on Tensor Cores, accumulates in float32",
        f"{TF} Conv2D, Conv3D and their gradients",
    ),
]

_INFER = [
    *_entries(
        Kind.INFER,
        "add sub add_any",
        "safe where its operands are",
        f"{TF} Add, AddV2, Sub, AddN",
        additive=True,
    ),
    *_entries(Kind.INFER, "mul", "safe where its operands are", f"{TF} Mul"),
    *_entries(Kind.INFER, "div", "safe where its operands are", f"{TF} RealDiv", divides=True),
    *_entries(
        Kind.INFER,
        "tanh one_minus_square logistic erf erfc",
        "bounded result, small relative error",
        f"{TF} Tanh, TanhGrad, Sigmoid, Erf, Erfc",
    ),
    *_entries(Kind.INFER, "sqrt", "halves the exponent's range", f"{TF} Sqrt"),
    *_entries(
        Kind.INFER,
        "asinh atan",
        "no larger than its operand and no pole",
        f"{OWN}: |f(x)| <= |x|; TensorFlow lists neither",
    ),
    *_entries(
        Kind.INFER,
        "rsqrt cbrt",
        "bfloat16 has float32's range",
        f"{TF} bfloat16: Rsqrt",
        only=("bfloat16",),
    ),
    *_entries(
        Kind.INFER,
        "select_and_scatter_add",
        "adds at most a few overlapping windows",
        f"{TF} MaxPoolGrad",
    ),
    *_entries(Kind.INFER, "sum_of_two", "an addition", f"{TF} Add", additive=True),
    *_entries(Kind.INFER, "exact_power", "a copy, a constant or a reciprocal", f"{TF} Reciprocal"),
]

_DENY = [
    *_entries(
        Kind.DENY,
        "exp exp2 expm1",
        "overflows half for operands above 11 (float16); magnifies the operand's error",
        f"{TF} Exp, Expm1; {NVIDIA}",
    ),
    *_entries(
        Kind.DENY,
        "log log1p log2",
        "used by difference: its absolute error counts",
        f"{NVIDIA}; {TORCH} log, log1p",
        taint=Taint.ADDITIVE,
    ),
    *_entries(Kind.DENY, "pow", "overflows half", f"{TF} Pow"),
    *_entries(
        Kind.DENY,
        "square integer_pow",
        "doubles the exponent's range, and is summed and subtracted in variances, where rounding "
        "before the sum leaves nothing (TensorFlow's norms are single operations)",
        f"{TF}: absent from the float16 lists; {TORCH} pow",
    ),
    *_entries(
        Kind.DENY,
        "rsqrt cbrt",
        "reads variances, which underflow in half",
        f"{TF}: absent from the float16 lists; {TORCH} rsqrt",
        only=("float16",),
    ),
    *_entries(
        Kind.DENY,
        "reduce_sum",
        "accumulates many terms",
        f"{TF} Sum, Mean; {TORCH} sum",
        adds_up=True,
    ),
    *_entries(
        Kind.DENY,
        "sum_of_products",
        "a sum of products, or a dot of a handful of elements: no matrix unit takes it",
        f"{OWN}: reads as much as it multiplies, so half gains nothing and loses digits",
    ),
    *_entries(
        Kind.DENY,
        "reduce_prod cumsum cumprod cumlogsumexp reduce_window_sum",
        "accumulates many terms",
        f"{TF} Sum, Mean; {TORCH} prod, cumsum, cumprod",
    ),
    *_entries(
        Kind.DENY,
        "scatter-add scatter-sub scatter-mul",
        "accumulates many terms into one place",
        f"{OWN}: gradients of embeddings",
    ),
    *_entries(
        Kind.DENY,
        "sin cos tan sinh cosh asin acos acosh atanh atan2",
        "argument reduction or a pole: needs the operand's low bits",
        f"{TORCH} tan, sinh, cosh, acos, asin",
    ),
    *_entries(
        Kind.DENY,
        "lgamma digamma polygamma polynomial igamma igammac igamma_grad_a "
        "regularized_incomplete_beta zeta bessel_i0e bessel_i1e erf_inv",
        "a special function: evaluated by series in float32",
        f"{TORCH} erfinv and losses",
    ),
    *_entries(
        Kind.DENY,
        "nextafter rem reduce_precision",
        "depends on the float32 grid",
        f"{OWN}: means something else in half",
    ),
]

_SOLVES = " ".join(LINEAR_ALGEBRA)
_DENY += _entries(
    Kind.DENY,
    _SOLVES,
    "linear algebra: has no half form, and magnifies the errors of its operands",
    f"{OWN}: {TF} has it on no list",
    solves=True,
)

_MOVES = "moves data; a cast commutes with it"
_PICKS = "picks one of its operands, monotone: a cast commutes with it"
_CLEAR = [
    *_entries(
        Kind.CLEAR,
        "reshape transpose squeeze rev copy slice split unstack sharding_constraint reshard name "
        "stop_gradient pvary optimization_barrier device_put",
        _MOVES,
        f"{TF} Reshape, Transpose, Slice, Snapshot, StopGradient",
        commutes=True,
    ),
    *_entries(
        Kind.CLEAR,
        "broadcast_in_dim tile",
        _MOVES,
        f"{TF} BroadcastTo, Tile",
        commutes=True,
        repeats=True,
    ),
    *_entries(
        Kind.CLEAR,
        "concatenate pad stack dynamic_update_slice",
        _MOVES,
        f"{TF} ConcatV2, Pad, Pack",
        commutes=True,
        parts=True,
    ),
    *_entries(
        Kind.CLEAR,
        "dynamic_slice gather",
        "moves data; reads less than it is given",
        f"{TF} GatherV2, StridedSlice",
        commutes=True,
        repeats=True,
    ),
    *_entries(
        Kind.CLEAR,
        "all_gather all_gather_invariant all_to_all ppermute pbroadcast",
        "moves data between devices; a cast commutes with it",
        f"{OWN}: half of the bytes travel",
        commutes=True,
    ),
    *_entries(Kind.CLEAR, "scatter", "moves data", f"{TF} bfloat16 ScatterNd", commutes=True),
    *_entries(
        Kind.CLEAR,
        "scatter_once",
        "adds one update at most to each place of zeros: " + _MOVES,
        f"{OWN}: counted, where the indices are constants",
        commutes=True,
    ),
    *_entries(
        Kind.CLEAR,
        "select_n max min",
        _PICKS,
        f"{TF} SelectV2, Maximum",
        commutes=True,
        bounds=True,
    ),
    *_entries(Kind.CLEAR, "neg abs", "changes the sign bit", f"{TF} Neg, Abs", commutes=True),
    *_entries(
        Kind.CLEAR,
        "reduce_max reduce_min cummax cummin reduce_window_max reduce_window_min "
        "select_and_gather_add",
        _PICKS,
        f"{TF} Max, MaxPool, ClipByValue",
        commutes=True,
        selects=True,
    ),
    *_entries(
        Kind.CLEAR, "clamp", _PICKS, f"{TF} ClipByValue", commutes=True, selects=True, bounds=True
    ),
    *_entries(
        Kind.CLEAR,
        "scatter-max scatter-min sort top_k argmax argmin",
        "compares; does not calculate",
        f"{TF} TopKV2, ArgMax",
        selects=True,
    ),
    *_entries(
        Kind.CLEAR,
        "eq ne lt le gt ge eq_to lt_to le_to",
        "compares; exact on a value that is half already",
        f"{TF} Equal, Less",
        bounds=True,
    ),
    *_entries(
        Kind.CLEAR,
        "sign floor ceil round is_finite",
        "compares or rounds; exact on a value that is half already",
        f"{TF} Sign, Floor, IsFinite",
    ),
    *_entries(
        Kind.CLEAR,
        "eq_calculated",
        "compares; exact on a value that is half already",
        f"{TF} Equal",
        compares=True,
    ),
    *_entries(
        Kind.CLEAR,
        "convert_element_type",
        "the user's own conversion of a value",
        f"{OWN}: reads what is stored",
    ),
    *_entries(
        Kind.CLEAR,
        "convert_exact",
        "a conversion in which half loses nothing (bool, int8, half to float32)",
        f"{OWN}: {_MOVES}",
        commutes=True,
    ),
]

ENTRIES: tuple[Entry, ...] = (*_ALLOW, *_INFER, *_DENY, *_CLEAR)
"""All entries; :meth:`duotone.graph.classify.lists.OpLists.for_half` picks those of one half
type."""
