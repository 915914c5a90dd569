"""Published cases of slow multiplications and of kernels in fewer bits as traces; what is called fill is invented."""

from __future__ import annotations

from tests.decode_steps import STEP, Work, eager
from tests.kernel_names import ADD, ATTENTION, NORM
from tests.kineto import LAUNCH_US, Kineto

BF16, HALF, FP8, FLOAT, INT = "c10::BFloat16", "c10::Half", "c10::Float8_e4m3fn", "float", "int"
H100_PCIE = {"id": 0, "name": "NVIDIA H100 PCIe", "computeMajor": 9, "computeMinor": 0, "numSms": 114}
H200 = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
RTX = {"id": 0, "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition", "computeMajor": 12, "numSms": 188}
H20 = {"id": 0, "name": "NVIDIA H20", "computeMajor": 9, "computeMinor": 0, "numSms": 78}
FILL = (Work(NORM, 8), Work(ATTENTION, 20), Work(ADD, 8))
"""Longer than their launches, so that the GPU is the limit."""


def on(device: dict[str, object], trace: Kineto) -> Kineto:
    """Return a trace with what Kineto records of a GPU."""
    trace.header["deviceProperties"] = [device]
    return trace


INT4 = "void onnxruntime::contrib::cuda::MatMulFloatInt4Kernel<__half, 32, false>(__half*, __half const*)"


def int4_gemv(n: int, us: float) -> Kineto:
    """onnxruntime#32382: K 3072, N as told, 8 columns a block, a scale for 32 values; 30 calls and all else are fill.

    A GPTQ product stands for ONNX Runtime's, which torch does not record.
    """
    dims = [[1, 3072], [3072 // 8, n], [3072 // 32, n], [0], [0], [0], [0]]
    types = [HALF, INT, HALF, INT, INT, INT, INT]
    gemv = Work(INT4, us, "_C::gptq_marlin_gemm", dims, types, (n // 8, 1, 1))
    return on(H100_PCIE, eager([[gemv, *FILL] * 30] * 3))


def default_moe_config(us: float) -> Kineto:
    """vllm#44688: fused experts of one token with the default config (23.52 µs) and a tuned one (23.49); sizes fill."""
    shapes = [[1, 5120], [64, 512, 5120], [64, 5120, 256], [1, 8], [1, 8]]
    fused = Work(
        "fused_moe_kernel", us, "vllm::inplace_fused_experts", shapes, [BF16, BF16, BF16, FLOAT, INT], (128, 1, 1)
    )
    return on(H200, eager([[fused, *FILL] * 30] * 3))


SPLIT_LAYERS, SPLIT_US, WHOLE_US = 43, (10.2, 12.2), 13.2
"""DeepGEMM#77 of SGLang's fork: what a projection takes split, its parts' sum included, and what it takes whole. How
22.4 µs are shared out is fill: that the sum takes longer is what was reported."""


def split_of_a_small_projection() -> Kineto:
    """Four rows, K 1024, N 8192 in FP8, in each of 43 layers."""
    trace, at = on(RTX, Kineto()), 10.0
    dims = [[4, 1024], [4, 8], [8192, 1024], [64, 8], [4, 8192]]
    for _ in range(3):
        begin = at
        for _ in range(SPLIT_LAYERS):
            trace.op("sglang::deep_gemm_fp8_fp8_bf16_nt", at, 13, dims=dims, types=[FP8, FLOAT, FP8, FLOAT, BF16])
            for kernel, us in zip(("sm120_fp8_gemm_1d1d_impl", "sm120_split_k_reduce_impl"), SPLIT_US, strict=True):
                at += 1
                trace.call(kernel, at=at, duration=us, grid=(512, 1, 1))
                at += LAUNCH_US
            trace.call(ATTENTION, at=at + 4, duration=30)
            at += 10
        trace.annotation(STEP, begin - 1, at - begin)
        at += 2
    return trace


FA2 = (
    "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)0, 128u, {}> >"
)
WIDE_HEADS = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16_384,
    "head_dim": 128,
    "num_attention_heads": 128,
    "num_key_value_heads": 16,
    "num_hidden_layers": 4,
    "intermediate_size": 53_248,
    "vocab_size": 128_256,
}
"""flashinfer#1753: 128 heads of queries, 16 of keys and values, 128 wide; all else is fill."""
NARROW_HEADS = WIDE_HEADS | {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2}
"""flashinfer#3484: 16 heads of queries, 2 of keys and values."""


def decoding_attention(kv: str, us: float) -> Kineto:
    """flashinfer#1753: 128 requests of 1,024 tokens on an H20."""
    return on(H20, eager([[Work(FA2.format(kv), us), Work(ADD, 20)] * 4] * 3, annotation="step[DECODE bs=128]"))


def prompts_attention(kv: str, us: float) -> Kineto:
    """flashinfer#3484: a prompt of 8,192 tokens on an RTX PRO 6000; measured without a mask, so half of it with one."""
    return on(
        RTX, eager([[Work(FA2.format(kv), us / 2), Work(ADD, 20)] * 4] * 3, annotation="step[EXTEND bs=1 toks=8192]")
    )
