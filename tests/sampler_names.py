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
