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
from collections.abc import Iterator, Mapping

from duotone.devices.specifications import TARGETS

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


_TABLE = """
name     capability  cores  lanes  clock  MB/s     memory MB  l2 KiB  shared  block   threads
b200     10.0        148    128    1.965  7672320  191500     129536  233472  232448  2048
h200     9.0         132    128    1.98   4800000  150000     51200   233472  232448  2048
h100     9.0         132    128    1.98   3352320  84900      51200   233472  232448  2048
a100     8.0         108    64     1.41   2039040  85100      40960   167936  166912  2048
l4       8.9         58     128    2.04   300000   23600      49152   102400  101376  1536
l40s     8.9         142    128    2.52   864000   47700      98304   102400  101376  1536
a10      8.6         72     128    1.695  600000   23700      6144    102400  101376  1536
rtx4090  8.9         128    128    2.52   1008000  25400      73728   102400  101376  1536
v100     7.0         80     64     1.53   898000   34000      6144    98304   98304   2048
t4       7.5         40     64     1.59   320000   15800      4096    65536   65536   1024
"""


def _gpus() -> Iterator[tuple[str, GpuConfig]]:
    for line in _TABLE.strip().splitlines()[1:]:
        name, capability, cores, lanes, clock, bandwidth, memory, l2, *shared = line.split()
        major, minor = capability.split(".")
        yield (
            name,
            GpuConfig(
                TARGETS[name].description,
                (int(major), int(minor)),
                int(cores),
                int(lanes),
                float(clock),
                int(bandwidth) * 10**6,
                int(memory) * 10**6,
                int(l2) * 1024,
                *map(int, shared),
            ),
        )


GPUS: Mapping[str, GpuConfig] = dict(_gpus())
"""The GPUs of ``TARGETS``, by name."""


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
