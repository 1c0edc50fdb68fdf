"""Kinds of TensorFlow ops: arguments, state, control flow, calls and lists of tensors.

The traits of :mod:`duotone.ops.traits` say what an op computes. The ops of this module compute
nothing. They only determine how a graph passes values on.
"""

from __future__ import annotations

PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})
"""Ops whose value the caller feeds. A PlaceholderWithDefault has a default, and TensorFlow lets it
become half."""
VARIABLES = frozenset({"Variable", "VariableV2", "VarHandleOp"})
"""Ops that create a variable."""
VARIABLE_VALUES = VARIABLES | frozenset(
    "AutoReloadVariable ReadVariableOp _ReadVariablesOp _VarHandlesOp".split()
)
"""Ops that create or read variables."""
GIVEN = (
    PLACEHOLDERS
    | VARIABLES
    | frozenset(
        "PlaceholderWithDefault _Arg ReadVariableOp ResourceGather ResourceGatherNd".split()
    )
)
"""Ops whose results are arguments or state. Nothing is known about their numbers."""

ENTERS = frozenset({"Enter", "RefEnter"})
"""Ops that pass a value into a lowered loop."""
LOOP_ENDS = frozenset({"NextIteration", "RefNextIteration"})
"""Ops whose result is read in the next iteration, so that a cycle through them is a loop."""
SWITCHES = frozenset({"Switch", "RefSwitch"})
"""Ops that pass a value to one of two branches."""
MERGES = frozenset({"Merge", "RefMerge"})
"""Ops that pass the value of the branch that ran."""

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
"""Ops that call a function."""
DATASETS = frozenset(
    "IteratorGetNext IteratorGetNextSync DatasetToSingleElement ReduceDataset".split()
)
"""Ops that read the elements of a dataset."""

LIST_READERS = frozenset(
    """TensorListConcat TensorListConcatV2 TensorListGather TensorListGetItem TensorListPopBack
    TensorListStack""".split()
)
"""Ops that read elements of a list of tensors."""
LIST_WRITERS = frozenset(
    """TensorListFromTensor TensorListPushBack TensorListPushBackBatch TensorListScatter
    TensorListScatterV2 TensorListScatterIntoExistingList TensorListSetItem
    TensorListSplit""".split()
)
"""Ops that write elements of a list of tensors."""
LIST_CARRIERS = frozenset(
    """Enter Exit Identity IdentityN Merge NextIteration Select SelectV2 Snapshot StopGradient
    Switch""".split()
)
"""Ops that pass the handle of a list unchanged."""
LIST_ENDS = CALLS | frozenset("_Arg _Retval OptionalFromValue OptionalGetValue Placeholder".split())
"""Ops beyond which the uses of a list are unknown."""
