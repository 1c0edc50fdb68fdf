"""The rows of ONNX operations on the clear list: they move, pick, compare, round or convert.

:mod:`duotone.ops.onnx` has the other rows, and its docstring explains the columns.
"""

from __future__ import annotations

from duotone.ops.entries import OWN, TF, Kind, Pointwise, rows

_CHEAP = Pointwise.CHEAP
_MOVES = "moves data; a cast commutes with it"
_PICKS = "picks one of its operands, monotone: a cast commutes with it"
_COMPARES = "compares; exact on a value that is half already"
_MOVES_SOURCE = f"{TF} Reshape, Transpose, Slice"
_PICKS_SOURCE = f"{TF} SelectV2, Maximum, Relu"
_SIGN_SOURCE = f"{TF} Sign, Floor"
CLEAR = (
    *rows(
        Kind.CLEAR,
        "Reshape Squeeze Unsqueeze Flatten Identity",
        "moves keeps commutes reshapes",
        _MOVES,
        _MOVES_SOURCE,
        cost=_CHEAP,
        interval="moves",
    ),
    *rows(
        Kind.CLEAR,
        "Transpose",
        "moves keeps commutes transposes",
        _MOVES,
        _MOVES_SOURCE,
        interval="moves",
    ),
    *rows(
        Kind.CLEAR,
        "Slice+moves+keeps Split+moves DepthToSpace+moves SpaceToDepth+moves ReverseSequence Trilu "
        "CenterCropPad Dropout ConstantOfShape+moves",
        "commutes",
        _MOVES,
        _MOVES_SOURCE,
        interval="moves moves moves moves moves Trilu CenterCropPad Dropout ConstantOfShape",
    ),
    *rows(
        Kind.CLEAR,
        "Expand",
        "moves keeps commutes repeats reshapes",
        _MOVES,
        f"{TF} Tile, BroadcastTo",
        cost=_CHEAP,
        interval="moves",
    ),
    *rows(
        Kind.CLEAR,
        "Tile",
        "moves keeps commutes repeats",
        _MOVES,
        f"{TF} Tile, BroadcastTo",
        interval="moves",
    ),
    *rows(
        Kind.CLEAR,
        "Concat Pad",
        "moves commutes parts",
        _MOVES,
        f"{TF} ConcatV2, Pad",
        interval="joins Pad",
    ),
    *rows(
        Kind.CLEAR,
        "Gather+gathers+moves+keeps GatherElements+gathers+moves GatherND+gathers+moves Compress",
        "commutes repeats indexes",
        "moves data; reads less than its operand holds",
        f"{TF} GatherV2",
        interval="moves",
    ),
    *rows(
        Kind.CLEAR,
        "ScatterND+moves+updates ScatterElements+moves+updates Scatter+updates "
        "TensorScatter+updates MaxUnpool OneHot",
        "commutes",
        "moves data",
        f"{TF} ScatterNd, OneHot",
    ),
    *rows(
        Kind.CLEAR,
        "Where",
        "commutes bounds chooses",
        _PICKS,
        _PICKS_SOURCE,
        cost=_CHEAP,
        interval="choose",
    ),
    *rows(
        Kind.CLEAR,
        "Max Relu",
        "commutes bounds activation",
        _PICKS,
        _PICKS_SOURCE,
        cost=_CHEAP,
        interval="max Relu",
    ),
    *rows(Kind.CLEAR, "Min", "commutes bounds", _PICKS, _PICKS_SOURCE, cost=_CHEAP, interval="min"),
    *rows(
        Kind.CLEAR,
        "Neg+flips Abs",
        "moves keeps commutes negates",
        "changes the sign bit",
        f"{TF} Neg, Abs",
        cost=_CHEAP,
        interval="neg abs",
    ),
    *rows(
        Kind.CLEAR,
        "ReduceMax+extrema ReduceMin+extrema MaxPool GlobalMaxPool",
        "commutes selects",
        _PICKS,
        f"{TF} Max, MaxPool",
        interval="ReduceMax ReduceMin moves moves",
    ),
    *rows(Kind.CLEAR, "Clip", "commutes selects bounds", _PICKS, f"{TF} ClipByValue", cost=_CHEAP),
    *rows(
        Kind.CLEAR,
        "TopK+decides ArgMax+decides ArgMin+decides Hardmax Unique NonZero",
        "selects",
        "compares; does not compute",
        f"{TF} TopKV2, ArgMax",
    ),
    *rows(
        Kind.CLEAR,
        "Equal Less Greater LessOrEqual GreaterOrEqual",
        "bounds decides",
        _COMPARES,
        f"{TF} Equal, Less",
        cost=_CHEAP,
    ),
    *rows(
        Kind.CLEAR,
        "Floor Ceil Round",
        "rounds decides",
        _COMPARES,
        _SIGN_SOURCE,
        cost=_CHEAP,
        interval="floor ceil round",
    ),
    *rows(Kind.CLEAR, "Sign", "", _COMPARES, _SIGN_SOURCE, cost=_CHEAP, interval="sign"),
    *rows(Kind.CLEAR, "IsNaN IsInf", "", _COMPARES, _SIGN_SOURCE),
    *rows(
        Kind.CLEAR,
        "Cast",
        "moves keeps converts",
        "the model's own conversion of a value",
        f"{OWN}: reads what is stored",
        cost=_CHEAP,
        interval="convert_element_type",
    ),
    *rows(
        Kind.CLEAR,
        "CastExact",
        "moves keeps commutes converts",
        "a conversion in which half loses nothing (bool, int8, half to float32)",
        f"{OWN}: {_MOVES}",
        cost=_CHEAP,
        interval="convert_element_type",
    ),
)
"""The rows by family, in the order in which people look for them."""
