"""The way from the floor to steps whose kernels a built trace names: each moment counts once, and all adds up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.decode_steps import BETWEEN_GRAPHS_US, Work, graphed
from tests.kineto import Kineto

from stepscope import floor
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.document import Floor, WaterfallRow

GEMM = Work("nvjet_sm90_tst_64x8", 6000.0)
EXPERTS = Work("fused_moe_kernel", 3000.0)
ATTENTION = Work("void flashinfer::mla::BatchMLAPageAttentionKernel<2>", 500.0)
NORM = Work("rms_norm_kernel", 40.0)
CAST = Work("void at::native::float8_copy_kernel_cuda(int)", 900.0)
UNKNOWN = Work("frobnicate", 70.0)
SGLANG = Path(__file__).parents[5] / "shared" / "traces" / "sglang-h200"
ALL = (GEMM, EXPERTS, ATTENTION, NORM, CAST, UNKNOWN)


def compared(trace: Kineto, folder: Path, **options: Any) -> Floor:
    return floor(model="glm-5", gpu="h200", tp=8, traces=[trace.save(folder / "trace.json")], **options)


def rows(found: Floor) -> dict[str, WaterfallRow]:
    return {row.name: row for row in found.waterfall}


def adds_up(found: Floor) -> bool:
    gaps = sum(row.gap_us or 0.0 for row in found.waterfall)
    floors = sum(row.floor_us for row in found.waterfall)
    assert floors == pytest.approx(found.floor_us_per_step)
    return gaps == pytest.approx(found.unexplained_us)


def test_classes_are_compared_with_their_components(tmp_path: Path) -> None:
    found = compared(graphed([ALL] * 5), tmp_path)
    assert found.measured_us == pytest.approx(sum(work.us for work in ALL) + BETWEEN_GRAPHS_US)
    told, least = rows(found), {part.name: part.time_us for part in found.components}
    measured = {name: row.measured_us for name, row in told.items() if row.measured_us}
    assert measured == pytest.approx(
        {
            "linear layers": 6000,
            "experts": 3000,
            "attention": 500,
            "norms": 40,
            "cast": 900,
            "idle": BETWEEN_GRAPHS_US,
            "unexplained": 70,
        }
    )
    linear = ["attention projections", "sparse index", "dense MLP", "router", "shared expert", "LM head"]
    assert told["linear layers"].components == linear
    assert told["linear layers"].floor_us == pytest.approx(sum(least[name] for name in linear))
    assert told["experts"].gap_us == pytest.approx(3000 - least["experts"])
    assert told["attention"].gap_us == pytest.approx(500 - least["KV read"])
    assert told["cast"].floor_us == 0
    assert told["unexplained"].kernel_classes == ["unclassified"]
    assert told["collectives"].gap_us == pytest.approx(-least["collectives"])  # the trace has none
    assert adds_up(found)


def test_the_largest_gaps_come_first_and_the_unexplained_last(tmp_path: Path) -> None:
    found = compared(graphed([ALL] * 5), tmp_path)
    gaps = [row.gap_us or 0.0 for row in found.waterfall[:-1]]
    assert gaps == sorted(gaps, reverse=True)
    assert found.waterfall[-1].name == "unexplained"


def test_without_kernels_of_their_own_experts_and_attention_are_linear_layers(tmp_path: Path) -> None:
    found = compared(graphed([(GEMM, NORM)] * 5), tmp_path)
    assert {"experts", "KV read"} <= set(rows(found)["linear layers"].components)
    assert {"experts", "attention"}.isdisjoint(rows(found))
    assert adds_up(found)


def beside(cast_us: float = 90) -> Kineto:
    """Steps 200 µs apart: a GEMM of 100 µs, and beside it from 60 µs on a cast on another stream."""
    trace = Kineto()
    for begin in range(100, 1100, 200):
        trace.annotation("step[DECODE bs=1]", begin, 20)
        for name, at, us, stream in (("nvjet_a", 10, 100, 7), ("float8_copy_kernel", 70, cast_us, 9)):
            correlation = trace.launch(begin + 2)
            trace.kernel(name, begin + at, us, correlation=correlation, stream=stream)
    return trace


def test_a_moment_belongs_to_the_kernel_that_was_first(tmp_path: Path) -> None:
    found = compared(beside(), tmp_path)
    assert found.measured_us == pytest.approx(200)
    measured = {name: rows(found)[name].measured_us for name in ("linear layers", "cast", "idle")}
    assert measured == pytest.approx({"linear layers": 100, "cast": 50, "idle": 50})
    assert adds_up(found)


def test_work_that_runs_on_into_the_next_step_counts_until_there(tmp_path: Path) -> None:
    found = compared(beside(cast_us=160), tmp_path)
    measured = {name: rows(found)[name].measured_us for name in ("linear layers", "cast", "idle")}
    assert measured == pytest.approx({"linear layers": 100, "cast": 100, "idle": 0})
    assert adds_up(found)


@pytest.mark.parametrize("steps", [4, 5], ids=["a middle step", "two middle steps"])
def test_the_middle_steps_are_taken_apart(steps: int, tmp_path: Path) -> None:
    """Of 5 steps the first and the last, which has no successor, do not count; then an odd or even number remain."""
    work = [(GEMM._replace(us=1000.0 * 2**n), CAST) for n in range(steps)]
    found = compared(graphed(work), tmp_path)
    middle = {4: 3000.0, 5: 4000.0}[steps]  # of 2 and 4 ms; of 2, 4 and 8 ms
    assert rows(found)["linear layers"].measured_us == pytest.approx(middle)
    assert found.measured_us == pytest.approx(middle + 900 + BETWEEN_GRAPHS_US)
    assert adds_up(found)


def test_of_a_trace_with_lost_work_idle_time_is_not_explained(tmp_path: Path) -> None:
    trace = beside()
    for begin in (1100, 1300, 1500):  # launched, and no row of the GPU
        trace.annotation("step[DECODE bs=1]", begin, 20)
        trace.launch(begin + 2)
    found = compared(trace, tmp_path)
    assert "idle" not in rows(found)
    assert rows(found)["unexplained"].measured_us == pytest.approx(50)
    assert adds_up(found)


def test_a_total_alone_leaves_all_beyond_the_floor_unexplained() -> None:
    found = floor(model="glm-5", gpu="h200", tp=8, measured_us=86_000)
    assert [row.name for row in found.waterfall] == [*(part.name for part in found.components), "unexplained"]
    assert found.waterfall[-1].gap_us == found.unexplained_us
    assert {row.measured_us for row in found.waterfall[:-1]} == {None}


def test_without_a_measurement_there_is_no_way() -> None:
    found = floor(model="glm-5", gpu="h200")
    assert (found.waterfall, found.measured_us, found.unexplained_us) == ([], None, None)


def test_the_batch_is_the_traces_unless_told(tmp_path: Path) -> None:
    trace = graphed([ALL] * 5, annotation="step[DECODE bs=16]")
    assert compared(trace, tmp_path).case.batch == 16
    with pytest.raises(UsageError, match=r"batch 4: .* batch size 16"):
        compared(trace, tmp_path, batch=4)


def test_a_trace_without_decode_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no decode step.*prefill"):
        compared(graphed([ALL] * 5, annotation="step[EXTEND bs=1 toks=5]"), tmp_path)


@pytest.mark.skipif(not SGLANG.is_dir(), reason="the real traces are not beside the repository")
def test_a_real_servers_step() -> None:
    """In the raw file 750 fused_moe_kernel take 17.887 ms in 5 steps, 390 attention kernels 7.332 ms, on one stream."""
    found = floor(
        model=str(SGLANG / "model-config.json"),
        gpu="h200",
        context=1000,
        traces=[SGLANG / "flashinfer-bf16-graph.trace.json.gz"],
    )
    assert found.measured_us == pytest.approx(11_215, rel=0.001)
    assert rows(found)["experts"].measured_us == pytest.approx(17_887 / 5, rel=0.01)
    assert rows(found)["attention"].measured_us == pytest.approx(7332 / 5, rel=0.01)
    assert rows(found)["idle"].measured_us == pytest.approx(600, rel=0.02)
    assert rows(found)["unexplained"].measured_us == 0
    assert adds_up(found)
    compared_parts = ("linear layers", "experts", "attention", "norms", "routing", "sampling")
    assert all((rows(found)[name].measured_us or 0) > rows(found)[name].floor_us for name in compared_parts)
