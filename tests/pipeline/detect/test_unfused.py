"""`unfused-elementwise`: what a chain is, and what is gained once it is one kernel."""

from __future__ import annotations

import pytest
from tests.answers import finding, rules
from tests.decode_steps import Work, graphed
from tests.examples.unfused_elementwise import ATTEND, LAYERS, MATMUL, ROOT_MEAN_SQUARE, norms_written_out_in_a_graph
from tests.kernel_names import NORM
from tests.plain_op_names import QUANTISE
from tests.stages import diagnosed

NORM_US, LONGEST_US = 16.0, 3.0
"""2 + 2 + 3 + 1.5 + 1.5 + 2 + 2 + 2, and the mean."""


def test_each_chain_becomes_one_kernel_as_long_as_its_longest() -> None:
    diagnosis = diagnosed(norms_written_out_in_a_graph())
    found = finding(diagnosis, "unfused-elementwise")
    assert found.evidence.calls_per_step == 8 * LAYERS
    assert found.time_us_per_step == pytest.approx((NORM_US - LONGEST_US) * LAYERS)
    assert found.what_if is not None
    today = diagnosis.steps[0].duration_us.median
    assert found.what_if.step_us.expected == pytest.approx(today - (NORM_US - LONGEST_US) * LAYERS, abs=1)
    pattern = "cast + elementwise + reduction + elementwise + elementwise + elementwise + cast + elementwise"
    assert f"The most frequent, {LAYERS} times a step: {pattern}." in found.notes


@pytest.mark.parametrize(
    ("name", "chained"), [("dequantize_block_q4_K", 2), ("gather_and_maybe_dequant_cache", 2), ("quantize_block_q8", 3)]
)
def test_what_dequantises_belongs_to_no_chain(name: str, chained: int) -> None:
    layer = [Work(NORM, 3), Work(QUANTISE, 3), Work(f"void {name}(void*)", 3), MATMUL, ATTEND, MATMUL]
    found = finding(diagnosed(graphed([layer * LAYERS] * 3)), "unfused-elementwise")
    assert f"{chained * LAYERS} in all" in found.title


@pytest.mark.parametrize(("kernels", "fires"), [(5, False), (6, True)])
def test_a_chain_has_six_kernels_or_more(kernels: int, *, fires: bool) -> None:
    trace = graphed([[*ROOT_MEAN_SQUARE[-kernels:], MATMUL, ATTEND, MATMUL] * LAYERS] * 3)
    assert ("unfused-elementwise" in rules(diagnosed(trace))) is fires


@pytest.mark.parametrize(("layers", "fires"), [(7, False), (8, True)])
def test_the_chain_repeats_as_layers_do(layers: int, *, fires: bool) -> None:
    trace = graphed([[*ROOT_MEAN_SQUARE, MATMUL, ATTEND, MATMUL] * layers] * 3)
    assert ("unfused-elementwise" in rules(diagnosed(trace))) is fires
