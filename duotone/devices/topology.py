"""Finds the devices of a target: the real ones if they are present, else a description of them.

The compiler in JAX's plugin for the platform makes a description: for GPUs from a *target
configuration* (:mod:`duotone.devices.gpus`), for TPUs from the name of a topology.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.experimental import topologies

from duotone import _jax
from duotone.devices.gpus import GPUS, target_config
from duotone.devices.specifications import Target
from duotone.errors import CompilationError, MissingExtraError


@dataclasses.dataclass(frozen=True, slots=True)
class CompileDevices:
    """The devices to compile for.

    Attributes:
        devices: JAX devices, or described devices that can only compile.
        present: whether they are real.
        options: compiler options.
    """

    devices: tuple[Any, ...]
    present: bool
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@functools.cache
def find(target: Target, count: int = 1) -> CompileDevices:
    """Returns the devices of a target.

    Args:
        target: the target.
        count: the number of devices.

    Raises:
        MissingExtraError: the compiler for the target is not installed.
        CompilationError: the compiler does not start, or has no topology with so many devices.
    """
    if target.platform == "cpu":
        return CompileDevices(_local_cpus(count), present=True)
    with _environment(_WITHOUT_DEVICE[target.platform]):
        attached = _attached(target)
        if len(attached) >= count:
            return CompileDevices(attached[:count], present=True)
    describe = _gpus if target.platform == "cuda" else _tpus
    with _environment(_WITHOUT_DEVICE[target.platform] | _WITHOUT_HOST[target.platform]):
        try:
            described = describe(target, count)
        except MissingExtraError:
            raise
        except (RuntimeError, OSError) as error:
            raise CompilationError(
                f"target {target.name!r}: the compiler for it could not be started: {error}"
            ) from error
    options = _gpu_options(target) if target.platform == "cuda" else {}
    return CompileDevices(tuple(described.devices)[:count], present=False, options=options)


def _local_cpus(count: int) -> tuple[Any, ...]:
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise CompilationError(
            f"target 'cpu': the program is sharded over {count} devices and JAX has {len(devices)} "
            f"here; set XLA_FLAGS=--xla_force_host_platform_device_count={count} before it starts"
        )
    return tuple(devices[:count])


def _attached(target: Target) -> tuple[Any, ...]:
    """Returns the real devices of this kind, if JAX's default is one."""
    platform = {"cuda": "gpu"}.get(target.platform, target.platform)
    return tuple(
        device
        for device in jax.local_devices()
        if device.platform in (platform, target.platform)
        and device.device_kind == target.description
    )


_GPUS_OF_A_HOST = 8


def _gpus(target: Target, count: int) -> Any:
    """Returns GPUs of one host, or of several hosts with eight GPUs each."""
    if _jax.cuda_plugin() is None:
        raise MissingExtraError(f"target {target.name!r}", "JAX's CUDA plugin", "cuda")
    _jax.load_cuda_plugin()
    config = target_config(GPUS[target.name])
    hosts, each = (1, count) if count <= _GPUS_OF_A_HOST else (count // 8, _GPUS_OF_A_HOST)
    if hosts * each != count:
        raise CompilationError(
            f"target {target.name!r}: {count} GPUs do not fill whole hosts of eight"
        )
    topology = f"1x{hosts}x{each}"
    return topologies.get_topology_desc(platform="cuda", topology=topology, target_config=config)


def _gpu_options(target: Target) -> dict[str, Any]:
    """Returns options to compile for a GPU that is not present.

    Autotuning is off, because it measures kernels on the device. CUDA 13 has no assembler for GPUs
    before compute capability 7.5, so these use the one of CUDA 12, from a small separate package.
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


def _tpus(target: Target, count: int) -> Any:
    """Returns the smallest slice of a pod with so many chips."""
    if importlib.util.find_spec("libtpu") is None:
        raise MissingExtraError(f"target {target.name!r}", "libtpu", "tpu")
    name, _, smallest = target.topology.partition(":")
    sizes = [int(size) for size in smallest.split("x")]
    while math.prod(sizes) < count:
        sizes[sizes.index(min(sizes))] *= 2
        sizes.sort()
    if count not in (1, math.prod(sizes)):
        raise CompilationError(
            f"target {target.name!r}: no slice has {count} chips; the next larger has "
            f"{math.prod(sizes)}"
        )
    topology = f"{name}:{'x'.join(map(str, sizes))}"
    return topologies.get_topology_desc(platform="tpu", topology_name=topology)


_WITHOUT_DEVICE = {
    # Otherwise the plugin compares versions with those of a missing driver.
    "cuda": {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"},
    "tpu": {},
}
_WITHOUT_HOST = {
    "cuda": {},
    # Otherwise libtpu queries a metadata server that only Google's machines have, and logs errors.
    "tpu": {
        "TPU_SKIP_MDS_QUERY": "1",
        # Otherwise only one process may load libtpu at a time, to protect the device.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
    },
}


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Sets environment variables while a compiler starts; variables that the user set stay."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
