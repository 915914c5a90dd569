"""Published cases of copies, casts and fills as traces; what came after stands in the tests only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.decode_steps import BETWEEN_GRAPHS_US, Work, copied, eager, graphed
from tests.examples.fill_in_step import FILL
from tests.examples.weight_rematerialised import SCALE
from tests.kernel_names import ATTENTION, GEMM, STRIDED_COPY, TO_BF16

if TYPE_CHECKING:
    from tests.kineto import Kineto

FP8, BF16 = "c10::Float8_e4m3fn", "c10::BFloat16"
DEQUANTISED, DENOISE_US = (528, 528, 528, 528, 527), 1_420_000.0
"""sglang#34305: casts of each of the five steps, 2,639 in all, and the GPU's time in all."""
CAST_US, SCALE_US = 186_000 / 2_639, 31.0
"""The casts' time is reported; the multiplications' is not."""


def weights_dequantised_in_every_denoising_step() -> Kineto:
    """sglang#34305: each linear of a diffusion model casts its FP8 weight, scales it and multiplies; GEMMs fill."""
    rows, width = 4096, 4608
    gemm_us = (DENOISE_US / 5 - 528 * (CAST_US + SCALE_US)) / 528
    linear = [
        copied(TO_BF16, CAST_US, (width, width), FP8, BF16),
        Work(SCALE, SCALE_US, "aten::mul", [[width, width], [width, 1]], [BF16, BF16]),
        Work(GEMM, gemm_us, "aten::mm", [[rows, width], [width, width]], [BF16, BF16]),
    ]
    return eager([linear * count for count in DEQUANTISED], annotation="ProfilerStep#1")


COPIES, COPY_US, STEP_US = 62, 4.63, 20_000.0
"""sglang#24405; the step is filled with other work."""


def copies_after_each_layers_product() -> Kineto:
    """sglang#24405: the product by head is copied for the projection after it, 62 times in a step of 60 layers."""
    other = (STEP_US - BETWEEN_GRAPHS_US - COPIES * COPY_US) / (2 * COPIES)
    layer = [Work(GEMM, other), Work(STRIDED_COPY, COPY_US, grid=(16, 1, 1)), Work(ATTENTION, other)]
    return graphed([layer * COPIES] * 4, annotation="step[DECODE bs=4]")


SCRATCH_LAYERS, SCRATCH_US, SCRATCH_STEP_US = 36, 1.2, 6_000.0
"""sglang#33063: three fills a layer, of 4, 4 and about 600 bytes. How many layers, and all times, are invented."""


def scratch_filled_in_every_attention_layer() -> Kineto:
    """sglang#33063: two scales of 1 and a buffer of counters are made anew in each layer, and captured in the graph."""
    between = 3 * SCRATCH_LAYERS * SCRATCH_US + BETWEEN_GRAPHS_US
    other = (SCRATCH_STEP_US - between) / (2 * SCRATCH_LAYERS)
    fills = [Work(FILL, SCRATCH_US)] * 3
    return graphed([[Work(GEMM, other), *fills, Work(ATTENTION, other)] * SCRATCH_LAYERS] * 4)


KIMI_LAYERS, KIMI_COPY_US, KIMI_STEP_US = 93, 2.5, 25_530.0
"""vllm#50847 and #50592: copies a step, and a step; what a copy takes is invented."""


def copies_whose_removal_was_neutral() -> Kineto:
    """vllm#50847: each layer copies its projection's result; 25.53 ms with them and 25.75 without some of them."""
    other = (KIMI_STEP_US - BETWEEN_GRAPHS_US - KIMI_LAYERS * KIMI_COPY_US) / (2 * KIMI_LAYERS)
    layer = [Work(ATTENTION, other), Work(GEMM, other), Work(STRIDED_COPY, KIMI_COPY_US, grid=(56, 1, 1))]
    return graphed([layer * KIMI_LAYERS] * 4, annotation="step[DECODE bs=4]")
