"""Settings that must stand before any test or docstring example imports its library."""

from __future__ import annotations

import os
from importlib import metadata, util

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads it once, when it is imported
# Programs of a few elements need no optimizing compiler. Said here and not in a fixture: modules
# and their fixtures compile as well, and so do the processes that tests start.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")


def _xla_flags() -> list[str]:
    """Eight devices, and what makes compiling cheap: its work undivided, the faster emitters."""
    flags = ["--xla_force_host_platform_device_count=8"]
    # A flag that XLA does not know ends Python; libtpu's XLA reads the same variable.
    if util.find_spec("libtpu") is None:
        # Modules in pieces for many cores: two workers have none to spare, and pieces cost more.
        flags.append("--xla_cpu_parallel_codegen_split_count=1")
        if metadata.version("jaxlib").startswith("0.10."):
            flags.append("--xla_cpu_use_fusion_emitters=false")
    return flags


# Before JAX is loaded: it reads them when it starts.
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_xla_flags()]).strip()

# Modules whose library is not in this environment have no examples to run.
IN_TENSORFLOW = ["duotone/tensorflow/calibrate.py", "duotone/tensorflow/compare.py"]
collect_ignore_glob = (
    [] if util.find_spec("tensorflow") else ["duotone/adapters/tensorflow/*", *IN_TENSORFLOW]
)
