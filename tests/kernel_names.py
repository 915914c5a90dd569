"""Names of kernels as real traces have them, for traces that tests build."""

from __future__ import annotations


def direct_copy(target: str, *, elements_a_thread: int = 4, casting: bool = True) -> str:
    """Return the name of PyTorch's copy kernel that writes type `target`, casting or not."""
    how = "WithCast<1>" if casting else "WithoutCast"
    return (
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
        "::{lambda()#3}::operator()() const::{lambda()#12}::operator()() const::{lambda(" + target + ")#1},"
        f" std::array<char*, 2ul>, {elements_a_thread}, TrivialOffsetCalculator<1, unsigned int>,"
        f" TrivialOffsetCalculator<1, unsigned int>, at::native::memory::Load{how}, at::native::memory::Store{how} >"
    )


_VECTORIZED = "void at::native::vectorized_elementwise_kernel<4, at::native::"

TO_BF16 = direct_copy("c10::BFloat16")
TO_FLOAT = direct_copy("float")
TO_LONG = direct_copy("long")
COPY_BF16 = direct_copy("c10::BFloat16", casting=False)
BF16_FROM_FLOAT = (
    _VECTORIZED + "bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul> >"
)
FLOAT_FROM_BF16 = (
    _VECTORIZED + "bfloat16tofloat32_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1},"
    " std::array<char*, 2ul> >"
)
FP8_WRITE = (
    _VECTORIZED
    + "float8_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >"
)
STRIDED_COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
    "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const> >"
)
ADD_INT = (
    "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctorOnSelf_add<int>, std::array<char*, 2ul>, 4,"
    " TrivialOffsetCalculator<1, unsigned int>, at::native::memory::LoadWithoutCast,"
    " at::native::memory::StoreWithoutCast>"
)
GATHER = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"
GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
NORM = "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*)"
ATTENTION = "void flashinfer::mla::hopper::BatchMLAPageAttentionHopperKernel<HopperKernelTraits<false, 2u> >"
ADD = _VECTORIZED + "CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >"
