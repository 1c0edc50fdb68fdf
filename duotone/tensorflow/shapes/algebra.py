"""Algebra: shapes of element-wise ops, products, reductions, sources and control flow.

A rule takes an :class:`Operation` and returns a shape per output. One that lacks what it needs
returns None for it, or fails with LookupError, TypeError or ValueError, which means the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from duotone.tensorflow.protos import RESOURCE
from duotone.tensorflow.shapes.operation import Operation, Shape, ShapeRule, shape_of_proto


def same(operation: Operation) -> Sequence[Shape]:
    """Infers outputs as large as the first input."""
    return [operation.shape(0)] * operation.outputs


def same_as_second(operation: Operation) -> Sequence[Shape]:
    """Infers an output as large as the second input."""
    return [operation.shape(1)]


def each(operation: Operation) -> Sequence[Shape]:
    """Infers output i to be as large as input i."""
    return list(operation.shapes)


def merged(operation: Operation) -> Sequence[Shape]:
    """Infers a Merge, which is as large as the first known input."""
    return [next((shape for shape in operation.shapes if shape is not None), None), ()]


def broadcast(operation: Operation) -> Sequence[Shape]:
    """Broadcasts the inputs against each other."""
    result: Shape = ()
    for shape in operation.shapes:
        result = broadcast_shapes(result, shape)
    return [result]


def broadcast_shapes(left: Shape, right: Shape) -> Shape:
    """Returns the shape of two operands broadcast against each other."""
    if left is None or right is None:
        return None
    rank = max(len(left), len(right))
    pairs = zip((1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right, strict=True)
    return tuple(b if a == 1 else a if b == 1 or b is None else b for a, b in pairs)


def from_attribute(operation: Operation) -> Sequence[Shape]:
    """Infers a variable; a handle has the shape of its value."""
    return [operation.attribute_shape()]


def placeholder(operation: Operation) -> Sequence[Shape]:
    """Infers a placeholder; a handle does not say how large its value is."""
    is_handle = operation.node.attr["dtype"].type == RESOURCE
    return [None if is_handle else operation.attribute_shape()]


def argument(operation: Operation) -> Sequence[Shape]:
    """Infers an argument, which may be a handle and then has the shape of its value."""
    given = operation.node.attr
    values = given["_handle_shapes"].list.shape if "_handle_shapes" in given else ()
    return [shape_of_proto(value) for value in values]


def constant(operation: Operation) -> Sequence[Shape]:
    """Infers a Const."""
    return [shape_of_proto(operation.node.attr["value"].tensor.tensor_shape)]


def from_value(operation: Operation) -> Sequence[Shape]:
    """Infers Fill and random numbers, whose first input is the shape."""
    return [operation.value(0)]


def broadcast_to(operation: Operation) -> Sequence[Shape]:
    """Infers BroadcastTo and others whose second input is the shape."""
    return [operation.value(1)]


def matmul(operation: Operation) -> Sequence[Shape]:
    """Infers a MatMul."""
    left, right = operation.shape(0), operation.shape(1)
    rows = left[1 if operation.boolean("transpose_a") else 0] if left else None
    columns = right[0 if operation.boolean("transpose_b") else 1] if right else None
    return [(rows, columns)]


def batch_matmul(operation: Operation) -> Sequence[Shape]:
    """Infers a BatchMatMul, with broadcast batch dimensions."""
    left, right = operation.known(0), operation.known(1)
    batch = broadcast_shapes(left[:-2], right[:-2])
    rows = left[-1 if operation.boolean("adj_x") else -2]
    columns = right[-2 if operation.boolean("adj_y") else -1]
    return [None if batch is None else (*batch, rows, columns)]


def einsum(operation: Operation) -> Sequence[Shape]:
    """Infers an Einsum; an ellipsis matches the remaining dimensions."""
    inputs, _, output = operation.text("equation").replace(" ", "").partition("->")
    sizes: dict[str, int | None] = {}
    dots: Shape = ()
    for slot, labels in enumerate(inputs.split(",")):
        shape = operation.known(slot)
        before, ellipsis, after = labels.partition("...")
        middle = len(shape) - len(before) - len(after)
        if ellipsis:
            dots = broadcast_shapes(dots, shape[len(before) : len(before) + middle])
        named = shape[: len(before)] + shape[len(before) + middle :]
        sizes.update(zip(before + after, named, strict=True))
    before, _, after = output.partition("...")
    middle_shape = dots if "..." in output else ()
    if middle_shape is None:
        return [None]
    return [(*(sizes[x] for x in before), *middle_shape, *(sizes[x] for x in after))]


def reduction(operation: Operation) -> Sequence[Shape]:
    """Infers reductions over the axes that the second input names."""
    shape, axes = operation.known(0), operation.numbers(1)
    if None in axes:
        return [None]
    removed = {axis % len(shape) for axis in axes if axis is not None} if shape else set()
    if operation.boolean("keep_dims"):
        return [tuple(1 if i in removed else d for i, d in enumerate(shape))]
    return [tuple(d for i, d in enumerate(shape) if i not in removed)]


def arg_reduction(operation: Operation) -> Sequence[Shape]:
    """ArgMax and ArgMin remove one axis."""
    shape = operation.known(0)
    axis = operation.axis(1, len(shape))
    return [(*shape[:axis], *shape[axis + 1 :])]


def shape_vector(operation: Operation) -> Sequence[Shape]:
    """Infers Shape and ShapeN: a vector as long as the rank."""
    return [None if shape is None else (len(shape),) for shape in operation.shapes]


_FAMILIES: dict[ShapeRule, str] = {
    same: """Abs Acos Asin Atan Cast Ceil CheckNumerics ClipByValue Cos Cosh Cumprod Cumsum Digamma
        Elu Enter EnsureShape Erf Erfc Exit Exp Expm1 Floor Identity Imag Inv Invert IsFinite
        IsInf IsNan L2Normalize LeakyRelu Lgamma Log Log1p LogSoftmax LogicalNot Neg NextIteration
        MatrixBandPart OnesLike PreventGradient Real ReadVariableOp Reciprocal RefEnter RefExit
        RefIdentity RefNextIteration Relu Relu6 Reverse ReverseSequence ReverseV2 Rint Round Rsqrt
        Selu Sigmoid
        Sign Sin Sinh Snapshot Softmax Softplus Softsign Sqrt Square StopGradient Switch RefSwitch
        Tan Tanh ZerosLike PlaceholderWithDefault Assign AssignAdd AssignSub
        ApplyGradientDescent ApplyMomentum ApplyAdam MirrorPadGrad
        ReluGrad Relu6Grad EluGrad SeluGrad SigmoidGrad TanhGrad SoftplusGrad SoftsignGrad
        LeakyReluGrad SqrtGrad RsqrtGrad ReciprocalGrad InvGrad AddN AccumulateNV2""",
    each: "IdentityN _SwitchN While StatelessWhile",
    merged: "Merge RefMerge",
    broadcast: """Add AddV2 Atan2 BitwiseAnd BitwiseOr Div DivNoNan Equal FloorDiv FloorMod Greater
        GreaterEqual Less LessEqual LogicalAnd LogicalOr Maximum Minimum Mod Mul MulNoNan NotEqual
        Pow RealDiv SelectV2 SquaredDifference Sub TruncateDiv TruncateMod Xdivy Xlogy Xlog1py""",
    same_as_second: "Select",
    placeholder: "Placeholder PlaceholderV2",
    argument: "_Arg",
    from_attribute: "Variable VariableV2 VarHandleOp TemporaryVariable",
    constant: "Const HostConst",
    from_value: """Fill RandomStandardNormal RandomUniform TruncatedNormal RandomUniformInt
        StatelessRandomUniform StatelessRandomNormal StatelessRandomUniformV2 Empty""",
    broadcast_to: "BroadcastTo",
    matmul: "MatMul SparseMatMul",
    batch_matmul: "BatchMatMul BatchMatMulV2 BatchMatMulV3",
    einsum: "Einsum",
    reduction: "All Any EuclideanNorm Max Mean Min Prod Sum",
    arg_reduction: "ArgMax ArgMin",
    shape_vector: "Shape ShapeN",
}

ALGEBRA: dict[str, ShapeRule] = {op: rule for rule, ops in _FAMILIES.items() for op in ops.split()}
"""By op."""
