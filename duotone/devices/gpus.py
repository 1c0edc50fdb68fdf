"""Descriptions of GPUs, for XLA's compiler if the GPU itself is not present.

XLA reads the text form of its ``GpuTargetConfigProto``; :func:`target_config` writes it from the
few figures that differ between GPUs. XLA uses them in its cost model (what to fuse, how to tile)
and for limits of the hardware.

References:
    XLA, ``xla/stream_executor/device_description.proto``; XLA publishes its own descriptions of
    some GPUs in ``xla/backends/gpu/target_config/specs``. Figures: NVIDIA's architecture white
    papers, and the "Technical Specifications per Compute Capability" of its programming guide.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

CUDNN = (9, 10, 0)
"""The version of cuDNN that is assumed; XLA chooses its fusions by it."""


@dataclasses.dataclass(frozen=True, slots=True)
class GpuConfig:
    """A GPU as the compiler sees it.

    Attributes:
        description: the driver's name for it.
        capability: compute capability, major and minor.
        cores: streaming multiprocessors.
        lanes: float32 units of each.
        clock: boost clock, GHz.
        bandwidth: bandwidth of the main memory, bytes per second.
        memory: size of the main memory in bytes, as the driver reports it.
        l2: bytes of the second-level cache.
        shared: bytes of shared memory of each core.
        shared_block: bytes of shared memory that one block of threads may use.
        threads: the most threads on a core.
    """

    description: str
    capability: tuple[int, int]
    cores: int
    lanes: int
    clock: float
    bandwidth: int
    memory: int
    l2: int
    shared: int
    shared_block: int
    threads: int


_MIB = 1 << 20
_HOPPER = {"shared": 233472, "shared_block": 232448, "threads": 2048}
"""Compute capabilities 9.0 and 10.0."""
_ADA = {"shared": 102400, "shared_block": 101376, "threads": 1536}
"""Compute capabilities 8.6 and 8.9."""

GPUS: Mapping[str, GpuConfig] = {
    "h200": GpuConfig(
        description="NVIDIA H200",
        capability=(9, 0),
        cores=132,
        lanes=128,
        clock=1.98,
        bandwidth=4_800_000_000_000,
        memory=150_000_000_000,
        l2=50 * _MIB,
        **_HOPPER,
    ),
    "h100": GpuConfig(
        description="NVIDIA H100 80GB HBM3",
        capability=(9, 0),
        cores=132,
        lanes=128,
        clock=1.98,
        bandwidth=3_352_320_000_000,
        memory=84_900_000_000,
        l2=50 * _MIB,
        **_HOPPER,
    ),
    "b200": GpuConfig(
        description="NVIDIA B200",
        capability=(10, 0),
        cores=148,
        lanes=128,
        clock=1.965,
        bandwidth=7_672_320_000_000,
        memory=191_500_000_000,
        l2=132_644_864,
        **_HOPPER,
    ),
    "a100": GpuConfig(
        description="NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        cores=108,
        lanes=64,
        clock=1.41,
        bandwidth=2_039_040_000_000,
        memory=85_100_000_000,
        l2=40 * _MIB,
        shared=167936,
        shared_block=166912,
        threads=2048,
    ),
    "l4": GpuConfig(
        description="NVIDIA L4",
        capability=(8, 9),
        cores=58,
        lanes=128,
        clock=2.04,
        bandwidth=300_000_000_000,
        memory=23_600_000_000,
        l2=48 * _MIB,
        **_ADA,
    ),
    "l40s": GpuConfig(
        description="NVIDIA L40S",
        capability=(8, 9),
        cores=142,
        lanes=128,
        clock=2.52,
        bandwidth=864_000_000_000,
        memory=47_700_000_000,
        l2=96 * _MIB,
        **_ADA,
    ),
    "a10": GpuConfig(
        description="NVIDIA A10",
        capability=(8, 6),
        cores=72,
        lanes=128,
        clock=1.695,
        bandwidth=600_000_000_000,
        memory=23_700_000_000,
        l2=6 * _MIB,
        **_ADA,
    ),
    "rtx4090": GpuConfig(
        description="NVIDIA GeForce RTX 4090",
        capability=(8, 9),
        cores=128,
        lanes=128,
        clock=2.52,
        bandwidth=1_008_000_000_000,
        memory=25_400_000_000,
        l2=72 * _MIB,
        **_ADA,
    ),
    "v100": GpuConfig(
        description="Tesla V100-SXM2-32GB",
        capability=(7, 0),
        cores=80,
        lanes=64,
        clock=1.53,
        bandwidth=898_000_000_000,
        memory=34_000_000_000,
        l2=6 * _MIB,
        shared=98304,
        shared_block=98304,
        threads=2048,
    ),
    "t4": GpuConfig(
        description="Tesla T4",
        capability=(7, 5),
        cores=40,
        lanes=64,
        clock=1.59,
        bandwidth=320_000_000_000,
        memory=15_800_000_000,
        l2=4 * _MIB,
        shared=65536,
        shared_block=65536,
        threads=1024,
    ),
}


def target_config(gpu: GpuConfig) -> str:
    """Returns the text with which XLA compiles for a GPU.

    Example:
        >>> "core_count: 132" in target_config(GPUS["h200"])
        True
    """
    major, minor = gpu.capability
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {gpu.shared}
  threads_per_core_limit: {gpu.threads}
  core_count: {gpu.cores}
  fpus_per_core: {gpu.lanes}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {gpu.bandwidth}
  l2_cache_size: {gpu.l2}
  clock_rate_ghz: {gpu.clock}
  device_memory_size: {gpu.memory}
  shared_memory_per_block_optin: {gpu.shared_block}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: {CUDNN[0]} minor: {CUDNN[1]} patch: {CUDNN[2]} }}
runtime_version {{ major: 13 }}
device_description_str: "{gpu.description}"
"""
