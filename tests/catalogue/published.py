"""Published cases as built traces: what was reported, measured, or retracted."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from stepscope.hardware import Figure, Gpu
from tests import published_cases as cases_of
from tests import published_collectives as collectives
from tests import published_copies as copies
from tests import published_kernels as kernels
from tests import published_waits as waits
from tests.catalogue.case import Case, Origin

if TYPE_CHECKING:
    from collections.abc import Iterator

DEEPSEEK: dict[str, Any] = {"model": "deepseek-v3", "tp": 8, "context": 1000, "gpu": "h200"}
H100_PCIE = Gpu(
    "NVIDIA H100 PCIe",
    ["NVIDIA H100 PCIe"],
    memory_measured_gb_per_s=Figure(1808.0, "a copy of 536 MB from device to device, onnxruntime#32382"),
)
H20 = Gpu(
    "NVIDIA H20",
    ["NVIDIA H20"],
    memory_measured_gb_per_s=Figure(3_700.0, "fill: 92% of the datasheet's, as copies reach"),
)
WIDE: dict[str, Any] = {"model": kernels.WIDE_HEADS, "tp": 1, "context": 1024}
NARROW: dict[str, Any] = {"model": kernels.NARROW_HEADS, "tp": 1, "context": 1024}
GEMV: dict[str, Any] = {"measured": ("h100-pcie", H100_PCIE)}
FP8, BF16 = "__nv_fp8_e4m3", "__nv_bfloat16"
BELOW, SLOWER = "gemm-below-roofline", "low-precision-slower"


def cases() -> Iterator[Case]:
    """Yield them: those in which something is to be found, and the negative controls."""
    yield _case(
        "sglang#35291", cases_of.pool_cast, must={"kv-pool-cast": "43.7% of the step; 17.68 ms without"}, **DEEPSEEK
    )
    yield _case("sglang#35291, pool of 16 bits", cases_of.pool_of_16_bits, **DEEPSEEK)
    yield _case(
        "sglang#34305",
        copies.weights_dequantised_in_every_denoising_step,
        must={"weight-rematerialised": "2,639 casts of weights, 13% of the GPU's time"},
    )
    yield _case(
        "sglang#24405",
        copies.copies_after_each_layers_product,
        must={"layout-copy": "62 copies, 287 µs of 20 ms"},
        slight=frozenset({"layout-copy"}),
    )
    yield _case(
        "sglang#33063",
        copies.scratch_filled_in_every_attention_layer,
        must={"fill-in-step": "three fills in each attention layer"},
    )
    yield _case(
        "sglang#32575",
        cases_of.waits_for_copies,
        must={"hidden-sync": "33.1 ms of 1,678 are idle after 12 waits: 1.97%"},
        slight=frozenset({"hidden-sync"}),
    )
    yield _case(
        "sglang-omni#2182",
        cases_of.launched_one_by_one,
        must={"launch-bound": "busy for 5.77 of 19.96 ms; 6.43 ms in a graph"},
    )
    yield _case("sglang-omni#2182, in a graph", cases_of.replayed_in_one_launch)
    yield _case("sglang-omni#2182, Whisper", cases_of.launched_while_the_gpu_is_busy)
    for ranks in (1, 4):
        yield _case(
            f"sglang-V100#2, {ranks} of 4 ranks",
            partial(collectives.token_of_slow_all_reduces, ranks=ranks),
            must={"slow-collective": "20.3 µs where 5.0 are known"},
        )
    yield from _multiplications()
    yield from _low_precision()
    yield _case("vllm#50847, neutral", copies.copies_whose_removal_was_neutral)
    yield _case("atlas#246, busy syncs", cases_of.waits_over_a_busy_queue)
    yield _case("sglang-omni#572, neutral", waits.three_reads_after_each_replay)
    yield _case("imp#1654, the token's read", waits.token_read_into_pageable_memory)
    yield _case("colibri#431, retracted", waits.calls_beside_experts_on_the_cpu)


def _multiplications() -> Iterator[Case]:
    yield _case(
        "onnxruntime#32382, N 1024",
        partial(kernels.int4_gemv, 1024, 6.27),
        must={BELOW: "15.6% of what a copy reaches, 128 blocks on 114 multiprocessors"},
        **GEMV,
    )
    for n, us in ((200_064, 201.89), (3072, 7.01), (5120, 8.26), (8192, 13.98)):
        yield _case(f"onnxruntime#32382, N {n}", partial(kernels.int4_gemv, n, us), **GEMV)
    yield _case(
        "DeepGEMM#77",
        kernels.split_of_a_small_projection,
        must={BELOW: "22.4 µs split, 13.2 whole"},
    )
    for us in (23.52, 23.49):
        yield _case(f"vllm#44688, {us} µs", partial(kernels.default_moe_config, us))


def _low_precision() -> Iterator[Case]:
    yield _case(
        "flashinfer#3484, FP8",
        partial(kernels.prompts_attention, FP8, 2212.0),
        must={SLOWER: "2.212 ms, and 1.714 in BF16"},
        **NARROW,
    )
    yield _case("flashinfer#3484, BF16", partial(kernels.prompts_attention, BF16, 1714.0), **NARROW)
    slower = {SLOWER: "437 µs, and 339 in BF16"}
    fp8, bf16 = (partial(kernels.decoding_attention, *told) for told in ((FP8, 437.0), (BF16, 339.0)))
    yield _case("flashinfer#1753, FP8, rate measured", fp8, must=slower, measured=("h20", H20), **WIDE)
    yield _case("flashinfer#1753, BF16, rate measured", bf16, measured=("h20", H20), **WIDE)
    yield _case("flashinfer#1753, FP8, datasheet's rate", fp8, must=slower, **WIDE)


def _case(name: str, build: Any, **told: Any) -> Case:
    return Case(name=f"published, {name}", origin=Origin.PUBLISHED, traces=build, **told)
