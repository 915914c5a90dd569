"""Multiplications held against what good kernels take: thresholds and figures worked out by hand, published cases."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests import published_cases, published_collectives, published_copies, published_kernels
from tests.answers import finding, rules
from tests.decode_steps import Work, eager
from tests.examples import gemm_below_roofline as slow
from tests.examples import low_precision_slower as low
from tests.kernel_names import GEMM
from tests.kineto import Kineto
from tests.stages import diagnosed

from stepscope import diagnose, hardware
from stepscope.document import Confidence
from stepscope.hardware import Figure, Gpu
from stepscope.pipeline.detect.multiplications import made_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.document import Diagnosis

BELOW, SLOWER = "gemm-below-roofline", "low-precision-slower"
WEIGHT_BYTES = 2 * (6144 * 2048 + 6144 + 2048)
"""Of `matmul`: the weight, a row and the product."""


def test_the_finding_has_the_calls_excess_rate_and_blocks() -> None:
    """25.18 MB take 5.86 µs at 4,300 GB/s; a good kernel has 0.8 of that rate and 3 µs: 10.32."""
    found = finding(diagnosed(slow.weight_read_by_few_blocks()), BELOW)
    good = WEIGHT_BYTES / 4.3e6 / 0.8 + 3
    assert found.time_us_per_step == pytest.approx(10 * (30 - good), rel=1e-3)
    assert found.evidence.bytes_per_call == WEIGHT_BYTES
    assert found.evidence.achieved_gb_per_s == pytest.approx(WEIGHT_BYTES / 30e3)
    assert found.evidence.bandwidth_fraction_measured == pytest.approx(WEIGHT_BYTES / 30e3 / 4300)
    assert found.evidence.floor_us_per_step == pytest.approx(10 * WEIGHT_BYTES / 4.3e6)
    assert (found.evidence.blocks, found.evidence.multiprocessors) == (64, 132)
    assert found.evidence.tensor == "q_a_proj"
    assert found.title.endswith("its 64 blocks on 132 multiprocessors are too few to hide the memory's latency")
    assert found.confidence is Confidence.HIGH
    # ten layers of 66 µs, of which each gets 19.68 shorter
    today = 10 * 66.0
    assert found.what_if is not None
    assert found.what_if.step_us.expected == pytest.approx(today - 10 * (30 - good), rel=0.05)
    assert found.what_if.step_us.low == pytest.approx(today - 10 * (30 - WEIGHT_BYTES / 4.3e6), rel=0.05)


@pytest.mark.parametrize(("us", "fires"), [(14.3, False), (14.6, True)])
def test_bytes_must_take_two_fifths_longer_than_by_a_good_kernel(us: float, *, fires: bool) -> None:
    """1.4 · 10.32 = 14.45 µs."""
    assert (BELOW in rules(diagnosed(slow.decoding(slow.matmul(us))))) == fires


@pytest.mark.parametrize(("us", "fires"), [(240.0, False), (260.0, True)])
def test_operations_must_take_twice_as_long(us: float, *, fires: bool) -> None:
    """1,024 rows: 77.3 GFLOP take 97.8 µs at 790 TFLOPS, a good kernel 125.3."""
    trace = slow.decoding(slow.matmul(us, 1024, 6144), annotation="step[EXTEND bs=1 toks=1024]")
    assert (BELOW in rules(diagnosed(trace))) == fires


@pytest.mark.parametrize(("out", "fires"), [(180, False), (200, True)])
def test_what_needs_no_longer_than_an_empty_kernel_is_bound_by_latency(out: int, *, fires: bool) -> None:
    """180 columns are 2.22 MB, 0.518 µs, and an empty kernel takes 0.55; 200 are 2.47 MB, 0.575."""
    assert (BELOW in rules(diagnosed(slow.decoding(*[slow.matmul(20.0, out=out)] * 2)))) == fires


@pytest.mark.parametrize(("us", "fires"), [(5.8, False), (5.95, True)])
def test_what_needs_little_must_take_half_as_long_again(us: float, *, fires: bool) -> None:
    """256 columns are 3.16 MB, 0.735 µs; a good kernel takes 3.92, and 1.5 times that is 5.88."""
    assert (BELOW in rules(diagnosed(slow.decoding(*[slow.matmul(us, out=256)] * 2)))) == fires


def test_as_many_blocks_as_multiprocessors_are_no_sign() -> None:
    for blocks, told in ((132, False), (131, True), (198, True), (199, False)):
        found = finding(diagnosed(slow.decoding(slow.matmul(30.0, blocks=blocks))), BELOW)
        assert ("too few" in found.title) == told


def test_without_the_number_of_multiprocessors_blocks_are_no_sign() -> None:
    trace = slow.weight_read_by_few_blocks()
    trace.header["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200", "numSms": "many"}]
    found = finding(diagnosed(trace), BELOW)
    assert "too few" not in found.title
    assert found.evidence.multiprocessors is None


def test_a_split_whose_sum_takes_longer_is_told() -> None:
    found = finding(diagnosed(slow.split_of_which_the_sum_takes_longer()), BELOW)
    assert found.title.endswith("adding up the parts of K takes longer than multiplying")
    assert found.evidence.us_per_call == pytest.approx(32.0)
    # two kernels of the op, and a good split takes 7.32 + 6 µs
    assert found.time_us_per_step == pytest.approx(10 * (32 - WEIGHT_BYTES / 4.3e6 / 0.8 - 6), rel=1e-3)


def test_odd_sizes_are_told() -> None:
    found = finding(diagnosed(slow.decoding(slow.matmul(30.0, out=2050, blocks=400))), BELOW)
    assert found.title.endswith("2,050 is no multiple of 8, so that rows are read in small pieces")


def test_a_kernel_made_for_an_older_gpu_is_told() -> None:
    old = slow.matmul(30.0)._replace(kernel="void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm>(Params)")
    found = finding(diagnosed(slow.decoding(old)), BELOW)
    assert "Its name tells a kernel made for GPUs of compute capability 8; this one has 9." in found.notes


def test_a_gpu_of_which_only_the_datasheet_is_known_is_judged_with_less_confidence() -> None:
    """3,350 GB/s, of which good kernels are held to reach 0.6: 7.5 µs and 3."""
    found = finding(diagnosed(slow.weight_read_by_few_blocks(), gpu="h100"), BELOW)
    assert found.confidence is Confidence.MEDIUM
    assert found.time_us_per_step == pytest.approx(10 * (30 - WEIGHT_BYTES / 3.35e6 / 0.6 - 3), rel=1e-3)


def test_a_gpu_whose_rates_are_not_known_is_not_judged() -> None:
    trace = slow.weight_read_by_few_blocks()
    trace.header["deviceProperties"] = [slow.H200 | {"name": "NVIDIA H999"}]
    assert BELOW not in rules(diagnosed(trace))


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        (GEMM, 9),
        ("nvjet_sm100_qqtst_128x64_128x8_2x2_2cta_v_bz_TNT", 10),
        ("sm120_fp8_gemm", 12),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", 8),
        ("void cutlass::Kernel<cutlass_70_wmma_tensorop_f16_s161616gemm_f16_32x32>", 7),
        ("void wmma_gemm<half>", 8),
        (low.MARLIN, 8),
        ("fused_moe_kernel", None),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x256_MI16x16x1_SN", None),
    ],
)
def test_the_generation_that_a_kernel_was_made_for(name: str, generation: int | None) -> None:
    assert made_for(name) == generation


def test_marlin_on_a_prompt_is_held_against_16_bits() -> None:
    """4096 · 4096 · 14,336 · 2 operations at 790 TFLOPS, of which good kernels reach 0.8, and 3 µs."""
    found = finding(diagnosed(low.marlin_on_a_prompt()), SLOWER)
    flops = 2 * 4096 * 4096 * 14_336
    assert found.time_us_per_step == pytest.approx(10 * (1200 - flops / 790e6 / 0.8 - 3), rel=1e-3)
    assert found.evidence.input_shape == [14_336, 4096]
    assert found.evidence.achieved_gb_per_s is None
    assert found.evidence.achieved_tflops == pytest.approx(flops / 1200e6)
    assert "Its name tells a kernel made for GPUs of compute capability 8; this one has 9." in found.notes
    assert BELOW not in rules(diagnosed(low.marlin_on_a_prompt()))


def test_one_cause_is_found_once() -> None:
    """What is slower than in 16 bits is so, and not also below the roofline of its own bits."""
    assert rules(diagnosed(low.fp8_that_multiplies_no_faster_than_half_of_16_bits())) == [SLOWER]


@pytest.mark.parametrize(("us", "fires"), [(870.0, False), (890.0, True)])
def test_it_must_take_a_seventh_longer_than_in_16_bits(us: float, *, fires: bool) -> None:
    """(608.9 / 0.8 + 3) · 1.15 = 878.7 µs."""
    assert (SLOWER in rules(diagnosed(low.steps(low.marlin(us, 4096))))) == fires


def test_phases_are_judged_apart() -> None:
    """The same weights lose on a prompt and win on a token."""
    prompts, tokens = low.steps(low.marlin(1200.0, 4096)), low.marlin_on_one_token()
    both = Kineto()
    both.header["deviceProperties"] = [slow.H200]
    both.events += prompts.events
    shift = 1 + max(event["ts"] + event["dur"] for event in prompts.events)
    for event in tokens.events:
        args = dict(event.get("args", {}))
        if "correlation" in args:
            args["correlation"] += 100_000
        both.events.append(event | {"ts": event["ts"] + shift} | ({"args": args} if args else {}))
    found = diagnosed(both)
    assert {step.phase for step in found.steps} == {"prefill", "decode"}
    assert [each.phase for each in found.findings if each.rule == SLOWER] == ["prefill"]


def test_quantised_kernels_of_unknown_sizes_are_a_question_in_prefill_only() -> None:
    asked = {row.rule for row in diagnosed(low.marlin_without_shapes()).could_not_check}
    assert SLOWER in asked
    decode = low.steps(Work(low.MARLIN, 14.0), annotation="step[DECODE bs=1]")
    assert SLOWER not in {row.rule for row in diagnosed(decode).could_not_check}


# published


def h100_pcie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the reported copy rate as `stepscope calibrate` does."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    rate = Figure(1808.0, "a copy of 536 MB from device to device, onnxruntime#32382")
    name = "NVIDIA H100 PCIe"
    hardware.keep("h100-pcie", Gpu(name, [name], memory_measured_gb_per_s=rate))


def test_a_starved_gemv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime#32382: 128 blocks on 114 multiprocessors, 6.27 µs, 15.6% of what a copy reaches."""
    h100_pcie(tmp_path, monkeypatch)
    found = finding(diagnosed(published_kernels.int4_gemv(1024, 6.27), model=None, tp=None), BELOW)
    assert found.evidence.bandwidth_fraction_measured == pytest.approx(0.156, abs=0.002)
    assert (found.evidence.blocks, found.evidence.multiprocessors) == (128, 114)
    assert "its 128 blocks on 114 multiprocessors are too few" in found.title
    # the excess, not the kernel's time: 0.98 µs of bytes at 0.8 of the rate, and 3 µs
    assert found.time_us_per_step == pytest.approx(30 * (6.27 - 0.983 / 0.8 - 3), rel=0.01)


@pytest.mark.parametrize(("n", "us"), [(200_064, 201.89), (3072, 7.01), (5120, 8.26), (8192, 13.98)])
def test_wider_gemvs_are_healthy(n: int, us: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime#32382: 25,008 blocks reach 95% of the rate; with 3.4 blocks a multiprocessor and more it is no longer
    the blocks that are told by these times alone."""
    h100_pcie(tmp_path, monkeypatch)
    assert BELOW not in rules(diagnosed(published_kernels.int4_gemv(n, us), model=None, tp=None))


@pytest.mark.parametrize("us", [23.52, 23.49])
def test_a_default_moe_config_without_effect_is_none(us: float) -> None:
    assert BELOW not in rules(diagnosed(published_kernels.default_moe_config(us)))


def test_a_split_that_costs_more_than_it_saves() -> None:
    """DeepGEMM#77: 9.2 µs a layer were gained by not splitting."""
    found = finding(diagnosed(published_kernels.split_of_a_small_projection(), model=None, tp=None), BELOW)
    assert found.title.endswith("adding up the parts of K takes longer than multiplying")
    layers = published_kernels.SPLIT_LAYERS
    reported = layers * (sum(published_kernels.SPLIT_US) - published_kernels.WHOLE_US)
    assert found.time_us_per_step == pytest.approx(reported, rel=0.10)


def attention(trace: Kineto, config: dict[str, object], tmp_path: Path) -> Diagnosis:
    told = tmp_path / "config.json"
    told.write_text(json.dumps(config))
    return diagnose([trace.save(tmp_path / "trace.json")], model=str(told), tp=1, context=1024)


def test_fp8_attention_on_a_prompt_is_slower_than_bf16_on_blackwell(tmp_path: Path) -> None:
    """flashinfer#3484: 1.2 to 1.4 times as long; 2.212 ms against 1.714."""
    model = published_kernels.NARROW_HEADS
    slower = attention(published_kernels.prompts_attention("__nv_fp8_e4m3", 2212.0), model, tmp_path)
    found = finding(slower, SLOWER)
    assert found.evidence.us_per_call == pytest.approx(1106.0)
    assert found.time_us_per_step == pytest.approx(
        4 * (2212.0 - 1714.0) / 2, rel=0.30
    )  # a good kernel is held to 909 µs
    healthy = attention(published_kernels.prompts_attention("__nv_bfloat16", 1714.0), model, tmp_path)
    assert SLOWER not in rules(healthy)


def test_fp8_attention_in_decode_is_slower_than_bf16s_bytes_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flashinfer#1753: 437 µs against 339 on an H20, told once its rate was measured; the datasheet's is not enough."""
    model, trace = published_kernels.WIDE_HEADS, published_kernels.decoding_attention("__nv_fp8_e4m3", 437.0)
    assert SLOWER not in rules(attention(trace, model, tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    rate = Figure(3_700.0, "fill: 92% of the datasheet's, as copies reach")
    hardware.keep("h20", Gpu("NVIDIA H20", ["NVIDIA H20"], memory_measured_gb_per_s=rate))
    assert SLOWER in rules(attention(trace, model, tmp_path))
    healthy = published_kernels.decoding_attention("__nv_bfloat16", 339.0)
    assert SLOWER not in rules(attention(healthy, model, tmp_path))


CASES: list[Callable[[], Kineto]] = [
    published_cases.pool_cast,
    published_cases.launched_one_by_one,
    published_cases.waits_for_copies,
    published_cases.waits_over_a_busy_queue,
    published_copies.weights_dequantised_in_every_denoising_step,
    published_copies.copies_after_each_layers_product,
    published_copies.scratch_filled_in_every_attention_layer,
]


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_other_published_cases_are_no_multiplications(build: Callable[[], Kineto]) -> None:
    assert {BELOW, SLOWER}.isdisjoint(rules(diagnosed(build())))


def test_collectives_are_no_multiplications() -> None:
    found = diagnosed(published_collectives.token_of_slow_all_reduces())
    assert {BELOW, SLOWER}.isdisjoint(rules(found))


def test_prefill_asks_nothing_where_all_sizes_are_known() -> None:
    trace = eager([[*[low.scaled(400.0, 4096)] * 2, *slow.REST] * 4] * 3, annotation=low.PROMPT)
    assert SLOWER not in {row.rule for row in diagnosed(slow.on_h200(trace)).could_not_check}
