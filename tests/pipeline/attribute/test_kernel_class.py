"""Which class a kernel's name puts it in: the first pattern that matches."""

from __future__ import annotations

import pytest
from tests import kernel_names

from stepscope.pipeline.attribute.kernel_class import UNCLASSIFIED, Pattern, kernel_class, patterns

CONTRACT = {
    *("attention", "gemm", "moe-gemm", "routing", "norm", "rope", "activation", "quantise", "cast", "copy", "fill"),
    *("gather", "elementwise", "reduction", "sampling", "collective", "memcpy", "memset", "unclassified"),
}
REAL_NAMES = [
    ("cast", kernel_names.TO_BF16),
    ("cast", kernel_names.BF16_FROM_FLOAT),
    ("cast", kernel_names.FLOAT_FROM_BF16),
    ("cast", kernel_names.FP8_WRITE),
    ("copy", kernel_names.COPY_BF16),
    ("copy", kernel_names.STRIDED_COPY),
    ("elementwise", kernel_names.ADD_INT),
    ("elementwise", kernel_names.ADD),
    ("gather", kernel_names.GATHER),
    ("gemm", kernel_names.GEMM),
    ("norm", kernel_names.NORM),
    ("attention", kernel_names.ATTENTION),
    ("elementwise", "triton_poi_fused__unsafe_view_add_3"),
    ("activation", "triton_poi_fused__unsafe_view_mul_silu_2"),
    ("attention", "kernel_unified_attention_3d"),
    ("attention", "void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16, __hip_bfloat16, 128, 128, 256, 3, false>"),
    ("attention", "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4> >"),
    ("routing", "void at::native::sbtopk::gatherTopK<float, unsigned int, 1, false>"),
    ("routing", "void (anonymous namespace)::grouped_topk_single_group_kernel<128>(float const*, float*, int*)"),
    ("moe-gemm", "fused_moe_kernel"),
    ("gemm", "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x256_MI16x16x1_SN"),
    ("gemm", "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>"),
    ("norm", "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*)"),
    ("rope", "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*)"),
    (
        "gather",
        "void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, __hip_bfloat16>(__hip_bfloat16 const*)",
    ),
    ("collective", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"),
    ("reduction", "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>"),
    ("fill", "void at::native::vectorized_elementwise_kernel<8, at::native::FillFunctor<c10::BFloat16> >"),
    (UNCLASSIFIED, "void compute_cuda_kernel<long>(long*, long*, long*, long, long)"),
]


@pytest.mark.parametrize("pattern", patterns(), ids=lambda pattern: pattern.example[:40])
def test_each_patterns_example_is_of_its_class(pattern: Pattern) -> None:
    assert kernel_class("kernel", pattern.example) == pattern.kernel_class


def test_all_classes_are_the_contracts() -> None:
    assert {pattern.kernel_class for pattern in patterns()} <= CONTRACT
    assert UNCLASSIFIED in CONTRACT


@pytest.mark.parametrize(("expected", "name"), REAL_NAMES)
def test_real_names(expected: str, name: str) -> None:
    assert kernel_class("kernel", name) == expected


@pytest.mark.parametrize("kind", ["memcpy", "memset"])
def test_copies_and_sets_are_of_their_kind_whatever_they_are_called(kind: str) -> None:
    assert kernel_class(kind, "Memcpy DtoD (Device -> Device) of a gemm") == kind
