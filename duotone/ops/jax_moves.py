"""The rows of JAX primitives on the clear list: they move, pick, compare, round or convert.

:mod:`duotone.ops.jax` has the other rows, and its docstring explains the columns.
"""

from __future__ import annotations

from duotone.ops.entries import OWN, TF, Kind, Pointwise, rows

_CHEAP = Pointwise.CHEAP
_MOVES = "moves data; a cast commutes with it"
_MOVES_SOURCE = f"{TF} Reshape, Transpose, Slice, Snapshot, StopGradient"
_PICKS = "picks one of its operands, monotone: a cast commutes with it"
_PICKS_SOURCE = f"{TF} Max, MaxPool, ClipByValue"
_COMPARES = "compares; exact on a value that is half already"
_ROUNDS = "compares or rounds; exact on a value that is half already"
CLEAR = (
    *rows(
        Kind.CLEAR,
        "reshape squeeze copy",
        "moves keeps commutes reshapes",
        _MOVES,
        _MOVES_SOURCE,
        cost=_CHEAP,
        interval="reshape reshape same",
    ),
    *rows(
        Kind.CLEAR,
        "name+names stop_gradient keep_precision",
        "moves keeps commutes",
        _MOVES,
        _MOVES_SOURCE,
        cost=_CHEAP,
        interval="same",
    ),
    *rows(Kind.CLEAR, "transpose", "moves keeps commutes transposes", _MOVES, _MOVES_SOURCE),
    *rows(
        Kind.CLEAR,
        "rev+keeps+reverses slice+keeps split unstack sharding_constraint reshard pvary+varies "
        "optimization_barrier device_put",
        "moves commutes",
        _MOVES,
        _MOVES_SOURCE,
        interval="moves moves moves moves same reshard moves same same",
    ),
    *rows(
        Kind.CLEAR,
        "broadcast_in_dim",
        "moves keeps commutes repeats reshapes",
        _MOVES,
        f"{TF} BroadcastTo, Tile",
        cost=_CHEAP,
    ),
    *rows(
        Kind.CLEAR,
        "tile",
        "moves keeps commutes repeats",
        _MOVES,
        f"{TF} BroadcastTo, Tile",
        interval="moves",
    ),
    *rows(
        Kind.CLEAR,
        "concatenate pad stack dynamic_update_slice+updates",
        "moves commutes parts",
        _MOVES,
        f"{TF} ConcatV2, Pad, Pack",
        interval="joins joins joins dynamic_update_slice",
    ),
    *rows(
        Kind.CLEAR,
        "dynamic_slice gather+gathers",
        "moves commutes repeats indexes",
        "moves data; reads less than its operand holds",
        f"{TF} GatherV2, StridedSlice",
        interval="moves gather",
    ),
    *rows(
        Kind.CLEAR,
        "all_gather all_gather_invariant all_to_all ppermute pbroadcast",
        "commutes",
        "moves data between devices; a cast commutes with it",
        f"{OWN}: half of the bytes travel",
    ),
    *rows(
        Kind.CLEAR, "scatter", "moves updates commutes", "moves data", f"{TF} bfloat16 ScatterNd"
    ),
    *rows(
        Kind.CLEAR,
        "scatter_once",
        "commutes updates adds_into",
        "adds at most one update to each element of zeros: " + _MOVES,
        f"{OWN}: counted if the indices are constants",
        interval="scatter-add",
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
        "neg+flips abs",
        "moves keeps commutes negates",
        "changes the sign bit",
        f"{TF} Neg, Abs",
        cost=_CHEAP,
    ),
    *rows(
        Kind.CLEAR,
        "reduce_max reduce_min",
        "commutes selects extrema",
        _PICKS,
        _PICKS_SOURCE,
        interval="reduce_max picks",
    ),
    *rows(
        Kind.CLEAR,
        "cummax cummin reduce_window_max+pools reduce_window_min+pools select_and_gather_add",
        "commutes selects",
        _PICKS,
        _PICKS_SOURCE,
        interval="moves moves reduce_window_max reduce_window_min select_and_gather_add",
    ),
    *rows(Kind.CLEAR, "clamp", "commutes selects bounds", _PICKS, f"{TF} ClipByValue", cost=_CHEAP),
    *rows(
        Kind.CLEAR,
        "scatter-max+updates scatter-min+updates sort+decides top_k+decides argmax+decides "
        "argmin+decides",
        "selects",
        "compares; does not compute",
        f"{TF} TopKV2, ArgMax",
        interval="scatter scatter picks moves argmax argmin",
    ),
    *rows(
        Kind.CLEAR,
        "eq ne lt le gt ge",
        "bounds decides",
        _COMPARES,
        f"{TF} Equal, Less",
        cost=_CHEAP,
        interval="eq ne less less greater greater",
    ),
    *rows(Kind.CLEAR, "eq_to lt_to le_to", "bounds decides", _COMPARES, f"{TF} Equal, Less"),
    *rows(Kind.CLEAR, "eq_calculated", "decides equality", _COMPARES, f"{TF} Equal"),
    *rows(
        Kind.CLEAR,
        "floor ceil round",
        "rounds decides",
        _ROUNDS,
        f"{TF} Sign, Floor, IsFinite",
        cost=_CHEAP,
    ),
    *rows(Kind.CLEAR, "sign is_finite", "", _ROUNDS, f"{TF} Sign, Floor, IsFinite", cost=_CHEAP),
    *rows(
        Kind.CLEAR,
        "convert_element_type",
        "moves keeps converts",
        "the user's own conversion of a value",
        f"{OWN}: reads what is stored",
        cost=_CHEAP,
    ),
    *rows(
        Kind.CLEAR,
        "convert_exact",
        "moves keeps commutes converts",
        "a conversion in which half loses nothing (bool, int8, half to float32)",
        f"{OWN}: {_MOVES}",
        cost=_CHEAP,
        interval="convert_element_type",
    ),
)
"""The rows by family, in the order in which people look for them."""
