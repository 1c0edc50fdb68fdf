"""The lists of TensorFlow 2.21 for one rewrite: the table's rows for a mode, and a user's edits.

Some ops are on the float16 allow list only from a version of CUDA or cuDNN on. As in TensorFlow, an
addition does not remove an op from another list, and an op on two lists is an error.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping

from duotone.errors import PolicyError, UnknownOperationError
from duotone.ops.entries import Entry, Kind
from duotone.ops.tensorflow import ENTRIES, SINCE
from duotone.policy.policy import LISTS, Policy
from duotone.precision.classify.lists import OpLists
from duotone.tensorflow.devices import DEFAULT_DEVICE, Device
from duotone.text.suggestions import did_you_mean


def default_lists(dtype: str, device: Device = DEFAULT_DEVICE) -> OpLists:
    """Returns the lists before any edit.

    Example:
        >>> lists = default_lists("float16")
        >>> [len(lists.ops(kind)) for kind in (Kind.ALLOW, Kind.DENY, Kind.INFER, Kind.CLEAR)]
        [39, 9, 43, 110]
    """
    found: dict[str, Entry] = {}
    for entry in ENTRIES:
        library, version = SINCE.get(entry.op, ("", 0)) if dtype == "float16" else ("", 0)
        old = bool(library) and getattr(device, library) < version
        if not old and (not entry.only or dtype in entry.only):
            found[entry.op] = entry
    return OpLists(found)


def make_lists(dtype: str, device: Device, policy: Policy, known: Collection[str]) -> OpLists:
    """Returns the lists for a rewrite: edits, whose names must be known, then the level.

    Raises:
        PolicyError: an op is on two lists, or the level does not exist for this dtype.
        UnknownOperationError: an edit names an op that does not exist.
    """
    _check_names(policy, known)
    lists = default_lists(dtype, device)
    edited = {
        which: (lists.ops(Kind(which)) | getattr(policy, f"{which}_add"))
        - getattr(policy, f"{which}_remove")
        for which in LISTS
    }
    if policy.level == "UNSAFE_FORCE_ALL" and dtype == "bfloat16":
        raise PolicyError(
            "level UNSAFE_FORCE_ALL does not exist for bfloat16 (oneDNN) in TensorFlow: use "
            "another level, or dtype float16."
        )
    if policy.level == "TENSOR_CORES_ONLY" and dtype == "float16":
        # TensorFlow's bfloat16 lists ignore this level.
        edited |= {"infer": frozenset(), "deny": frozenset(), "clear": frozenset()}
    if policy.level == "TREAT_INFER_AS_DENY":
        edited |= {"deny": edited["deny"] | edited["infer"], "infer": frozenset()}
    _check_disjoint(edited)
    return OpLists(
        {
            op: dataclasses.replace(lists.get(op, op), op=op, kind=Kind(which))
            for which, ops in edited.items()
            for op in ops
        }
    )


def _check_names(policy: Policy, known: Collection[str]) -> None:
    for which, edit in itertools.product(LISTS, ("add", "remove")):
        for op in sorted(getattr(policy, f"{which}_{edit}")):
            if op not in known:
                meant = did_you_mean(op, known, "no op has a similar name.")
                raise UnknownOperationError(
                    f"{op!r} in Policy({which}_{edit}=...) or in the environment variable "
                    f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{which.upper()}LIST_{edit.upper()} is "
                    f"no op of TensorFlow 2.21 and no function of the graph: {meant}"
                )


def _check_disjoint(lists: Mapping[str, frozenset[str]]) -> None:
    for first, second in itertools.combinations(LISTS, 2):
        both = sorted(lists[first] & lists[second])
        if both:
            raise PolicyError(
                f"Op lists have conflicting entries: {both[0]} is on the {first} list and on the "
                f"{second} list. Take it off one of them as well, as with "
                f"Policy({first}_remove=[{both[0]!r}]) or "
                f"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{first.upper()}LIST_REMOVE={both[0]}."
            )
