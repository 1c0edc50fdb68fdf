"""Decides which kernels use Tensor Cores, by their names and the compiler's metadata.

A trace does not count Tensor Core instructions. As in NVIDIA's Deep Learning Profiler, the name of
a kernel decides. These names mean Tensor Cores::

    the instruction's shape    volta_h884gemm, turing_fp16_s1688cudnn, ampere_bf16_s16816gemm
    the instruction            hmma, imma, dmma, wmma, gmma (Hopper), utcmma, tcgen05 (Blackwell)
    the library's engine       …xmma…tensor16x8x16…, cutlass…tensorop…, nvjet_… (cuBLAS)
    fused attention            …fmha…, …flash…

These names mean none: ``sgemm``, ``ffma`` (also in ``xmma`` names), ``simt``, ``winograd``,
``gemv``, ``implicit_convolve_sgemm``. The names of XLA's own kernels do not show it. A Triton
kernel uses Tensor Cores if they support the dtype of its dot; other kernels of XLA do not use them.

References:
    NVIDIA, *DLProf User Guide*; PyProf, ``pyprof/prof/tc.py``; xprof,
    ``kernel_stats_utils.cc`` (``IsKernelUsingTensorCore``).
"""

from __future__ import annotations

import re

from duotone.profiling.programs import Fact

_YES = re.compile(
    r"(?:^|[^a-z])[a-z]{1,2}(?:161616|168128|168256|16816|16832|16864|16328|1688|1684|884|8816|8832)"
    r"|(?:^|[^a-z])[hiqd]mma|gmma|wmma|utcmma|tcgen05|mma_sync|xmma|tensorop|tensor\d+x\d+x\d+"
    r"|nvjet|fmha|flash_(?:fwd|bwd|attn|attention)|sdpa"
    r"|conv1x1|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel|conv2d_c1_k1|direct_group",
    re.IGNORECASE,
)
_NO = re.compile(
    r"ffma|simt|(?:^|[^a-z])[sdcz]gemm|scudnn|convolve_[sd]gemm|winograd|gemv|gemmk1|\bdot_kernel<"
    r"|reduce_1block|splitk_?reduce|nchwtonhwc|nhwctonchw|computeoffsets|im2col"
    r"|memcpy|memset",
    re.IGNORECASE,
)
_TENSOR_CORE_MATH = re.compile(r"^(?:f16|bf16|f8\w+|f4\w+|[su][48])$")
_TRITON = re.compile(r"__triton\w*gemm\w*|__triton$")
_TRITON_KERNEL = re.compile(r"(?:triton_)?gemm_fusion_|triton_gemm")
_LIBRARY = ("__cublas$", "__cudnn$")
_LIBRARY_FUSIONS = ("__cudnn$fusion", "__custom_fusion")


def uses_tensor_cores(kernel: str, fact: Fact | None) -> bool | None:
    """Returns True if a kernel uses Tensor Cores; ``None`` if that is not known.

    Example:
        >>> uses_tensor_cores("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn", None)
        True
        >>> uses_tensor_cores("volta_sgemm_128x64_nn", None)
        False
    """
    if _NO.search(kernel):
        return False
    if _is_triton(kernel, fact):
        return None if fact is None else _triton(fact)
    if _YES.search(kernel):
        return True
    if fact is None or not fact.products:
        return False
    if fact.kind.startswith(_LIBRARY) or fact.emitter in _LIBRARY_FUSIONS:
        return None
    return False if fact.kind.startswith("fusion") or fact.kind in ("dot", "convolution") else None


def _is_triton(kernel: str, fact: Fact | None) -> bool:
    if fact is not None and _TRITON.fullmatch(fact.emitter):
        return True
    return _TRITON_KERNEL.match(kernel) is not None


def _triton(fact: Fact) -> bool | None:
    """Checks if a Triton dot has a supported dtype, which includes float32 unless it is exact."""
    if not fact.products:
        return None
    if fact.exact:
        return False
    dtypes = {dtype for product in fact.products for dtype in product.dtypes}
    if all(_TENSOR_CORE_MATH.match(dtype) or dtype == "f32" for dtype in dtypes):
        return True
    return None


def eligible(fact: Fact | None) -> bool:
    """Returns True if Tensor Cores could compute one of an operation's dots or convolutions."""
    return fact is not None and any(product.eligible for product in fact.products)
