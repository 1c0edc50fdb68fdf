"""The lists of TensorFlow 2.21 for one rewrite: the table's rows for a mode, and a user's edits.

Some ops are on the float16 allow list only from a version of CUDA or cuDNN on. As in TensorFlow, an
addition does not remove an op from another list, and an op on two lists is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Collection

from duotone.errors import PolicyError, UnknownOperationError
from duotone.ops.entries import Kind
from duotone.ops.tensorflow import ENTRIES, SINCE
from duotone.policy.policy import Policy
from duotone.tensorflow.devices import DEFAULT_DEVICE, Device

_NAMES = ("allow", "infer", "deny", "clear")


@dataclasses.dataclass(frozen=True, slots=True)
class Lists:
    """The four lists for one rewrite.

    Attributes:
        allow: always half.
        infer: half if their inputs are safe.
        deny: always full, like the units to which they spread deny.
        clear: take the precision of their neighbours.
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
        device: the device with the versions of CUDA and cuDNN, for float16.

    Example:
        >>> lists = default_lists("float16")
        >>> len(lists.allow), len(lists.deny), len(lists.infer), len(lists.clear)
        (39, 9, 43, 110)
    """
    found: dict[Kind, set[str]] = {kind: set() for kind in Kind}
    for entry in ENTRIES:
        library, version = SINCE.get(entry.op, ("", 0)) if dtype == "float16" else ("", 0)
        old = bool(library) and getattr(device, library) < version
        if not old and (not entry.only or dtype in entry.only):
            found[entry.kind].add(entry.op)
    allow, infer, deny, clear = (frozenset(found[Kind(name)]) for name in _NAMES)
    return Lists(allow, infer, deny, clear)


def make_lists(dtype: str, device: Device, policy: Policy, known: Collection[str]) -> Lists:
    """The lists for a rewrite: edits, then level.

    Args:
        dtype: ``"float16"`` or ``"bfloat16"``.
        device: see :func:`default_lists`.
        policy: its list edits and its level.
        known: names of all ops and functions, to find misspelt edits.

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
        # TensorFlow's bfloat16 lists ignore this level.
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
