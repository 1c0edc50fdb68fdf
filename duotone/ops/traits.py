"""Traits: the properties of operations that rules may ask for.

A safety rule asks *positively* for the trait that switches it off (an :attr:`Trait.ACTIVATION`, a
:attr:`Trait.SELECTS`). An operation without a row in the tables has only the trait
:attr:`Trait.UNDESCRIBED`, so it never switches a safety rule off.
"""

from __future__ import annotations

import enum


class Trait(enum.StrEnum):
    """A property of an operation that rules ask for.

    Attributes:
        says: the definition.
        example: an operation that has the trait.
        counterexample: an operation that looks alike but lacks it.

    Example:
        >>> Trait.ADDS.says
        'adds or subtracts its operands element by element'
        >>> Trait.ADDS.example, Trait.ADDS.counterexample
        ('add', 'reduce_sum adds elements of one operand')
    """

    says: str
    example: str
    counterexample: str

    def __new__(cls, name: str, says: str, example: str, counterexample: str) -> Trait:
        """Makes a trait from its name, its definition, an example and a counterexample."""
        trait = str.__new__(cls, name)
        trait._value_ = name
        trait.says, trait.example, trait.counterexample = says, example, counterexample
        return trait

    # ------------------------------------------------------- moving and picking
    MOVES = (
        "moves",
        "moves elements, changes their signs or types, or counts; computes nothing",
        "transpose",
        "max compares",
    )
    KEEPS = (
        "keeps",
        "gives elements of its first operand and no others, with other signs or types at most",
        "slice",
        "concatenate has several operands",
    )
    COMMUTES = (
        "commutes",
        "a cast before it gives bit for bit the same as a cast after it: it moves data, changes "
        "signs, or picks elements by a monotone choice",
        "transpose",
        "floor rounds, and rounding to half first may change its result",
    )
    PARTS = (
        "parts",
        "its operands are parts of its result: the largest part decides, though it is smaller",
        "concatenate",
        "select_n picks between whole operands",
    )
    REPEATS = (
        "repeats",
        "uses an element many times, so that its transpose is a sum",
        "broadcast_in_dim",
        "transpose uses each element once",
    )
    RESHAPES = (
        "reshapes",
        "gives the same elements other axes and moves none",
        "reshape",
        "transpose moves elements",
    )
    REVERSES = ("reverses", "reverses elements along axes", "rev", "transpose exchanges axes")
    TRANSPOSES = ("transposes", "moves axes", "transpose", "reshape keeps the order of elements")
    INDEXES = (
        "indexes",
        "reads the elements that indices name",
        "gather",
        "slice reads elements that the program fixes",
    )
    GATHERS = (
        "gathers",
        "reads many elements or slices, each from its own position, which an array contains",
        "gather",
        "dynamic_slice reads one block",
    )
    NAMES = (
        "names",
        "gives a value a name, which the user's policy can refer to",
        "name",
        "stop_gradient",
    )
    CHOOSES = (
        "chooses",
        "picks each element from one of several operands, by another operand",
        "select_n",
        "max picks by the elements themselves",
    )
    BOUNDS = (
        "bounds",
        "compares with a bound or picks it: a bound just inside of a number to be kept out must "
        "not become that number",
        "max",
        "reduce_max has no bound",
    )
    SELECTS = (
        "selects",
        "compares the elements of its operand with each other: another reader of the operand must "
        "see the same rounded numbers",
        "reduce_max",
        "select_n reads a condition",
    )
    EXTREMA = (
        "extrema",
        "gives the largest or the least element along axes that its result lacks",
        "reduce_max",
        "max compares two operands",
    )
    EQUALITY = (
        "equality",
        "asks whether two computed values are equal, and must see both as first computed",
        "eq_calculated",
        "eq with a literal",
    )
    DECIDES = (
        "decides",
        "turns a small difference into a whole one: by comparing, rounding, ordering or indexing",
        "argmax",
        "sign is wrong only next to 0, where it hardly matters",
    )
    CONVERTS = (
        "converts",
        "is a conversion in the user's code",
        "convert_element_type",
        "bitcast_convert_type reads bits",
    )

    # ------------------------------------------------------- arithmetic
    ADDS = (
        "adds",
        "adds or subtracts its operands element by element",
        "add",
        "reduce_sum adds elements of one operand",
    )
    SUBTRACTS = (
        "subtracts",
        "subtracts its second operand from its first",
        "sub",
        "neg has one operand",
    )
    MULTIPLIES = (
        "multiplies",
        "multiplies its operands element by element",
        "mul",
        "dot_general sums up products",
    )
    DIVIDES = (
        "divides",
        "divides its first operand by its second",
        "div",
        "rsqrt divides by a root",
    )
    RAISES = (
        "raises",
        "raises its operand to a power, or multiplies a value with itself",
        "square",
        "exp raises a constant",
    )
    SQUARES = ("squares", "multiplies a value with itself", "square", "integer_pow has an exponent")
    POWER = (
        "power",
        "raises each element to a power, so that the range of the result is wider",
        "integer_pow",
        "Reciprocal has the range of its operand",
    )
    ROOTS = ("roots", "takes a root, or divides by one", "sqrt", "pow takes any exponent")
    SQUARE_ROOT = ("square_root", "takes the square root", "sqrt", "rsqrt divides by it")
    NEGATES = ("negates", "changes the sign, or drops it", "neg", "sign drops the magnitude")
    FLIPS = ("flips", "changes the sign of each element", "neg", "abs drops it")
    SUMS = ("sums", "sums up many elements", "reduce_sum", "add adds two operands")
    SUMS_AXES = (
        "sums_axes",
        "sums up elements of one operand along axes that its result lacks",
        "reduce_sum",
        "cumsum keeps the axis",
    )
    SUMS_DEVICES = (
        "sums_devices",
        "sums up a value over devices",
        "psum",
        "all_gather puts the parts of devices together",
    )
    VARIES = (
        "varies",
        "says that a value may differ between devices, so that its derivative is a sum over them",
        "pvary",
        "psum itself sums",
    )
    RUNNING = (
        "running",
        "returns each partial sum or product, so that errors accumulate",
        "cumsum",
        "cummax rounds nothing",
    )
    MULTIPLIES_UP = (
        "multiplies_up",
        "multiplies many elements with each other: their relative errors add up",
        "reduce_prod",
        "mul",
    )
    AVERAGES = (
        "averages",
        "its results are sums of its operand's elements, in which rounding errors average out",
        "reduce_sum",
        "cumsum returns each partial sum",
    )
    UPDATES = (
        "updates",
        "writes updates to positions of its first operand",
        "scatter",
        "select_n writes all of its result",
    )
    ADDS_INTO = (
        "adds_into",
        "adds updates to positions of its first operand",
        "scatter-add",
        "scatter replaces elements",
    )
    ROUNDS = (
        "rounds",
        "gives integers, or the remainder next to them",
        "floor",
        "reduce_precision keeps fractions",
    )

    # ------------------------------------------------------- functions
    EXPONENTIAL = ("exponential", "raises a constant to its operand", "exp", "pow")
    LOGARITHM = (
        "logarithm",
        "takes a logarithm, which turns a relative error of its operand into an absolute one",
        "log",
        "asinh, through which audio models read no power",
    )
    ADDS_ONE = ("adds_one", "takes the logarithm of its operand plus 1", "log1p", "log adds none")
    LOGS = (
        "logs",
        "takes a logarithm, also of its operand plus one or of sums",
        "log1p",
        "exp",
    )
    POLE = (
        "pole",
        "magnifies a small error of its operand next to some number",
        "rsqrt",
        "tanh makes errors smaller",
    )
    STEEP = ("steep", "has an infinite slope at an end of its domain", "acos", "atan")
    NONZERO = (
        "nonzero",
        "is far from 0 where its operand is near 0: small errors stay small relative to it",
        "exp",
        "tanh is 0 at 0",
    )
    BOUNDED = (
        "bounded",
        "is a function whose results are about 1, and are used for their absolute value",
        "sin",
        "tan",
    )
    SATURATES = (
        "saturates",
        "comes as close as rounding to a limit, and the difference from the limit is lost",
        "tanh",
        "sin",
    )
    KEEPS_NAN = (
        "keeps_nan",
        "gives NaN, element by element, wherever an operand is NaN",
        "add",
        "select_n drops what it does not choose",
    )
    SINE = ("sine", "is periodic: needs the low bits of its operand", "sin", "tanh")
    NORMALIZES = (
        "normalizes",
        "divides its operand by a statistic of it, so that the size of the operand does not matter",
        "LayerNormalization",
        "BatchNormalization divides by statistics of other data",
    )
    ACTIVATION = (
        "activation",
        "is a nonlinear function that networks put between their dots",
        "tanh",
        "sqrt belongs to norms",
    )

    # ------------------------------------------------------- products and solves
    LINEAR = (
        "linear",
        "is linear in its operand and neither moves, scales nor adds element by element",
        "fft",
        "transpose moves elements",
    )
    CONTRACTS = (
        "contracts",
        "sums up products of two operands, as a matrix product or a convolution does",
        "dot_general",
        "mul",
    )
    EINSUM = (
        "einsum",
        "contracts along axes that operands and result share, as an Einstein sum does",
        "dot_general",
        "conv_general_dilated slides a window",
    )
    CONVOLVES = (
        "convolves",
        "contracts windows of an operand with filters",
        "conv_general_dilated",
        "dot_general",
    )
    POOLS = (
        "pools",
        "reduces the windows of an operand, or spreads the gradient of that",
        "reduce_window_max",
        "reduce_max reduces whole axes",
    )
    SHORT = ("short", "contracts too few elements for a matrix unit", "short_dot", "dot_general")
    WIDE = (
        "wide",
        "can return its float32 accumulator at no cost",
        "dot_general",
        "ragged_dot_general rounds what it accumulated",
    )
    SOLVES = (
        "solves",
        "factorises or solves: magnifies errors of its operands, and its result has large terms "
        "that cancel in its readers",
        "cholesky",
        "dot_general",
    )
    ORTHOGONAL = ("orthogonal", "makes an orthogonal matrix", "qr", "cholesky makes a triangle")
    COUNTS = ("counts", "makes a sequence of positions", "iota", "one_hot makes truth values")

    # ------------------------------------------------------- nested programs
    STRUCTURAL = (
        "structural",
        "is not an operation of the user's code: a value enters or leaves a nested program",
        "loop.carry",
        "scan itself has no node",
    )
    CARRIES = (
        "carries",
        "passes a value from one iteration of a loop to the next",
        "loop.carry",
        "loop.slice",
    )
    ITERATES = (
        "iterates",
        "gives the slice of a stacked operand that belongs to this iteration",
        "loop.slice",
        "slice",
    )
    STACKS = ("stacks", "stacks the results of all iterations", "loop.stack", "stack")
    JOINS = ("joins", "is a result of a conditional, from every branch", "branch.join", "select_n")
    SHARDS = ("shards", "gives the local shard of an operand", "shard.enter", "all_gather")

    SHAPES = (
        "shapes",
        "reads the shape of a value, and none of its elements",
        "Shape",
        "reshape",
    )

    UNDESCRIBED = (
        "undescribed",
        "has no row in the table: nothing is known about it, and every safety rule stays on",
        "an operation of a library that duotone has never seen",
        "an operation on no list whose row names its traits",
    )


Traits = frozenset[Trait]
"""The traits of one operation."""

UNDESCRIBED: Traits = frozenset({Trait.UNDESCRIBED})
"""The traits of an operation without a row."""
