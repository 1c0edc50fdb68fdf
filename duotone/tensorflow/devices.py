"""Devices: finds the device on which a node would run, from its device string, as TensorFlow does.

::

    /job:worker/replica:0/task:1/device:GPU:0     full form, parts may be omitted
    /gpu:0  /cpu:0                                older form; the type becomes upper case
    (empty)                                       the default device: the one painted for

A node is processed when the *type and number* contain the wanted device type in any case. A string
without a number (``/device:GPU``, ``/device:GPU:*``), or whose string is not a device string
(``GPU:0``), is on no device.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

from duotone._checks import check_whole
from duotone.errors import ArgumentError, shown
from duotone.ops.traits import Trait
from duotone.precision.classify.profitability import EVERYTHING, Profitability

DeviceType = Literal["gpu", "cpu", "tpu"]
OLDEST_FAST_CAPABILITY = (7, 0)
"""Compute capability from which a GPU has Tensor Cores; older ones are skipped."""


@dataclasses.dataclass(frozen=True)
class Device:
    """The device for which a graph is painted. The defaults are those of an A100 with CUDA 12.5.

    Attributes:
        type: ``"gpu"``, ``"cpu"`` or ``"tpu"`` (on which TensorFlow's passes change nothing); None
            for the one that the dtype is meant for (a GPU for float16, a CPU for bfloat16).
        compute_capability: that of a GPU; below 7.0 nothing is rewritten unless performance is
            ignored.
        cuda: CUDA's version, ``1000 * major + 10 * minor``; some ops are on the allow list only
            from a version on.
        cudnn: cuDNN's version, ``10000 * major + 100 * minor``; up to version 8,
            ``1000 * major + 100 * minor``.

    Raises:
        ArgumentError: there is no such type, or the capability is not two whole numbers.
        ArgumentTypeError: a version is not a whole number.

    Example:
        >>> from duotone.tensorflow import Device
        >>> Device("gpu", compute_capability=(9, 0)).resolve("float16").type
        'gpu'
    """

    type: DeviceType | None = None
    compute_capability: tuple[int, int] = (8, 0)
    cuda: int = 12050
    cudnn: int = 90300

    def __post_init__(self) -> None:
        """Checks the fields."""
        if self.type is not None and str(self.type) not in get_args(DeviceType):
            raise ArgumentError(
                f"Device(type={shown(self.type)}): it takes 'gpu', 'cpu', 'tpu' or None."
            )
        pair = self.compute_capability
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ArgumentError(
                f"Device(compute_capability={shown(pair)}): it takes two whole numbers, such as "
                "(8, 0)."
            )
        for version in ("cuda", "cudnn"):
            check_whole("Device", version, getattr(self, version), 0)
        for number in pair:
            check_whole("Device", "compute_capability", number, 0)

    def resolve(self, dtype: str) -> Device:
        """Returns this device with a definite type.

        Args:
            dtype: the half type, ``"float16"`` or ``"bfloat16"``.
        """
        if self.type is not None:
            return self
        return dataclasses.replace(self, type="gpu" if dtype == "float16" else "cpu")

    @property
    def gains(self) -> Profitability:
        """The operations that gain from half, for duotone's painter."""
        return EVERYTHING if self.type is None else GAINS.get(self.type, EVERYTHING)

    @property
    def is_fast(self) -> bool:
        """True if the device is a GPU on which float16 is faster."""
        return self.type == "gpu" and tuple(self.compute_capability) >= OLDEST_FAST_CAPABILITY


GAINS: Mapping[DeviceType, Profitability] = MappingProxyType(
    {
        "cpu": Profitability(
            "a CPU",
            allow=frozenset({Trait.EINSUM, Trait.CONVOLVES}),
            min_flops=4e6,
            min_intensity=40.0,
        )
    }
)
"""The operations that gain on a device, for duotone's painter: on a CPU large products only.

Measured in TensorFlow 2.21 on a CPU with AVX512-BF16 (``benchmarks/NOTES.md``, "TensorFlow on
CPUs"): products of 4 MFLOP take 1.1 of float32's time and those of 8 MFLOP 0.8, convolutions by
windows of one element gain from 40 FLOP per element on, and depthwise ones never gain.
"""

WANTED = {"float16": "gpu", "bfloat16": "cpu"}
"""The device type whose nodes a rewrite to each dtype changes."""

DEFAULT_DEVICE = Device()
"""An A100 for float16, a CPU for bfloat16."""


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """A parsed device string.

    Attributes:
        valid: whether it is a device string at all.
        type: device type as written, or empty.
        has_number: whether it names one device of that type.
    """

    valid: bool
    type: str
    has_number: bool

    def is_on(self, wanted: str) -> bool:
        """Returns True if it names one device of a type that contains ``wanted``, in any case."""
        return self.valid and self.has_number and wanted in self.type.lower()


_NUMBER = r"(?:\*|[0-9]+)"
_PARTS = re.compile(
    rf"/job:(?:\*|[A-Za-z][A-Za-z0-9_]*)|/replica:{_NUMBER}|/task:{_NUMBER}"
    rf"|/device:(?P<type>\*|[A-Za-z][A-Za-z0-9_]*)(?::(?P<number>{_NUMBER}))?"
    rf"|/(?P<old>[cg]pu|[CG]PU):(?P<old_number>{_NUMBER})"
)


@functools.lru_cache(maxsize=4096)
def parse_device(text: str) -> Placement:
    """Reads a device string.

    Example:
        >>> parse_device("/job:worker/device:GPU:1").is_on("gpu")
        True
        >>> parse_device("GPU:1").valid
        False
    """
    kind, has_number, position = "", False, 0
    if text == "/":
        return Placement(True, "", False)
    while position < len(text):
        part = _PARTS.match(text, position)
        if part is None:
            return Placement(False, "", False)
        position = part.end()
        if part["type"] is not None:
            kind = "" if part["type"] == "*" else part["type"]
            has_number = part["number"] not in (None, "*")
        elif part["old"] is not None:
            kind, has_number = part["old"].upper(), part["old_number"] != "*"
    return Placement(position > 0, kind, has_number and bool(kind))


def placement(text: str, default: DeviceType) -> Placement:
    """Returns where a node with this device string runs; the default device if it is empty."""
    return parse_device(text) if text else Placement(True, default.upper(), True)
