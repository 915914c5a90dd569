"""Names of the kernels of samplers and decomposed norms as real traces have them, for traces that tests build."""

from __future__ import annotations

_VECTORIZED = "void at::native::vectorized_elementwise_kernel<4, at::native::"

SOFTMAX = (
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float,"
    " at::native::(anonymous namespace)::SoftMaxForwardEpilogue>(float*, float const*, int)"
)
WIDE_SORT = (
    "void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<at_cuda_detail::cub::detail::radix"
    "::policy_hub<float, at::cuda::cub::detail::OpaqueType<8>, unsigned long long>::Policy1000>"
)
NARROW_SORT = (
    "void at::native::radixSortKVInPlace<-2, -1, 32, 4, long, long, unsigned int>(at::cuda::detail::TensorInfo<long>)"
)
SCAN = "void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float> >(float*, float const*, unsigned int)"
MASK = _VECTORIZED + "(anonymous namespace)::masked_fill_kernel(at::TensorIterator&)>, std::array<char*, 3ul> >"
SCATTER = (
    "void at::native::_scatter_gather_elementwise_kernel<128, 8, at::native::_cuda_scatter_gather_internal_kernel>"
)
ARGMAX = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int,"
    " long, 4, 4> >"
)
TOP_K = "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(at::cuda::detail::TensorInfo<float const>)"
ONE_KERNEL = "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u, (cub::BlockScanAlgorithm)2, 4u, true>"
SQUARE = _VECTORIZED + "(anonymous namespace)::pow_tensor_scalar_kernel_impl<float, float>, std::array<char*, 2ul> >"
MEAN = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float> > >"
ADD_FLOAT = _VECTORIZED + "CUDAFunctorOnSelf_add<float>, std::array<char*, 2ul> >"
RSQRT = _VECTORIZED + "rsqrt_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul> >"
MULTIPLY = _VECTORIZED + "BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> > >"
NEGATE = _VECTORIZED + "neg_kernel_cuda(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >"
CONCATENATE = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<2u> >"
QUANTISE = "void vllm::dynamic_per_token_scaled_fp8_quant_kernel<c10::BFloat16, c10::Float8_e4m3fn>"
BACKWARD = _VECTORIZED + "(anonymous namespace)::silu_backward_kernel>, std::array<char*, 3ul> >"
ROPE = "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*)"
