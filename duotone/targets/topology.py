"""Finds the device of a target: the real one if it is there, else a description of one.

A description comes from the compiler that JAX's plugin for the platform brings: of GPUs a *target
configuration* (:mod:`duotone.targets.gpus`), of TPUs the name of a topology.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.experimental import topologies

from duotone import _jax
from duotone.errors import CompilationError, MissingExtraError
from duotone.targets.gpus import GPUS, target_config
from duotone.targets.specifications import Target


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where to compile.

    Attributes:
        device: a JAX device, or one that only compiles.
        present: whether it is real.
        options: for the compiler.
    """

    device: Any
    present: bool
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@functools.cache
def find(target: Target) -> Place:
    """The device of a target.

    Raises:
        MissingExtraError: the compiler for it is not installed.
        CompilationError: its compiler could not be started.
    """
    if target.platform == "cpu":
        return Place(jax.devices("cpu")[0], present=True)
    with _environment(_WITHOUT_DEVICE[target.platform]):
        if (device := _attached(target)) is not None:
            return Place(device, present=True)
    describe = _gpu if target.platform == "cuda" else _tpu
    with _environment(_WITHOUT_DEVICE[target.platform] | _WITHOUT_HOST[target.platform]):
        try:
            described = describe(target)
        except MissingExtraError:
            raise
        except (RuntimeError, OSError) as error:
            raise CompilationError(
                f"target {target.name!r}: the compiler for it could not be started: {error}"
            ) from error
    options = _gpu_options(target) if target.platform == "cuda" else {}
    return Place(described.devices[0], present=False, options=options)


def _attached(target: Target) -> Any:
    """The real device of this kind, if it is JAX's default."""
    platform = {"cuda": "gpu"}.get(target.platform, target.platform)
    for device in jax.local_devices():
        named = device.platform in (platform, target.platform)
        if named and device.device_kind == target.description:
            return device
    return None


def _gpu(target: Target) -> Any:
    if _jax.cuda_plugin() is None:
        raise MissingExtraError(f"target {target.name!r}", "JAX's CUDA plugin", "cuda")
    _jax.load_cuda_plugin()
    config = target_config(GPUS[target.name])
    return topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=config)


def _gpu_options(target: Target) -> dict[str, Any]:
    """Options to compile for a GPU that is not there.

    Autotuning measures kernels on the device. CUDA 13 has no assembler for GPUs before compute
    capability 7.5; that of CUDA 12 is in a small package of its own.
    """
    options: dict[str, Any] = {"xla_gpu_autotune_level": 0}
    old = GPUS[target.name].capability < _FIRST_OF_CUDA_13
    if old and _jax.cuda_plugin() == "jax_plugins.xla_cuda13":
        try:
            found = importlib.util.find_spec("nvidia.cuda_nvcc")
        except ModuleNotFoundError:
            found = None
        if found is None or not found.submodule_search_locations:
            assembler = "the assembler of CUDA 12 (nvidia-cuda-nvcc-cu12)"
            raise MissingExtraError(f"target {target.name!r}", assembler, "cuda")
        options["xla_gpu_cuda_data_dir"] = next(iter(found.submodule_search_locations))
    return options


_FIRST_OF_CUDA_13 = (7, 5)


def _tpu(target: Target) -> Any:
    if importlib.util.find_spec("libtpu") is None:
        raise MissingExtraError(f"target {target.name!r}", "libtpu", "tpu")
    return topologies.get_topology_desc(platform="tpu", topology_name=target.topology)


_WITHOUT_DEVICE = {
    # The plugin would compare versions with those of a driver that is not there.
    "cuda": {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"},
    "tpu": {},
}
_WITHOUT_HOST = {
    "cuda": {},
    # Else libtpu asks a metadata server that only Google's machines have, and logs that it failed.
    "tpu": {
        "TPU_SKIP_MDS_QUERY": "1",
        # Else one process only may load libtpu at a time: it thinks of the device.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
    },
}


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Environment variables for the time in which a compiler starts; those that are set stay."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
