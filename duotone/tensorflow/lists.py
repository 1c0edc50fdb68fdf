"""The lists of TensorFlow 2.21: which ops are on the allow, deny, infer and clear list, per mode.

float16 is the mode for NVIDIA GPUs, bfloat16 the oneDNN mode for CPUs. Some ops are on the float16
allow list from a version of CUDA or cuDNN on. A user's edits are applied as TensorFlow applies
them: an addition does not take an op off another list, and an op that is then on two is an error.

Who calls this: ``road``. What goes wrong: :class:`~duotone.errors.PolicyError` names an op on two
lists, and both lists; :class:`~duotone.errors.UnknownOperationError` an op that no list knows.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Collection

from duotone.errors import PolicyError, UnknownOperationError
from duotone.ops.entries import Kind
from duotone.policy import Policy
from duotone.tensorflow.devices import DEFAULT_DEVICE, Device

_ALLOW = frozenset(
    """
    Conv2D Conv2DBackpropFilter Conv2DBackpropInput Einsum MatMul
    """.split()
)
_ALLOW_FLOAT16 = frozenset(
    """
    BlockLSTM BlockLSTMGrad BlockLSTMGradV2 BlockLSTMV2 CudnnRNN CudnnRNNBackprop
    CudnnRNNBackpropV2 CudnnRNNBackpropV3 CudnnRNNV2 CudnnRNNV3 FastUnsortedSegmentMax
    FusedConv2DBiasActivation FusedSparseConvGpuV2 GRUBlockCell GRUBlockCellGrad LSTMBlockCell
    LSTMBlockCellGrad Mha MhaV2 Pmlp Tmlp TmlpV2 TmlpV3 VoxelMax
    """.split()
)
_NAMES = ("allow", "infer", "deny", "clear")
# (what is asked, from which version on, the ops)
_ALLOW_FLOAT16_FROM = (
    ("cuda", 9010, ("BatchMatMul", "BatchMatMulV2")),
    (
        "cudnn",
        7602,
        (
            "Conv3D",
            "Conv3DBackpropFilter",
            "Conv3DBackpropFilterV2",
            "Conv3DBackpropInput",
            "Conv3DBackpropInputV2",
        ),
    ),
    (
        "cudnn",
        8000,
        (
            "DepthwiseConv2dNative",
            "DepthwiseConv2dNativeBackpropFilter",
            "DepthwiseConv2dNativeBackpropInput",
        ),
    ),
)
_ALLOW_BFLOAT16 = frozenset(
    """
    BatchMatMul BatchMatMulV2 Conv3D Conv3DBackpropFilterV2 Conv3DBackpropInputV2
    DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput
    FusedPadConv2D
    """.split()
)
_DENY = frozenset(
    """
    Exp Expm1 L2Loss Pow SaveV2 SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits
    """.split()
)
_DENY_FLOAT16 = frozenset({"Mean", "Sum"})
_INFER = frozenset(
    """
    Add AddN AddV2 AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad BiasAdd BiasAddGrad BiasAddV1 Elu
    EluGrad Erf Erfc FloorDiv FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2
    FusedBatchNormV3 Inv LeakyRelu LeakyReluGrad Log Log1p LogSoftmax Mul Prod RealDiv Reciprocal
    Selu SeluGrad Sigmoid SigmoidGrad Softmax Softplus SoftplusGrad Softsign SoftsignGrad Sqrt Sub
    Tanh TanhGrad _FusedBatchNormEx
    """.split()
)
_INFER_BFLOAT16 = frozenset({"Mean", "Sum", "Rsqrt", "Square", "SquaredDifference"})
_CLEAR = frozenset(
    """
    Abs ArgMax ArgMin BatchToSpace BatchToSpaceND BroadcastTo Ceil CheckNumerics ClipByValue
    Concat ConcatV2 DepthToSpace DynamicPartition DynamicStitch EnsureShape Enter Equal Exit
    ExpandDims Fill Floor Gather GatherNd GatherV2 Greater GreaterEqual Identity IdentityN
    IsFinite IsInf IsNan Less LessEqual Max MaxPool MaxPool3D MaxPool3DGrad MaxPoolGrad
    MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradV2 MaxPoolV2 Maximum Merge Min Minimum MirrorPad
    MirrorPadGrad Neg NextIteration NotEqual OnesLike Pack Pad PadV2 PreventGradient Rank Relu
    Relu6 Relu6Grad ReluGrad Reshape ResizeNearestNeighbor ResizeNearestNeighborGrad Reverse
    ReverseSequence ReverseV2 Round Select SelectV2 Shape ShapeN Sign Slice Snapshot SpaceToBatch
    SpaceToBatchND SpaceToDepth Split SplitV Squeeze StopGradient StridedSlice StridedSliceGrad
    Switch TensorListConcat TensorListConcatLists TensorListConcatV2 TensorListFromTensor
    TensorListGather TensorListGetItem TensorListPopBack TensorListPushBack
    TensorListPushBackBatch TensorListScatter TensorListScatterIntoExistingList
    TensorListScatterV2 TensorListSetItem TensorListSplit TensorListStack Tile TopK TopKV2
    Transpose Unpack Where ZerosLike
    """.split()
)
_CLEAR_FLOAT16 = frozenset({"OneHot", "Size", "MaxPool3DGradGrad"})
_CLEAR_BFLOAT16 = frozenset({"ResizeBilinear", "ScatterNd", "While", "StatelessWhile"})


@dataclasses.dataclass(frozen=True, slots=True)
class Lists:
    """The four lists for one rewrite.

    Attributes:
        allow: always half.
        infer: half where what they read is safe.
        deny: always full, and so is what they spread to.
        clear: take the colour of what is around them.
        force_all: level ``UNSAFE_FORCE_ALL``: nearly all ops are treated as allowed.
    """

    allow: frozenset[str]
    infer: frozenset[str]
    deny: frozenset[str]
    clear: frozenset[str]
    force_all: bool = False

    def kind(self, op: str) -> Kind:
        """The list that an op is on."""
        for kind in (Kind.ALLOW, Kind.INFER, Kind.DENY, Kind.CLEAR):
            if op in getattr(self, kind.value):
                return kind
        return Kind.UNLISTED


def default_lists(dtype: str, device: Device = DEFAULT_DEVICE) -> Lists:
    """The lists before any edit.

    Args:
        dtype: ``"float16"`` or ``"bfloat16"``.
        device: whose CUDA and cuDNN versions count, for float16.

    Example:
        >>> lists = default_lists("float16")
        >>> len(lists.allow), len(lists.deny), len(lists.infer), len(lists.clear)
        (39, 9, 43, 110)
    """
    if dtype == "bfloat16":
        return Lists(
            _ALLOW | _ALLOW_BFLOAT16,
            _INFER | _INFER_BFLOAT16,
            _DENY,
            _CLEAR | _CLEAR_BFLOAT16,
        )
    gated = [
        op
        for library, version, ops in _ALLOW_FLOAT16_FROM
        for op in ops
        if getattr(device, library) >= version
    ]
    return Lists(
        _ALLOW | _ALLOW_FLOAT16 | frozenset(gated),
        _INFER,
        _DENY | _DENY_FLOAT16,
        _CLEAR | _CLEAR_FLOAT16,
    )


def make_lists(dtype: str, device: Device, policy: Policy, known: Collection[str]) -> Lists:
    """The lists for a rewrite: edits, then level.

    Args:
        dtype: ``"float16"`` or ``"bfloat16"``.
        device: see :func:`default_lists`.
        policy: its list edits and its level.
        known: names of all ops and functions, against misspelt edits.

    Returns:
        The lists.

    Raises:
        PolicyError: an op is on two lists, or the level does not exist for this dtype.
        UnknownOperationError: an edit names an op that does not exist.
    """
    _check_names(policy, known)
    lists = default_lists(dtype, device)
    edited = {
        which: (getattr(lists, which) | getattr(policy, f"{which}_add"))
        - getattr(policy, f"{which}_remove")
        for which in _NAMES
    }
    if policy.level == "UNSAFE_FORCE_ALL" and dtype == "bfloat16":
        raise PolicyError(
            "level UNSAFE_FORCE_ALL does not exist for bfloat16 (oneDNN) in TensorFlow: use "
            "another level, or dtype float16."
        )
    if policy.level == "TENSOR_CORES_ONLY" and dtype == "float16":
        # TensorFlow's bfloat16 lists do not look at this level.
        edited |= {"infer": frozenset(), "deny": frozenset(), "clear": frozenset()}
    if policy.level == "TREAT_INFER_AS_DENY":
        edited |= {"deny": edited["deny"] | edited["infer"], "infer": frozenset()}
    result = Lists(**edited, force_all=policy.level == "UNSAFE_FORCE_ALL")
    _check_disjoint(result)
    return result


def _check_names(policy: Policy, known: Collection[str]) -> None:
    for which, edit in itertools.product(_NAMES, ("add", "remove")):
        for op in sorted(getattr(policy, f"{which}_{edit}")):
            if op not in known:
                near = difflib.get_close_matches(op, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else "no op is named like it."
                raise UnknownOperationError(
                    f"{op!r} in Policy({which}_{edit}=...) or in the environment variable "
                    f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{which.upper()}LIST_{edit.upper()} is "
                    f"no op of TensorFlow 2.21 and no function of the graph: {hint}"
                )


def _check_disjoint(lists: Lists) -> None:
    for first, second in itertools.combinations(_NAMES, 2):
        both = sorted(getattr(lists, first) & getattr(lists, second))
        if both:
            raise PolicyError(
                f"Op lists have conflicting entries: {both[0]} is on the {first} list and on the "
                f"{second} list. Take it off one of them as well, as with "
                f"Policy({first}_remove=[{both[0]!r}]) or "
                f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{first.upper()}LIST_REMOVE={both[0]}."
            )
