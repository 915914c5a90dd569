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

_AT = "void at::native::"
_ELEMENTS = "at::TensorIteratorBase&"
_GEMM_UNIVERSAL = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<"
_FLASH3 = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2"
)

OF_CLASS: dict[str, tuple[str, ...]] = {
    "attention": (
        ATTENTION,
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u, 4u, 8u, 16u, 4u>",
        "void flashinfer::BatchPrefillWithRaggedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)1> >",
        "void flashinfer::PersistentVariableLengthMergeStatesKernel<8u, 16u, 4u, __nv_bfloat16, __nv_bfloat16, int>",
        "void flashinfer::PrefillWithKVCacheKernel<flashinfer::CollectiveMainloop<Traits> >",
        f"{_FLASH3}, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, 512, cutlass::bfloat16_t> > > >(flash::Params)",
        "void flash::flash_fwd_splitkv_kernel<flash::Flash_fwd_kernel_traits<128, 64, 128, 4, false, false>, false>",
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<576, 16, 64, 8>, 4, 1, true>",
        "void sm90::flash_fwd_splitkv_mla_kernel<sm90::Traits<cutlass::bfloat16_t> >(sm90::DecodingParams)",
        "void smxx::get_mla_metadata_kernel(smxx::GetDecodingMetadataParams)",
        "fmhaSm100fKernel_QkvE4m3OBfloat16H576HeadDimPerCtaV512HeadDimKeepsAbForGen",
        "void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaMlaKernelTmaWarpspecialized<cute::tuple<int> > >",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3i_128x128x128_cga1x1x1_kernel0_0",
        "mla_a8w8_qh16_qseqlen1_gqaratio16_ps",
        "_ZN5aiter41fmha_fwd_hd128_bf16_causal_rtna_groupE",
        "void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16, __hip_bfloat16, 128, 128, 256, 3, false>",
        "void vllm::paged_attention_v2_kernel<unsigned short, unsigned short, 128, 16, 128>",
        "void vllm::merge_attn_states_kernel<__nv_bfloat16, 128u>(__nv_bfloat16*, float*, __nv_bfloat16 const*)",
        "kernel_unified_attention_3d",
        "_fwd_kernel",
        "_fwd_grouped_kernel_stage1",
        "_fwd_kernel_stage2",
        "attn_fwd",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4> >",
        "void deep_gemm::smxx_paged_mqa_logits_metadata<32u, 256u, 132u>(unsigned int, unsigned int, unsigned int*)",
        "void (anonymous namespace)::topk_transform_decode_kernel((anonymous namespace)::TopKParams, int const*)",
        "void vllm::topKPerRowDecode<1024, true>(float const*, int const*, int*, int, int, int, int)",
        "_causal_conv1d_update_kernel",
        "void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128, 4, true, c10::BFloat16> >(ConvParamsBase)",
        "_chunk_scan_fwd_kernel",
        "fused_recurrent_gated_delta_rule_fwd_kernel",
        "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128, 16, 1, true> >(SSMParamsBase)",
    ),
    "gemm": (
        GEMM,
        "nvjet_sm100_qqtst_128x64_128x8_2x2_2cta_v_bz_Avec16UE4M3_Bvec16UE4M3_TNT",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel__5x_cublas",
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>",
        "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true, cublasGemvTensorStridedBatched<float const> >",
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, float, float, false>",
        "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const> > >",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_tn_align8>(Params)",
        f"{_GEMM_UNIVERSAL}cute::tuple<int, int, int, int>, cutlass::gemm::collective::CollectiveMma<> > >",
        "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEENS1_10collectiveEEEEEvT_",
        "void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x128_32x4_nhwc_align4>(Params)",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x256_MI16x16x1_SN",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 2112u, 7168u, 1u, (deep_gemm::GemmType)0>",
        "_w8a8_block_fp8_matmul",
        "void marlin::Marlin<__nv_bfloat16, 1125899906843648l, 256, 1, 8, 8, false, 4, 8, false>(int4 const*)",
        "void machete::machete_mm_kernel<cutlass::half_t>(int)",
        "void awq_gemm_forward_4bit_cuda_m16nXk32<64>(int, int, c10::Half*, int*, c10::Half*, int*)",
        "gemm_forward_4bit_cuda_m16n128k32",
        "void vllm::gptq::gemm_half_q_half_gptq_4bit_kernel<true, 1>(c10::Half const*, unsigned int const*)",
        "void mul_mat_vec_q<c10::Half, 256, 32, block_q4_K, 2, &vec_dot_q4_K_q8_1>(void const*, void const*)",
        "void mul_mat_q4_0<c10::BFloat16, false>(void const*, void const*, c10::BFloat16*, int, int, int, int, int)",
        "void wvSplitK_hf_sml_<__hip_bfloat16, 64, 2, 16, 8, 1, 1>(int, int, __hip_bfloat16 const*)",
        "void LLGemm1_kernel<c10::BFloat16, 4>(c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16*, int)",
        "_gemm_a8w8_blockscale_kernel",
        "triton_tem_fused_mm_0",
        "cudnn_infer_volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "igemm_fwd_gtcx2_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2",
        "miopenSp3AsmConv_v30_3_1_gfx9_fp16_dot2_edc_stride1",
        "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int, int, int)",
        "void fused_a_gemm_kernel<1, 2112, 7168, 16, 256, 16>(__nv_bfloat16 const*, __nv_bfloat16 const*)",
    ),
    "moe-gemm": (
        "fused_moe_kernel",
        "fused_moe_kernel_gptq_awq",
        "void marlin_moe_wna16::Marlin<__nv_bfloat16, 1125899906843648l, 256, 1, 8, 8, false, 4>(int4 const*)",
        "fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_ps_32x256",
        "void ck::kernel_moe_mxgemm<ck::GridwiseMoeGemmMX_BPreshuffle<ck::tensor_layout::gemm::RowMajor> >",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu",
        f"{_GEMM_UNIVERSAL}cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int> >, CollectiveMma<> > >",
        "void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 64u, 128u, 128u, 32u, 6u, (deep_gemm::GemmType)2>",
        "bmm_E4m3_E2m1E2m1_Fp32_t128x16x256u2_s7_et128x16_m128x16x64_cga1x1x1_16dp256b_transOut_dynBatch_sm100f",
        "moe_q4_K",
        "grouped_gemm_triton_kernel",
        "batched_triton_kernel",
    ),
    "routing": (
        "void moe_align_block_size_kernel<int>(int const*, int*, int*, int*, int, int, unsigned long, int*, bool)",
        "void vllm::moe::topkGatingSoftmax<8, 256, 4, 16, 32, int>(float const*, bool const*, float*, int, int*)",
        "void moe_fused_gate_kernel<float, float, 1, 8, 256, 32, 8, 8>(void*, void*, float*, int*, long)",
        "void (anonymous namespace)::grouped_topk_single_group_kernel<128>(float const*, float*, int*)",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 1, false>",
        "void moe::dev::routing::routingDeepSeek::routingMainKernel<KernelParams<> >",
        "void tensorrt_llm::kernels::cutlass_kernels::expandInputRowsKernel<__nv_bfloat16, __nv_bfloat16>",
        "void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<__nv_bfloat16, __nv_bfloat16>",
        "void moe::dev::finalize::finalizeKernel<moe::dev::finalize::KernelParams<cutlass::bfloat16_t> >",
        "void vllm::moe::moe_sum_kernel<c10::BFloat16, 8>(c10::BFloat16*, c10::BFloat16 const*, int)",
        "_fwd_kernel_ep_scatter_1",
        "_fwd_kernel_ep_gather",
        "_ZN7ck_tile6kentryILi4ENS_16MoeSortingKernelINS_19MoeSortingProblemExIif",
        "_combined_routing_compute",
        "deepep_permute_triton_kernel",
        "void compute_problem_sizes<false>(int const*, int*, int*, int*, int, int)",
    ),
    "norm": (
        NORM,
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*)",
        "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, int, c10::BFloat16*)",
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1ELb0ELb1ELi1EEEvPT0_PT_",
        "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassE",
        "_layer_norm_fwd_1pass_kernel",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct, float const*)",
        "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float, float>(long, float, float const*)",
        "triton_red_fused_add_mean_mul_pow_rsqrt_0",
    ),
    "rope": (
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*)",
        "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheEnhancedKernel<false, 64u, 8u, 8u, __nv_bfloat16, long>",
        "void flashinfer::RopeQuantizeKernel<true, 8u, 16u, __nv_bfloat16, int, __nv_fp8_e4m3>",
        "void tensorrt_llm::kernels::fusedQKNormRopeKernel<128, false>(__nv_bfloat16*, int, int, int, float)",
        "_fused_qk_rope_cat_and_cache_mla_kernel",
    ),
    "activation": (
        "void (anonymous namespace)::act_and_mul_kernel<__nv_bfloat16, ((anonymous namespace)::ActivationKind)0, true>",
        "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_EXadL_Z4siluIS2_ES3_S5_EEEEvPS3_PS4_i",
        "_silu_and_mul_post_quant_kernel",
        "void tensorrt_llm::kernels::cutlass_kernels::doActivationKernel<__nv_fp8_e4m3, __nv_bfloat16>(int)",
        f"{_AT}vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl({_ELEMENTS})::{{lambda(float)#1}} >",
        "triton_poi_fused_mul_silu_0",
        "_silu_mul_fp8_quant_deep_gemm",
    ),
    "quantise": (
        "void per_token_group_quant_8bit_kernel<__nv_bfloat16, __nv_fp8_e4m3, true, false, float>(void const*)",
        "void vllm::scaled_fp8_quant_kernel<c10::BFloat16, c10::Float8_e4m3fn>(c10::Float8_e4m3fn*)",
        "void vllm::dynamic_per_token_scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>",
        "void cvt_fp16_to_fp4<__nv_bfloat16, false>(int, int, __nv_bfloat16 const*, float const*, unsigned int*)",
        "void tensorrt_llm::kernels::quantize_with_block_size<(tensorrt_llm::BlockScaleQuantizationType)0>",
        "_per_token_group_quant_fp8",
        "_static_quant_fp8",
        "void dequantize_block_q4_K<c10::Half>(void const*, c10::Half*)",
        "void quantize_q8_1<c10::BFloat16>(c10::BFloat16 const*, void*, int, int)",
        "void vllm::awq::dequantize_weights(int*, c10::Half*, int*, c10::Half*, int)",
        "void vllm::gptq::reconstruct_exllama_4bit_kernel(unsigned int const*, int const*, unsigned int const*)",
        "_dequantize_k_cache_fast_kernel",
        "_act_quant_kernel",
        "_dynamic_mxfp4_quant_kernel",
    ),
    "cast": (TO_BF16, TO_FLOAT, TO_LONG, BF16_FROM_FLOAT, FLOAT_FROM_BF16, FP8_WRITE, "triton_poi_fused__to_copy_0"),
    "copy": (
        COPY_BF16,
        STRIDED_COPY,
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<at::native::OpaqueType<2u>, unsigned int>",
        "__amd_rocclr_copyBuffer",
        "void concat_mla_k_kernel(__nv_bfloat16*, __nv_bfloat16 const*, __nv_bfloat16 const*, int, long, int)",
        "void marlin::gptq_marlin_repack_kernel<256, 4, true>(unsigned int const*, unsigned int const*, unsigned int*)",
        "void deep_gemm::transpose_and_pack_fp32_into_ue8m0<512u, 48u, 56u>(float*, unsigned int*, unsigned int)",
        "batched_transpose_64x64_pack_4x4_ediv_4x4_half",
        "triton_poi_fused_clone_4",
    ),
    "fill": (
        f"{_AT}vectorized_elementwise_kernel<8, at::native::FillFunctor<c10::BFloat16>, std::array<char*, 1ul> >",
        "__amd_rocclr_fillBufferAligned",
        "void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__uninitialized_fill::functor<int> >",
        "triton_poi_fused_zeros_1",
    ),
    "gather": (
        GATHER,
        "set_mla_kv_buffer_kernel",
        "create_flashinfer_kv_indices_triton",
        "write_req_to_token_pool_triton",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>",
        "void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, unsigned char, (vllm::Fp8KVCacheDataType)1>",
        "void (anonymous namespace)::store_kvcache<2048l, 4, false, long>((anonymous namespace)::StoreKVCacheParams)",
        "void vllm::cp_gather_indexer_k_quant_cache_kernel<4>(char const*, char*, char*, int const*)",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2>",
        "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<index_put_kernel_impl> >",
        "void split_embedding_codegen_forward_unweighted_kernel<c10::Half, c10::Half, float, false>(fbgemm_gpu::P)",
        "void compute_cuda_kernel<long>(long*, long*, long*, long, long)",
    ),
    "elementwise": (
        ADD,
        ADD_INT,
        "triton_poi_fused__unsafe_view_add_3",
        "triton_poi_fused_convolution_add_2",
        f"{_AT}elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::neg_kernel_cuda({_ELEMENTS})> >",
        "void (anonymous namespace)::resolve_future_token_ids_kernel<long>(long*, long const*, unsigned long)",
        "void fast_hadamard_transform_kernel<fast_hadamard_transform_kernel_traits<32, 7, c10::BFloat16> >",
        f"{_AT}vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::masked_fill_kernel({_ELEMENTS}) >",
    ),
    "reduction": (
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, SoftMaxForwardEpilogue>",
        f"{_AT}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>, unsigned int> >",
        "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800, false, long>",
        "void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::AgentScanPolicy<128, 15, long> >",
        "void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float> >(float*, float const*)",
        "triton_per_fused__softmax_1",
    ),
    "sampling": (
        f"{_AT}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long> >",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u, (cub::BlockScanAlgorithm)2, 4u, true>",
        "void flashinfer::sampling::TopPRenormProbKernel<1024u, (cub::BlockReduceAlgorithm)2, 4u, float>",
        "void flashinfer::sampling::OnlineSoftmaxFusedKernel<1024u, 4u, float, true>",
        "void at::native::(anonymous namespace)::sampleMultinomialOnce<float, float>(long*, long, int, float*)",
        "void vllm::apply_repetition_penalties_kernel<c10::BFloat16>(c10::BFloat16*, bool const*, bool const*)",
        "apply_token_bitmask_inplace_kernel",
        "rejection_greedy_sample_kernel",
    ),
    "collective": (
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllReduce_AGxLLMC_R_sum_bf16(ncclSymkDevWorkArgs4K)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
        "void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*, aiter::RankSignals)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(AllReduceFusionPattern)1>",
        "void c10d::(anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "void c10d::(anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8, false>(c10::BFloat16**)",
        "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__hip_bfloat16> >",
        "void deep_ep::internode_ll::combine<true, 7168, 9, 9>(void*, void*, int*, void*)",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*, long*, float*, int*)",
        "void nvshmemi_transfer_rma_nbi<float>(int)",
        "void tensorrt_llm::kernels::mnnvl::oneshotAllreduceFusionKernel<8, __nv_bfloat16, false>",
    ),
}
"""Real names by their class, as a person would say it: of engines, libraries and compilers that serve models."""
