"""Steps: which annotations mark one, in which phase, and which GPU work is a step's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.kineto import Kineto

from stepscope import load
from stepscope.pipeline.link import link
from stepscope.pipeline.steps import find_steps

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.pipeline.steps import Steps


def steps_of(trace: Kineto, folder: Path) -> tuple[Steps, dict[str, int]]:
    """Return the steps, and the step of each kernel by the kernel's name."""
    linked = link(load(trace.save(folder / "trace.json")))
    steps = find_steps(linked)
    return steps, dict(zip(linked.kernels["name"].to_list(), steps.step_of_kernel.tolist(), strict=True))


@pytest.mark.parametrize(
    ("annotation", "phase", "batch"),
    [
        ("ProfilerStep#17", "unknown", None),
        ("step[DECODE bs=32]", "decode", 32),
        ("step[DECODE bs=1]", "decode", 1),
        ("step[EXTEND bs=15 toks=15360]", "prefill", 15),
        ("step[MIXED bs=4 toks=2048]", "mixed", 4),
        ("step[TARGET_VERIFY bs=8]", "unknown", 8),
        ("step[IDLE]", "unknown", None),
        ("execute_context_2(14721)_generation_0(0)", "prefill", 2),
        ("execute_context_0(0)_generation_16(16)", "decode", 16),
        ("execute_context_1(512)_generation_7(7)", "mixed", 8),
        ("execute_context_1(888_788544)_generation_0(0)", "prefill", 1),
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32768sqsq32sqsk32768)", "decode", 32),
    ],
)
def test_annotations_that_mark_a_step(annotation: str, phase: str, batch: int | None, tmp_path: Path) -> None:
    trace = Kineto()
    trace.annotation(annotation, 10, 100)
    trace.call("k", at=20, duration=5)
    steps, of_kernel = steps_of(trace, tmp_path)
    assert steps.annotated
    assert [(step.name, step.phase, step.batch_size, step.host_start_ns) for step in steps.steps] == [
        (annotation, phase, batch, 0)
    ]
    assert of_kernel == {"k": 0}


@pytest.mark.parametrize(
    "annotation",
    [
        "execute_context_0(0)_generation_0(0)",
        "capture_4_rank0",
        "nccl:all_reduce",
        "Optimizer.step#SGD.step",
        "my step[DECODE bs=1]",
        "execute_diffusion_3",
    ],
)
def test_annotations_that_mark_none(annotation: str, tmp_path: Path) -> None:
    trace = Kineto()
    trace.annotation(annotation, 10, 100)
    trace.call("k", at=20, duration=5)
    steps, of_kernel = steps_of(trace, tmp_path)
    assert not steps.annotated
    assert [(step.phase, step.batch_size) for step in steps.steps] == [("unknown", None)]
    assert of_kernel == {"k": 0}


@pytest.mark.parametrize(
    ("outer", "inner", "counted"),
    [
        ("execute_context_0(0)_generation_1(1)", "step[DECODE bs=1]", "step[DECODE bs=1]"),
        ("ProfilerStep#1", "step[DECODE bs=1]", "step[DECODE bs=1]"),
        ("ProfilerStep#1", "execute_context_0(0)_generation_1(1)", "execute_context_0(0)_generation_1(1)"),
        ("ProfilerStep#1", "execute_diffusion_7", "ProfilerStep#1"),
    ],
)
def test_nested_annotations_are_one_step(outer: str, inner: str, counted: str, tmp_path: Path) -> None:
    trace = Kineto()
    for start in (0, 1000):
        trace.annotation(outer, start, 900)
        trace.annotation(inner, start + 50, 700)
        trace.call(f"k{start}", at=start + 100, duration=5)
    steps, of_kernel = steps_of(trace, tmp_path)
    assert [step.name for step in steps.steps] == [counted, counted]
    assert of_kernel == {"k0": 0, "k1000": 1}


def test_an_empty_step_between_others_is_none(tmp_path: Path) -> None:
    trace = Kineto()
    names = ["execute_context_0(0)_generation_2(2)", "execute_context_0(0)_generation_0(0)"]
    for index, name in enumerate([names[0], names[1], names[0]]):
        trace.annotation(name, index * 100, 50)
        trace.call(f"k{index}", at=index * 100 + 10, duration=5)
    steps, of_kernel = steps_of(trace, tmp_path)
    assert [step.name for step in steps.steps] == [names[0], names[0]]
    assert (of_kernel["k0"], of_kernel["k2"]) == (0, 1)


def test_work_launched_after_the_annotation_is_the_steps_until_the_next_begins(tmp_path: Path) -> None:
    trace = Kineto()
    trace.call("before", at=0, duration=5)
    trace.annotation("step[DECODE bs=1]", 100, 50)
    trace.call("within", at=110, duration=5)
    trace.call("sampling", at=180, duration=5)
    trace.annotation("step[DECODE bs=1]", 200, 50)
    trace.call("next", at=200, duration=5)
    trace.call("last", at=900, duration=5)
    _, of_kernel = steps_of(trace, tmp_path)
    assert of_kernel == {"before": -1, "within": 0, "sampling": 0, "next": 1, "last": 1}


def test_work_is_where_it_was_launched_however_late_it_runs(tmp_path: Path) -> None:
    trace = Kineto()
    trace.annotation("step[DECODE bs=1]", 0, 10)
    trace.call("slow", at=5, duration=500)
    trace.call("queued", at=8, duration=100)
    trace.annotation("step[DECODE bs=1]", 20, 10)
    trace.call("next", at=25, duration=100)
    _, of_kernel = steps_of(trace, tmp_path)
    assert of_kernel == {"slow": 0, "queued": 0, "next": 1}


def test_work_without_a_launch_is_no_steps(tmp_path: Path) -> None:
    trace = Kineto()
    trace.annotation("step[DECODE bs=1]", 0, 100)
    trace.kernel("queued before recording", 10, 5, correlation=99)
    trace.call("k", at=20, duration=5)
    _, of_kernel = steps_of(trace, tmp_path)
    assert of_kernel == {"queued before recording": -1, "k": 0}


def test_annotations_on_the_gpu_do_not_count(tmp_path: Path) -> None:
    """They appear once a stream: ten of them for five steps."""
    trace = Kineto()
    for start in (1, 1001):
        trace.annotation("step[DECODE bs=1]", start, 100)
        trace.call(f"k{start}", at=start + 10, duration=500)
        for stream in (7, 16):
            trace.span("gpu_user_annotation", "step[DECODE bs=1]", start + 20, 500, pid=0, tid=stream)
    steps, _ = steps_of(trace, tmp_path)
    assert [step.host_start_ns for step in steps.steps] == [0, 1_000_000]


def test_steps_are_grouped_by_phase_and_stubs_are_left_out(tmp_path: Path) -> None:
    trace = Kineto()
    marked = ["step[EXTEND bs=1 toks=9]", "step[DECODE bs=1]", "step[DECODE bs=1]", "step[DECODE bs=1]"]
    for index, name in enumerate(marked):
        trace.annotation(name, index * 100, 50)
        if index != 2:
            trace.call(f"k{index}", at=index * 100 + 10, duration=5)
    steps, _ = steps_of(trace, tmp_path)
    assert steps.phases() == {"prefill": [0], "decode": [1, 3]}


@pytest.mark.parametrize("call", ["cudaStreamEndCapture", "cudaGraphInstantiate", "hipStreamEndCapture"])
@pytest.mark.parametrize("annotation", [None, "ProfilerStep#1"])
def test_a_trace_of_a_capture_has_no_steps(call: str, annotation: str | None, tmp_path: Path) -> None:
    trace = Kineto()
    if annotation:
        trace.annotation(annotation, 0, 1000)
    trace.call("warm-up", at=10, duration=5)
    trace.launch(50)
    trace.launch(60, name=call)
    steps, of_kernel = steps_of(trace, tmp_path)
    assert steps.is_capture
    assert steps.steps == ()
    assert of_kernel == {"warm-up": -1}
    assert steps.phases() == {}


def test_without_annotations_the_recording_stands_for_one_step(tmp_path: Path) -> None:
    trace = Kineto()
    trace.call("a", at=0, duration=5)
    trace.kernel("b", 50, 5)
    steps, of_kernel = steps_of(trace, tmp_path)
    assert not steps.annotated
    assert [step.phase for step in steps.steps] == ["unknown"]
    assert of_kernel == {"a": 0, "b": 0}


def test_without_gpu_work_and_annotations_there_is_no_step(tmp_path: Path) -> None:
    trace = Kineto()
    trace.op("aten::add", 0, 5)
    steps, _ = steps_of(trace, tmp_path)
    assert steps.steps == ()
    assert steps.phases() == {}


def replayed(wait: str, *, waited: float = 70_000.0) -> Kineto:
    """SGLang's start of a recording: the replay in flight is not recorded, and the host waits for it."""
    trace = Kineto()
    trace.annotation("step[DECODE bs=1]", 0, 500)
    trace.call("input copy", at=10, duration=2)
    trace.launch(30, waited, name=wait)
    trace.replay([(f"a{index}", 1000, (1, 1, 1)) for index in range(3)], at=75_000)
    trace.annotation("step[DECODE bs=1]", 80_000, 500)
    trace.replay([(f"b{index}", 1000, (1, 1, 1)) for index in range(3)], at=80_100)
    return trace


@pytest.mark.parametrize(
    "wait", ["cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpyAsync", "hipMemcpyWithStream"]
)
def test_a_hole_at_the_start_is_no_idle_time(wait: str, tmp_path: Path) -> None:
    """The first step's work before the hole is left out, and the hole's length is told."""
    steps, of_kernel = steps_of(replayed(wait, waited=74_900), tmp_path)
    assert of_kernel == {"input copy": -1, **{f"a{i}": 0 for i in range(3)}, **{f"b{i}": 1 for i in range(3)}}
    assert steps.hole_ns == (75_006 - 18) * 1000  # from the copy's end (10 + 6 + 2) to the first kernel (75 000 + 6)


def test_a_pause_in_which_the_host_does_not_wait_is_no_hole(tmp_path: Path) -> None:
    steps, of_kernel = steps_of(replayed("cudaLaunchKernel"), tmp_path)
    assert steps.hole_ns == 0
    assert of_kernel["input copy"] == 0


def test_a_wait_for_a_part_of_the_pause_is_no_hole(tmp_path: Path) -> None:
    steps, _ = steps_of(replayed("cudaStreamSynchronize", waited=30_000), tmp_path)
    assert steps.hole_ns == 0


def test_a_short_wait_is_no_hole(tmp_path: Path) -> None:
    """The host waits for a copy of the inputs in every step: up to a ms of that is a step's own idle time."""
    trace = Kineto()
    trace.annotation("step[DECODE bs=1]", 1, 500)
    trace.call("input copy", at=10, duration=2)
    trace.launch(18, 900, name="cudaStreamSynchronize")
    trace.call("k", at=920, duration=5)
    steps, of_kernel = steps_of(trace, tmp_path)
    assert steps.hole_ns == 0
    assert of_kernel == {"input copy": 0, "k": 0}


def test_a_wait_within_a_later_step_is_no_hole(tmp_path: Path) -> None:
    trace = Kineto()
    for start in (0, 100_000):
        trace.annotation("step[DECODE bs=1]", start, 500)
        trace.call(f"first {start}", at=start + 10, duration=2)
        trace.launch(start + 30, 40_000 if start else 5, name="cudaStreamSynchronize")
        trace.call(f"second {start}", at=start + (40_040 if start else 50), duration=2)
    steps, of_kernel = steps_of(trace, tmp_path)
    assert steps.hole_ns == 0
    assert sorted(of_kernel.values()) == [0, 0, 1, 1]


def test_a_hole_is_looked_for_in_the_first_step_of_which_work_was_recorded(tmp_path: Path) -> None:
    trace = replayed("cudaStreamSynchronize", waited=74_900)
    trace.annotation("step[DECODE bs=1]", -600, 500)  # its work had run before recording began
    steps, of_kernel = steps_of(trace, tmp_path)
    assert of_kernel["input copy"] == -1
    assert steps.hole_ns == (75_006 - 18) * 1000


@pytest.mark.parametrize(("batches", "typical"), [([8, 1, 2], 2), ([3], 3), ([4, 4, 1, 4], 4)])
def test_the_typical_step_has_the_median_batch_size(batches: list[int], typical: int, tmp_path: Path) -> None:
    trace = Kineto()
    for number, batch in enumerate(batches):
        trace.annotation(f"step[DECODE bs={batch}]", number * 100, 50)
        trace.call("k", at=number * 100 + 10, duration=5)
    steps, _ = steps_of(trace, tmp_path)
    assert steps.typical(range(len(batches))).batch_size == typical


def test_work_that_was_launched_and_does_not_start_waits_for_unrecorded_work(tmp_path: Path) -> None:
    """Overlapped scheduling: the host waits late, but the GPU has work and does not run it."""
    trace = Kineto()
    trace.call("input copy", at=10, duration=2)
    late = trace.launch(30)
    trace.launch(20_000, 50_000, name="cudaEventSynchronize")
    trace.kernel("queued", 70_000, 1000, correlation=late)
    trace.call("next", at=71_000, duration=1000)
    steps, of_kernel = steps_of(trace, tmp_path)
    assert steps.found_by == "recording"
    assert of_kernel == {"input copy": -1, "queued": 0, "next": 0}
    assert steps.hole_ns == (70_000 - 18) * 1000


def test_other_work_in_the_queue_makes_no_hole(tmp_path: Path) -> None:
    """A copy on a side stream may wait for anything; what ends the gap was launched just before."""
    trace = Kineto()
    trace.call("first", at=10, duration=2)
    side = trace.launch(30)
    trace.call("late", at=20_000, duration=3000)
    trace.kernel("beside", 21_000, 5, correlation=side, stream=9)
    steps, of_kernel = steps_of(trace, tmp_path)
    assert steps.hole_ns == 0
    assert set(of_kernel.values()) == {0}


def test_a_hole_after_some_of_the_work_is_not_at_the_start(tmp_path: Path) -> None:
    trace = Kineto()
    trace.call("before", at=10, duration=100)
    trace.launch(150, 69_000, name="cudaStreamSynchronize")
    trace.call("after", at=69_200, duration=5000)
    steps, _ = steps_of(trace, tmp_path)
    assert steps.hole_ns == 0  # 100 µs of 5,100 are 2%: a step that waits, not the start
