"""Efficiencies of built traces on an H200: 4,300 GB/s measured, links of 450 GB/s, 0.55 µs for an empty kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.decode_steps import STEP, Work, copied, eager, graphed
from tests.kineto import Kineto
from tests.stages import diagnosed

if TYPE_CHECKING:
    from stepscope.document import KernelTime

MAIN = "void flashinfer::mla::hopper::BatchMLAPageAttentionHopperKernel<Traits<__nv_bfloat16, __nv_bfloat16> >"
MERGE = "void flashinfer::mla::PersistentVariableLengthMergeStatesKernel<8u, __nv_bfloat16>"
SCORES = "void deep_gemm::sm90_fp8_paged_mqa_logits<1u, 64u, 128u>"
CHOICE = "void topk_transform_decode_kernel<int>"
LAYERS = 78
"""Of GLM-5, whose rank of eight has 8 heads on a latent of 512 + 64."""
ROW, TOKEN = 576 * 2, 8 * (576 + 512) * 2
"""Bytes of a token in the cache, and of its queries and results."""


def attending(*kernels: Work, batch: int = 1, layers: int = LAYERS) -> Kineto:
    return graphed([list(kernels) * layers] * 3, annotation=f"step[DECODE bs={batch}]")


def kernels(trace: Kineto, *, model: str = "glm-5", tp: int = 8, context: int | None = 1000) -> dict[str, KernelTime]:
    return {row.kernel: row for row in diagnosed(trace, model=model, tp=tp, context=context).kernels}


def test_attention_without_an_op_is_compared_with_the_models() -> None:
    """32 requests of 1000 tokens: 8.7 µs a layer at the memory's rate."""
    row = kernels(attending(Work(MAIN, 40.0), batch=32))[MAIN]
    size = 32 * (1000 * ROW + TOKEN)
    assert row.bytes_per_op == size
    assert row.flops_per_op == 2 * 32 * 1000 * 8 * 1088
    assert row.floor_us_per_step == pytest.approx(LAYERS * size / 4.3e6)
    assert row.efficiency == pytest.approx(size / 4.3e6 / 40)
    assert row.bound == "memory"


def test_attention_of_one_request_is_bound_by_its_launch() -> None:
    """1.17 MB take 0.27 µs, an empty kernel 0.55."""
    row = kernels(attending(Work(MAIN, 19.0)))[MAIN]
    assert row.efficiency == pytest.approx(0.55 / 19)
    assert row.bound == "latency"


def test_all_kernels_of_attention_share_its_work() -> None:
    rows = kernels(attending(Work(MAIN, 30.0), Work(MERGE, 10.0), batch=32))
    least = LAYERS * 32 * (1000 * ROW + TOKEN) / 4.3e6
    assert rows[MAIN].floor_us_per_step == pytest.approx(0.75 * least)
    assert rows[MERGE].floor_us_per_step == pytest.approx(0.25 * least)
    assert rows[MAIN].efficiency == pytest.approx(rows[MERGE].efficiency)


def test_layers_with_windows_are_added_up() -> None:
    """gpt-oss-120b: 18 layers see 128 of 10,000 tokens, 18 all; 8 heads of 64 for keys and values, 64 of queries."""
    kernel = "_fwd_grouped_kernel_stage1"
    row = kernels(attending(Work(kernel, 200.0), batch=32, layers=36), model="gpt-oss-120b", tp=1, context=10_000)[
        kernel
    ]
    sizes = [32 * (tokens * 2 * 8 * 64 * 2 + 2 * 64 * 64 * 2) for tokens in (128, 10_000)]
    assert row.floor_us_per_step == pytest.approx(18 * sum(sizes) / 4.3e6)
    assert row.bytes_per_op == pytest.approx(sum(sizes) / 2)


@pytest.mark.parametrize(
    ("context", "model"),
    [(None, "glm-5"), (1000, "llama-3.1-70b")],
    ids=["live tokens not known", "fewer kernels than the model has layers"],
)
def test_attention_that_cannot_be_known_has_no_efficiency(context: int | None, model: str) -> None:
    row = kernels(attending(Work(MAIN, 19.0)), model=model, context=context)[MAIN]
    assert (row.efficiency, row.bytes_per_op, row.bound) == (None, None, None)


def test_the_sparse_index_scores_every_key_and_its_choice_is_not_judged() -> None:
    """100,000 keys of 132 B: 3.07 µs; attention itself reads the 2048 chosen."""
    trace = attending(Work(MAIN, 20.0), Work(SCORES, 30.0), Work(CHOICE, 10.0))
    rows = kernels(trace, context=100_000)
    assert rows[SCORES].floor_us_per_step == pytest.approx(LAYERS * 100_000 * 132 / 4.3e6)
    assert rows[MAIN].bytes_per_op == 2048 * ROW + TOKEN
    assert rows[CHOICE].efficiency is None


def test_a_prefill_is_judged_by_its_tokens() -> None:
    """Two prompts of 1000 tokens by Llama-3.1-8B: 500,500 pairs each, at 790 TFLOPS."""
    kernel = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128> >"
    trace = graphed([[Work(kernel, 300.0)] * 32] * 3, annotation="step[EXTEND bs=2 toks=2000]")
    row = kernels(trace, model="llama-3.1-8b", tp=1, context=None)[kernel]
    flops = 2 * (2 * 500_500) * 32 * 256
    assert row.flops_per_op == flops
    assert row.efficiency == pytest.approx(flops / 790e6 / 300)
    assert row.bound == "compute"


def test_a_kernel_faster_than_an_empty_one_is_as_fast_as_can_be() -> None:
    add = Work("add_kernel", 0.5, "aten::add", [[1, 64], [1, 64], []], ["c10::BFloat16", "c10::BFloat16", "Scalar"])
    row = kernels(eager([[add] * 4] * 3))["add_kernel"]
    assert row.efficiency == 1.0
    assert row.bound == "latency"


def test_a_gpu_of_which_no_launch_was_measured_is_compared_with_its_memory() -> None:
    trace = eager([[copied("copy_kernel", 2.0, [1, 64], "c10::BFloat16", "float")] * 4] * 3)
    (row,) = diagnosed(trace, gpu="h100").kernels
    assert row.bound == "memory"


def test_a_collective_is_compared_with_the_links() -> None:
    """16 MiB by 8 ranks: 2 · 7/8 of it at 450 GB/s, 65.2 µs after 3.65; its 32 MiB of memory would take 7.8."""
    all_reduce = Work("all_reduce_kernel", 100.0, "vllm::all_reduce", [[1024, 8192], []], ["c10::BFloat16", ""])
    row = kernels(eager([[all_reduce] * 2] * 3))["all_reduce_kernel"]
    assert row.sent_bytes_per_op == 1.75 * 2**24
    assert row.efficiency == pytest.approx((3.65 + 1.75 * 2**24 / 450e3) / 100)
    assert row.bound == "memory"


def test_a_small_collective_is_compared_with_the_latency() -> None:
    """A token's hidden state of 12,288 bytes by 8 ranks: 21.5 kB at 450 GB/s take 0.05 µs after 3.65."""
    all_reduce = Work("all_reduce_kernel", 7.4, "vllm::all_reduce", [[1, 6144], []], ["c10::BFloat16", ""])
    row = kernels(eager([[all_reduce] * 2] * 3))["all_reduce_kernel"]
    assert row.efficiency == pytest.approx((3.65 + 21_504 / 450e3) / 7.4)
    assert row.bound == "latency"


def test_a_copy_to_the_host_is_not_held_against_the_gpus_memory() -> None:
    trace = Kineto()
    for step in range(3):
        at = 10.0 + 100 * step
        trace.annotation(STEP, at - 2, 60)
        trace.call("kernel", at=at, duration=10.0)
        dims, types = [[1024], [1024], []], ["float", "float", "Scalar"]
        trace.op("aten::copy_", at + 19, 8, dims=dims, types=types)
        trace.memcpy(at + 26, 20.0, size=4096, correlation=trace.launch(at + 20, name="cudaMemcpyAsync"))
    rows = {row.kernel: row for row in diagnosed(trace).kernels}
    assert rows["Memcpy DtoH (Device -> Pinned)"].op == "aten::copy_"
    assert rows["Memcpy DtoH (Device -> Pinned)"].efficiency is None
