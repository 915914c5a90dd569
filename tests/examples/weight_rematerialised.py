"""Traces on which `weight-rematerialised` must speak, and look-alikes on which it must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.decode_steps import Work, copied, eager, graphed
from tests.kernel_names import ADD, ATTENTION, COPY_BF16, GEMM, NORM, STRIDED_COPY, TO_BF16

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kineto import Kineto

LAYERS = 10
FP8, BF16, FLOAT = "c10::Float8_e4m3fn", "c10::BFloat16", "float"
REST = (Work(NORM, 3), Work(ATTENTION, 12), Work(ADD, 3))
SCALE = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<"
    "c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> > > >"
)
DEQUANTISE = "void dequantize_block_q4_K<c10::Half>(void const*, c10::Half*)"
O_PROJ_BLOCKS = (24_576, 1, 1)
"""12,582,912 elements of 512 a block: o_proj of GLM-5 at TP-8, [6144, 2048]."""


def matmul(rows: int, out: int = 6144, width: int = 2048) -> Work:
    return Work(GEMM, 8, "aten::mm", [[rows, width], [width, out]], [BF16, BF16])


def scaled(us: float, shape: tuple[int, int]) -> Work:
    return Work(SCALE, us, "aten::mul", [shape, (shape[0], 1)], [BF16, BF16])


def weight_converted_and_scaled() -> Kineto:
    dequantised = [copied(TO_BF16, 40, (6144, 2048), FP8, BF16), scaled(30, (6144, 2048))]
    return eager([[*dequantised, matmul(1), *REST] * LAYERS] * 3)


def expert_weights_at_a_batch_of_as_many_as_there_are_experts() -> Kineto:
    cast = copied(TO_BF16, 900, (256, 512, 6144), FP8, BF16)
    return eager([[cast, matmul(256), *REST] * LAYERS] * 3, annotation="step[DECODE bs=256]")


def weight_of_no_known_model_that_a_gemm_reads() -> Kineto:
    dequantised = [copied(TO_BF16, 40, (5000, 3000), FP8, BF16), scaled(30, (5000, 3000))]
    return eager([[*dequantised, matmul(4096, 5000, 3000), *REST] * LAYERS] * 3, annotation="ProfilerStep#1")


def weight_transposed() -> Kineto:
    transposed = copied(STRIDED_COPY, 25, (2048, 6144), BF16, BF16)
    return eager([[transposed, matmul(1), *REST] * LAYERS] * 3)


def weight_converted_and_scaled_in_a_graph() -> Kineto:
    dequantised = [Work(TO_BF16, 40, grid=O_PROJ_BLOCKS), Work(SCALE, 30, grid=O_PROJ_BLOCKS)]
    return graphed([[*dequantised, matmul(1), *REST] * LAYERS] * 3)


def dequantisation_by_a_kernel_of_that_name_in_a_graph() -> Kineto:
    return graphed([[Work(DEQUANTISE, 40), matmul(1), *REST] * LAYERS] * 3)


def packed_weights_that_a_kernel_of_that_name_dequantises() -> Kineto:
    packed = [[2048, 768], [16, 6144], [16, 768]]  # eight values of 4 bits in a word
    kernel = "void vllm::awq::dequantize_weights(int*, half*, int*, half*, int)"
    dequantised = Work(kernel, 40, "_C::awq_dequantize", packed, ["int", "c10::Half", "int"])
    return eager([[dequantised, matmul(1), *REST] * LAYERS] * 3)


def weights_dequantised_in_blocks_in_a_graph() -> Kineto:
    return graphed([[Work("weight_dequant_kernel", 40), matmul(1), *REST] * LAYERS] * 3)


def converted_at_first_use() -> Kineto:
    dequantised = [copied(TO_BF16, 40, (6144, 2048), FP8, BF16), scaled(30, (6144, 2048))]
    later = [matmul(1), *REST] * LAYERS
    return eager([[*dequantised * LAYERS, *later], later, later])


def activations_of_a_weights_shape() -> Kineto:
    copies = [copied(STRIDED_COPY, 25, (6144, 2048), BF16, BF16), copied(STRIDED_COPY, 25, (2048, 6144), BF16, BF16)]
    prefill = [[*copies, matmul(2048), *REST] * LAYERS] * 3  # as many tokens as o_proj is wide
    return eager(prefill, annotation="step[EXTEND bs=1 toks=2048]")


def activations_of_a_weights_size_in_a_graph() -> Kineto:
    cast = Work(TO_BF16, 40, grid=O_PROJ_BLOCKS)  # 128 tokens of 98,304 elements: all heads of 8 experts may be that
    return graphed([[cast, matmul(128), *REST] * LAYERS] * 3, annotation="step[DECODE bs=128]")


def large_casts_that_no_gemm_follows() -> Kineto:
    cast = Work(TO_BF16, 40, grid=O_PROJ_BLOCKS)
    return graphed([[cast, *REST, matmul(1)] * LAYERS] * 3)


def multiplications_of_a_weights_size_alone() -> Kineto:
    return graphed([[Work(SCALE, 30, grid=O_PROJ_BLOCKS), matmul(1), *REST] * LAYERS] * 3)


def keys_laid_out_for_their_product() -> Kineto:
    keys = copied(STRIDED_COPY, 25, (1, 1024, 576), BF16, BF16)
    product = Work(GEMM, 8, "aten::bmm", [[1, 8, 576], [1, 576, 1024]], [BF16, BF16])
    return eager([[keys, product, *REST] * LAYERS] * 3)


def dequantisation_of_a_prefix_from_the_cache() -> Kineto:
    return graphed([[Work("void dequantize_k_cache_kernel(void*)", 40), matmul(1), *REST] * LAYERS] * 3)


def training_that_converts_its_weights() -> Kineto:
    cast = copied(TO_BF16, 40, (6144, 2048), FLOAT, BF16)
    backward = Work("flash_bwd_kernel", 30, "autograd::engine::evaluate_function: MmBackward0")
    return eager([[cast, matmul(4096), backward, *REST] * LAYERS] * 3, annotation="ProfilerStep#1")


def small_weights_copied() -> Kineto:
    copy = copied(COPY_BF16, 1.5, (256, 1024), BF16, BF16)
    return eager([[copy, matmul(1, 256, 1024), *REST] * LAYERS] * 3)


def one_weight_of_a_long_step() -> Kineto:
    cast = copied(TO_BF16, 4, (6144, 2048), FP8, BF16)
    return eager([[cast, matmul(1), *[Work(ATTENTION, 40)] * 50]] * 3)


FIRING: list[Callable[[], Kineto]] = [
    weight_converted_and_scaled,
    expert_weights_at_a_batch_of_as_many_as_there_are_experts,
    weight_of_no_known_model_that_a_gemm_reads,
    weight_transposed,
    weight_converted_and_scaled_in_a_graph,
    dequantisation_by_a_kernel_of_that_name_in_a_graph,
    packed_weights_that_a_kernel_of_that_name_dequantises,
    weights_dequantised_in_blocks_in_a_graph,
]
QUIET: list[Callable[[], Kineto]] = [
    converted_at_first_use,
    activations_of_a_weights_shape,
    activations_of_a_weights_size_in_a_graph,
    large_casts_that_no_gemm_follows,
    multiplications_of_a_weights_size_alone,
    keys_laid_out_for_their_product,
    dequantisation_of_a_prefix_from_the_cache,
    training_that_converts_its_weights,
    small_weights_copied,
    one_weight_of_a_long_step,
]
