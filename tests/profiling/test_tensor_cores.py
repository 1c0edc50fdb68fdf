"""Which kernels use Tensor Cores, by names that NVIDIA's libraries and XLA gave them."""

from __future__ import annotations

from pathlib import Path

import pytest

from duotone.profiling.programs import Fact, facts_of
from duotone.profiling.shapes import MatrixProduct
from duotone.profiling.tensor_cores import eligible, uses_tensor_cores

USE = """
volta_h884gemm_256x128_ldg8_nn
volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1
volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn
turing_fp16_s1688cudnn_fp16_256x128_ldg8_relu_filter1x1_stg8_interior_nchw_nn_v1
turing_h1688gemm_128x128_ldg8_stages_32x1_nn
ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn
ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_tn
ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_nn
cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4
cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_128x2_tn_align8
cutlass3x_sm100_bstensorop_s256x128x64gemm_block_scaled_ue8m0xe4m3_ue8m0xe4m3_f32_bf16_bf16
void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(T)
sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16_kernel
sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32_tensor16x8x8
sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off
sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1
nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT
nvjet_tst_128x128_64x4_1x2_h_bz_coopA_TNT
nvjet_sm100_tst_64x32_64x16_2x1_2cta_v_bz_TNT
nvjet_sm90_hss_320x128_64x3_1x2_h_bz_NNT
cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x64_4x1x1_kernel0_0
fmha_v2_flash_attention_fp16_64_128_S_40_sm86_kernel
void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)
"""
DO_NOT = """
volta_sgemm_128x64_nn
volta_scudnn_128x64_relu_interior_nn_v1
ampere_sgemm_128x64_tn
ampere_sgemm_32x32_sliced1x4_nn
ampere_dgemm_64x64_nn
cutlass_80_simt_sgemm_256x128_8x4_nn_align1
sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4
void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, true, false, true>(int)
void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(Params)
void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, 2>(nchw2nhwc_params_t<float>)
void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true>
void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false>
void gemvNSP_kernel<float, float, float, float, 1, 32, 4, 1024>
void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>>>(T)
loop_add_fusion_1688
input_reduce_fusion_884
wrapped_transpose_16816
command_buffer
MemcpyH2D
ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)
void gemma_norm_kernel<float>(int)
"""


@pytest.mark.parametrize("kernel", USE.split("\n")[1:-1])
def test_kernels_that_use_them(kernel: str) -> None:
    assert uses_tensor_cores(kernel, None) is True


@pytest.mark.parametrize("kernel", DO_NOT.split("\n")[1:-1])
def test_kernels_that_do_not(kernel: str) -> None:
    assert uses_tensor_cores(kernel, None) is False


def a_dot(kind: str, emitter: str = "", exact: bool = False, dtype: str = "f32") -> Fact:
    product = MatrixProduct(128, 128, 128, (dtype, dtype))
    return Fact(kind, "", "", "", "", 1.0, (product,), exact, emitter, (), False)


@pytest.mark.parametrize(
    ("kernel", "fact", "uses"),
    [
        ("gemm_fusion_dot_5", a_dot("fusion(dot)", "__triton_gemm", dtype="bf16"), True),
        ("gemm_fusion_dot_5", a_dot("fusion(dot)", "__triton_gemm"), True),  # as tf32
        ("gemm_fusion_dot_5", a_dot("fusion(dot)", "__triton_gemm", exact=True), False),
        ("gemm_fusion_dot_5", a_dot("fusion(dot)", "__triton_gemm", dtype="f64"), None),
        ("gemm_fusion_dot_5", None, None),
        ("fusion_7", a_dot("fusion(dot)", "__triton_nested_gemm_fusion", dtype="f16"), True),
        ("loop_dot_fusion", a_dot("fusion(dot)", dtype="f16"), False),
        ("wrapped_dot", a_dot("dot"), False),
        ("a_kernel_of_next_year", a_dot("__cublas$gemm"), None),
        ("a_kernel_of_next_year", a_dot("__cudnn$convForward"), None),
        ("a_kernel_of_next_year", a_dot("fusion(dot)", "__cudnn$fusion"), None),
        ("ampere_sgemm_128x64_tn", a_dot("__cublas$gemm"), False),
    ],
)
def test_a_name_and_the_program_together(kernel: str, fact: Fact | None, uses: bool | None) -> None:
    assert uses_tensor_cores(kernel, fact) is uses


@pytest.mark.parametrize(
    ("product", "can"),
    [
        (MatrixProduct(64, 64, 64, ("f32", "f32")), True),
        (MatrixProduct(64, 64, 64, ("f16", "f32")), True),
        (MatrixProduct(63, 65, 64, ("bf16", "bf16")), True),  # uneven, yet it can
        (MatrixProduct(64, 1, 64, ("f16", "f16")), False),
        (MatrixProduct(64, 64, 4, ("f16", "f16")), False),
        (MatrixProduct(64, 64, 64, ("f64", "f64")), False),
        (MatrixProduct(64, 64, 64, ("c64", "c64")), False),
        (MatrixProduct(64, 64, 64, ("f8e4m3fn", "f8e5m2")), True),
        (MatrixProduct(64, 64, 64, ("s8", "s8")), True),
        (MatrixProduct(64, 64, 64, ("s32", "s32")), False),
    ],
)
def test_eligible_is_what_has_the_shape_and_a_dtype(product: MatrixProduct, can: bool) -> None:
    assert product.eligible is can


PROGRAMS = Path(__file__).parents[1] / "cost" / "programs"


def test_convolutions_and_dots_of_compiled_programs() -> None:
    """Programs as XLA compiled them for an H200."""
    facts = facts_of((PROGRAMS / "h200_convolution.txt").read_text())
    calls = {f.kind: f for f in facts.values() if f.kind.startswith("__cudnn$conv")}
    assert set(calls) == {
        "__cudnn$convForward",
        "__cudnn$convBackwardInput",
        "__cudnn$convBackwardFilter",
    }
    assert all(fact.flops > 0 for fact in calls.values())
    loop = facts_of((PROGRAMS / "h200_scan.txt").read_text())
    (dot,) = [fact for fact in loop.values() if fact.products]
    assert dot.emitter == "__triton_nested_gemm_fusion"
    assert len(dot.loop) == 1
    assert eligible(dot)


def test_a_depthwise_convolution_is_not_eligible() -> None:
    facts = facts_of(
        """HloModule m, is_scheduled=true

ENTRY %main (x: f16[8,32,32,64], k: f16[3,3,1,64]) -> f16[8,32,32,64] {
  %x = f16[8,32,32,64]{3,2,1,0} parameter(0)
  %k = f16[3,3,1,64]{3,2,1,0} parameter(1)
  ROOT %c = f16[8,32,32,64]{3,2,1,0} convolution(%x, %k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, feature_group_count=64
}
"""  # noqa: E501
    )
    assert facts["c"].products
    assert not eligible(facts["c"])
