"""Flags of TensorFlow's guide to XLA: their meaning here, and which the installed XLA knows.

``TF_XLA_FLAGS`` control TensorFlow's clustering. JAX compiles whole functions, so most of them
describe JAX's only behavior; :func:`apply_tf_xla_flags` applies the others. ``XLA_FLAGS`` are read
by XLA itself, which aborts the process at an unknown name. So :func:`check_xla_flags` first tries
them in another process.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable

from duotone._checks import check_string
from duotone.compiling.cache import use_cache
from duotone.compiling.defaults import DEFAULTS
from duotone.errors import EnvironmentVariableError
from duotone.text.suggestions import did_you_mean

_PATIENCE_SECONDS = 120


@dataclasses.dataclass(frozen=True, slots=True)
class TensorFlowFlag:
    """A flag of ``TF_XLA_FLAGS``.

    Attributes:
        name: its name, without dashes.
        takes: a regular expression that matches its whole value.
        here: its meaning for JAX, in one line.
    """

    name: str
    takes: str
    here: str


_BOOLEAN = r"true|false|0|1|"
_NUMBER = r"-?\d+"
_SIZE = r"[1-9]\d*"
TF_XLA_FLAGS: tuple[TensorFlowFlag, ...] = (
    TensorFlowFlag(
        "tf_xla_auto_jit",
        r"-1|0|1|2|fusible|single-gpu\(-?\d\)",
        "code inside jax.jit is always compiled whole, code outside never",
    ),
    TensorFlowFlag(
        "tf_xla_min_cluster_size",
        _SIZE,
        "the min_cluster_size of each duotone.cluster_jit that passes none; jax.jit is one program",
    ),
    TensorFlowFlag(
        "tf_xla_max_cluster_size",
        _SIZE,
        "the max_cluster_size of each duotone.cluster_jit that passes none; jax.jit is one program",
    ),
    TensorFlowFlag(
        "tf_xla_always_defer_compilation",
        _BOOLEAN,
        "JAX compiles at the first call of each shape: leave jax.jit out to defer it",
    ),
    TensorFlowFlag(
        "tf_xla_enable_lazy_compilation",
        _BOOLEAN,
        "JAX is always lazy: it compiles at the first call; jax.jit(f).lower(x).compile() before",
    ),
    TensorFlowFlag(
        "tf_xla_async_compilation",
        _BOOLEAN,
        "the background of each duotone.cluster_jit and bucketed that passes none; jax.jit waits",
    ),
    TensorFlowFlag(
        "tf_xla_clustering_fuel",
        _NUMBER,
        "to bisect, duotone.cluster_jit takes exclude_ops; jax.disable_jit() excludes all",
    ),
    TensorFlowFlag(
        "tf_xla_clustering_debug",
        _BOOLEAN,
        "duotone clusters file.py:function shows repeated parts",
    ),
    TensorFlowFlag("tf_xla_cpu_global_jit", _BOOLEAN, "JAX compiles for every device"),
    TensorFlowFlag(
        "tf_xla_persistent_cache_directory",
        r".+",
        "duotone run switches JAX's persistent cache on in this folder (duotone.use_cache)",
    ),
    TensorFlowFlag(
        "tf_xla_persistent_cache_read_only", _BOOLEAN, "JAX always writes missing entries"
    ),
    TensorFlowFlag(
        "tf_xla_persistent_cache_prefix", r".*", "JAX names entries by the program itself"
    ),
)
"""The flags of the guide, and related flags of the same source file."""


@dataclasses.dataclass(frozen=True, slots=True)
class GuideFlag:
    """A flag of ``XLA_FLAGS`` that guides about XLA mention.

    Attributes:
        name: its name, without dashes.
        value: an accepted value.
        known: whether the XLA of JAX 0.10 to 0.12 knows it.
        use: its purpose, or its replacement.
    """

    name: str
    value: str
    known: bool
    use: str


GUIDE_XLA_FLAGS: tuple[GuideFlag, ...] = (
    GuideFlag("xla_dump_to", "/tmp/dump", True, "writes each program into a folder"),
    GuideFlag("xla_dump_hlo_as_text", "true", True, "as text"),
    GuideFlag("xla_dump_hlo_as_html", "false", True, "as pages"),
    GuideFlag("xla_dump_hlo_snapshots", "false", True, "with the arguments of each call"),
    GuideFlag("xla_dump_hlo_pass_re", "fusion", True, "also between passes"),
    GuideFlag("xla_gpu_autotune_level", "4", True, "how many kernels are tried: 0 saves time"),
    GuideFlag("xla_gpu_cuda_data_dir", "/usr/local/cuda", True, "where CUDA is"),
    GuideFlag("xla_gpu_ftz", "false", True, "denormal numbers are zero"),
    GuideFlag("xla_backend_optimization_level", "3", True, "LLVM's level: 0 compiles faster"),
    GuideFlag("xla_llvm_disable_expensive_passes", "false", True, "compiles faster"),
    GuideFlag("xla_disable_hlo_passes", "fusion", True, "leaves passes out"),
    GuideFlag("xla_cpu_multi_thread_eigen", "true", True, "dots on several cores"),
    GuideFlag("xla_gpu_force_compilation_parallelism", "1", True, "threads that compile"),
    GuideFlag("xla_multiheap_size_constraint_per_heap", "1", True, "splits temporary memory"),
    GuideFlag("xla_hlo_profile", "false", True, "nothing any more: duotone profile"),
    GuideFlag("xla_generate_hlo_text_to", "/tmp", False, "xla_dump_to, xla_dump_hlo_as_text"),
    GuideFlag("xla_hlo_graph_path", "/tmp", False, "xla_dump_to, xla_dump_hlo_as_dot"),
    GuideFlag("xla_dump_optimized_hlo_proto_to", "/tmp", False, "xla_dump_hlo_as_proto"),
    GuideFlag("xla_gpu_max_kernel_unroll_factor", "2", False, "nothing: XLA chooses"),
    GuideFlag("xla_gpu_use_cudnn_batchnorm", "false", False, "nothing"),
    GuideFlag("xla_gpu_deterministic_reductions", "true", False, "xla_gpu_deterministic_ops"),
    GuideFlag("xla_gpu_disable_multi_streaming", "true", False, "nothing"),
)
"""Flags in guides to XLA; a test checks them against the installed XLA."""


def read_tf_xla_flags(text: str) -> dict[str, str]:
    """Returns the flags in a value of ``TF_XLA_FLAGS``.

    Raises:
        EnvironmentVariableError: a flag is unknown (the message names the nearest), or its value is
            invalid.

    Example:
        >>> read_tf_xla_flags("--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit")
        {'tf_xla_auto_jit': '2', 'tf_xla_cpu_global_jit': ''}
    """
    known, found = {flag.name: flag for flag in TF_XLA_FLAGS}, {}
    for word in _words(text):
        name, _, value = word.lstrip("-").partition("=")
        if not word.startswith("--") or name not in known:
            raise _unknown("TF_XLA_FLAGS", word, name, list(known))
        if not re.fullmatch(known[name].takes, value):
            takes = known[name].takes.strip("|").replace("\\", "").replace("|", ", ")
            raise EnvironmentVariableError(
                f"TF_XLA_FLAGS: --{name}={value}: it takes {_IN_WORDS.get(takes, takes)}"
            )
        found[name] = value
    return found


_IN_WORDS = {"-?d+": "a whole number", "[1-9]d*": "a whole number from 1 on", ".+": "a folder"}


def apply_tf_xla_flags(text: str, say: Callable[[str], None]) -> None:
    """Applies the flags of ``TF_XLA_FLAGS`` that have a meaning here, and prints a line for each.

    Raises:
        EnvironmentVariableError: as :func:`read_tf_xla_flags`.
        WriteError: the folder of the persistent cache cannot be used.
    """
    lines = {flag.name: flag.here for flag in TF_XLA_FLAGS}
    for name, value in read_tf_xla_flags(text).items():
        if name == "tf_xla_persistent_cache_directory":
            use_cache(value)
            say(f"--{name}={value}: JAX's persistent cache is there")
        else:
            shown = f"--{name}={value}" if value else f"--{name}"
            _set_default(name, value)
            say(f"{shown}: {lines[name]}")


def _set_default(name: str, value: str) -> None:
    """Makes a flag the default of ``duotone.cluster_jit``, if it is one."""
    if name == "tf_xla_min_cluster_size":
        DEFAULTS.min_cluster_size = int(value)
    elif name == "tf_xla_max_cluster_size":
        DEFAULTS.max_cluster_size = int(value)
    elif name == "tf_xla_async_compilation":
        DEFAULTS.background = value not in ("false", "0")


def check_xla_flags(text: str | None = None) -> None:
    """Checks, in another process, whether the installed XLA accepts these flags.

    XLA aborts a process with an unknown flag. The check takes as long as importing JAX.

    Args:
        text: the flags; the value of ``XLA_FLAGS`` if omitted.

    Raises:
        ArgumentTypeError: ``text`` is not a string.
        EnvironmentVariableError: XLA does not accept them; the message names the flag and the
            nearest known one.

    Example:
        >>> import duotone
        >>> duotone.check_xla_flags("")
    """
    text = os.environ.get("XLA_FLAGS", "") if text is None else text
    check_string("check_xla_flags", "text", text)
    if not text.strip():
        return
    output = _output_of_xla(text)
    if output is None:
        return
    unknown = re.search(r"Unknown flags? in XLA_FLAGS: (.*)", output)
    if unknown is not None:
        word = unknown[1].split()[0]
        name = word.lstrip("-").partition("=")[0]
        raise _unknown("XLA_FLAGS", word, name, _names_of_xla())
    wrong = re.search(r"Couldn't interpret value (\S*) for flag (\w+)", output)
    if wrong is not None:
        raise EnvironmentVariableError(f"XLA_FLAGS: --{wrong[2]} does not take {wrong[1]!r}")
    last = [line for line in output.splitlines() if line.strip()][-1:]
    raise EnvironmentVariableError(f"XLA_FLAGS: XLA does not start with {text!r}: {''.join(last)}")


def _output_of_xla(text: str) -> str | None:
    """Returns the errors of a process whose XLA gets these flags; ``None`` if XLA accepts them."""
    environment = {**os.environ, "XLA_FLAGS": text, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=_PATIENCE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_PATIENCE_SECONDS} s"
    return None if done.returncode == 0 else done.stderr


@functools.cache
def _names_of_xla() -> list[str]:
    """Returns the names of flags that XLA prints if a value is wrong; these are not all flags."""
    output = _output_of_xla("--xla_dump_hlo_as_text=neither") or ""
    found = re.findall(r"^\t--(\w+)", output, re.MULTILINE)
    return sorted({*found, *(flag.name for flag in GUIDE_XLA_FLAGS if flag.known)})


def _unknown(variable: str, word: str, name: str, known: list[str]) -> EnvironmentVariableError:
    replaced = next((f.use for f in GUIDE_XLA_FLAGS if f.name == name and not f.known), None)
    if replaced is None:
        remedy = did_you_mean(f"--{name}", [f"--{flag}" for flag in known], "remove it")
    else:
        remedy = f"use instead: {replaced}"
    return EnvironmentVariableError(f"{variable}: {word} is not a known flag; {remedy}")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise EnvironmentVariableError(f"TF_XLA_FLAGS: {text!r} cannot be read: {error}") from error
