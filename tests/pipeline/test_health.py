"""The quality gate: each warning fires on damage of its kind, and on nothing that is healthy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.kineto import Kineto

from stepscope import diagnose, load
from stepscope.pipeline.health import check_health, has_shapes, has_stacks
from stepscope.pipeline.link import link
from stepscope.pipeline.steps import find_steps

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.trace import TraceWarning


def warnings_of(path: Path) -> dict[str, TraceWarning]:
    linked = link(load(path))
    found = check_health(linked, find_steps(linked))
    assert len({warning.code for warning in found}) == len(found), "one warning a code"
    return {warning.code: warning for warning in found}


def is_complete(path: Path) -> bool:
    return diagnose([path]).traces[0].complete


def eager(*, steps: int = 4, stacks: bool = False, shapes: bool = True) -> Kineto:
    """Decode steps of three ops each, every kernel with its launch."""
    trace = Kineto()
    for step in range(steps):
        begin = 1.0 + step * 1000
        trace.annotation("step[DECODE bs=1]", begin, 100)
        if stacks:
            trace.frame("model.py(10): forward", begin + 1, 90)
        for number in range(3):
            dims = [[4, 4], [4, 4]] if shapes else None
            trace.call(f"kernel_{number}", at=begin + 10 + number * 20, duration=50, op="aten::mm", dims=dims)
    return trace


def test_a_healthy_trace_has_no_warning(tmp_path: Path) -> None:
    path = eager().save(tmp_path / "t.json.gz")
    assert warnings_of(path) == {}
    assert is_complete(path)
    assert diagnose([path]).steps[0].gpu_idle_us is not None


def test_nothing_recorded_of_the_gpu(tmp_path: Path) -> None:
    trace = Kineto()
    trace.annotation("step[DECODE bs=1]", 1, 100)
    trace.op("aten::mm", 2, 5)
    path = trace.save(tmp_path / "t.json")
    warnings = warnings_of(path)
    assert list(warnings) == ["no-gpu-events"]
    assert warnings["no-gpu-events"].spoils_totals
    assert not is_complete(path)


@pytest.mark.parametrize("silent", [1, 3])
def test_steps_that_launched_work_without_gpu_rows(silent: int, tmp_path: Path) -> None:
    trace = eager()
    for step in range(silent):
        trace.annotation("step[DECODE bs=1]", 10_001 + step * 1000, 100)
        trace.launch(10_011 + step * 1000)
    path = trace.save(tmp_path / "t.json")
    warnings = warnings_of(path)
    assert list(warnings) == ["gpu-rows-missing"]
    assert (warnings["gpu-rows-missing"].count, warnings["gpu-rows-missing"].spoils_totals) == (silent, True)
    diagnosis = diagnose([path])
    assert not diagnosis.traces[0].complete
    assert [step.gpu_idle_us for step in diagnosis.steps] == [None]


def test_a_replay_without_gpu_rows_is_missing_too(tmp_path: Path) -> None:
    trace = eager()
    trace.annotation("step[DECODE bs=1]", 10_001, 100)
    trace.launch(10_011, name="hipGraphLaunch")
    path = trace.save(tmp_path / "t.json")
    assert list(warnings_of(path)) == ["gpu-rows-missing"]
    assert not is_complete(path)


def test_an_annotation_without_a_launch_is_a_stub_and_healthy(tmp_path: Path) -> None:
    trace = eager()
    trace.annotation("step[DECODE bs=1]", 10_001, 100)
    trace.launch(10_011, name="cudaStreamSynchronize")
    path = trace.save(tmp_path / "t.json")
    assert warnings_of(path) == {}
    assert is_complete(path)


def test_sets_of_no_bytes_leave_no_row_and_are_healthy(tmp_path: Path) -> None:
    trace = eager()
    for step in range(4):
        for number in range(20):
            trace.launch(100.0 + step * 1000 + number, 0.5, name="cudaMemsetAsync")
    path = trace.save(tmp_path / "t.json")
    assert warnings_of(path) == {}
    assert is_complete(path)


def test_kernels_queued_before_the_recording_are_told_and_healthy(tmp_path: Path) -> None:
    trace = eager()
    for number in range(7):
        trace.kernel("queued", 2 + number, 0.5, correlation=900 + number)
    path = trace.save(tmp_path / "t.json")
    warnings = warnings_of(path)
    assert {code: warning.count for code, warning in warnings.items()} == {"outside-steps": 7}
    assert is_complete(path)


def test_kernels_that_overlap_by_a_few_us_are_healthy(tmp_path: Path) -> None:
    trace = eager()
    trace.kernel("overlapping", 3_058, 13, correlation=trace.launch(3_080))
    path = trace.save(tmp_path / "t.json")
    assert warnings_of(path) == {}
    assert is_complete(path)


def test_a_capture_is_told_and_its_launches_are_no_damage(tmp_path: Path) -> None:
    trace = eager(steps=1)
    for number in range(50):
        trace.launch(2000.0 + number * 10)
    trace.launch(3000, name="cudaStreamEndCapture")
    trace.launch(3100, name="cudaGraphInstantiateWithFlags")
    path = trace.save(tmp_path / "t.json")
    assert "graph-capture" in warnings_of(path)
    assert is_complete(path)


def test_no_annotations(tmp_path: Path) -> None:
    trace = Kineto()
    trace.call("k", at=5, duration=5, op="aten::mm", dims=[[1]])
    path = trace.save(tmp_path / "t.json")
    assert list(warnings_of(path)) == ["no-step-annotations"]
    assert is_complete(path)


@pytest.mark.parametrize(("steps", "codes"), [(1, ["few-steps"]), (2, ["few-steps"]), (3, [])])
def test_few_steps(steps: int, codes: list[str], tmp_path: Path) -> None:
    path = eager(steps=steps).save(tmp_path / "t.json")
    warnings = warnings_of(path)
    assert list(warnings) == codes
    assert [warning.count for warning in warnings.values()] == [steps] * len(codes)
    assert is_complete(path)


def test_a_hole_at_the_start(tmp_path: Path) -> None:
    trace = Kineto()
    trace.annotation("step[DECODE bs=1]", 1, 500)
    trace.call("input copy", at=10, duration=2, op="aten::copy_", dims=[[1], [1]])
    trace.launch(19, 41_480, name="cudaStreamSynchronize")
    trace.call("k", at=41_500, duration=100)
    for start in (50_000, 60_000, 70_000):
        trace.annotation("step[DECODE bs=1]", start, 500)
        trace.call("k", at=start + 10, duration=100)
    path = trace.save(tmp_path / "t.json")
    warnings = warnings_of(path)
    assert set(warnings) == {"hole-at-start", "outside-steps"}
    assert warnings["hole-at-start"].message.startswith("41.5 ms")  # 18 µs to 41 506 µs
    assert is_complete(path), "a replay already running when recording began is no damage"


def test_no_shapes(tmp_path: Path) -> None:
    path = eager(shapes=False).save(tmp_path / "t.json")
    assert list(warnings_of(path)) == ["no-shapes"]
    assert not has_shapes(link(load(path)))
    assert is_complete(path)


def test_the_flag_of_the_header_is_no_proof_of_shapes(tmp_path: Path) -> None:
    trace = eager(shapes=False)
    trace.header |= {"record_shapes": 1, "with_stack": 1}
    path = trace.save(tmp_path / "t.json")
    assert list(warnings_of(path)) == ["no-shapes"]


def test_stacks_slow_the_host(tmp_path: Path) -> None:
    path = eager(stacks=True).save(tmp_path / "t.json")
    assert list(warnings_of(path)) == ["stacks-slow-host"]
    assert is_complete(path)


def test_a_few_frames_of_the_profilers_own_are_no_stacks(tmp_path: Path) -> None:
    trace = eager()
    trace.frame("torch/profiler/profiler.py(700): start", 2, 3)
    trace.frame("torch/profiler/profiler.py(800): stop", 3_005, 20)
    path = trace.save(tmp_path / "t.json")
    assert warnings_of(path) == {}
    assert not has_stacks(link(load(path)))


def test_damage_that_the_loader_saw_makes_a_trace_incomplete(tmp_path: Path) -> None:
    text = json.dumps(eager().document())
    cut, bad = tmp_path / "cut.json", tmp_path / "bad.json"
    cut.write_text(text[:-40])
    bad.write_text(text.replace('"ts": 1001.0', '"ts": NaN', 1))
    assert list(warnings_of(cut)) == ["cut-file"]
    assert list(warnings_of(bad)) == ["damaged-events"]
    assert not is_complete(cut)
    assert not is_complete(bad)
    assert [step.gpu_idle_us for step in diagnose([cut]).steps] == [None]


def replays(sizes: list[int], *, names: list[str] | None = None) -> Kineto:
    """Steps of one CUDA graph each, of which so many kernels were recorded."""
    trace = Kineto()
    for step, size in enumerate(sizes):
        begin = 1.0 + step * 10_000
        trace.annotation(names[step] if names else "step[DECODE bs=1]", begin, 100)
        trace.replay([(f"kernel_{number}", 50.0, (number + 1, 1, 1)) for number in range(size)], at=begin + 10)
    return trace


def test_a_replay_recorded_in_part_is_incomplete(tmp_path: Path) -> None:
    path = replays([40, 40, 13, 40]).save(tmp_path / "t.json")
    warnings = warnings_of(path)
    assert warnings["replay-in-part"].count == 1
    assert warnings["replay-in-part"].spoils_totals
    assert not is_complete(path)


@pytest.mark.parametrize(
    "trace",
    [
        replays([40, 40, 40, 40]),
        replays([40, 20, 40, 20], names=[f"step[DECODE bs={size}]" for size in (2, 1, 2, 1)]),
    ],
    ids=["one graph", "a graph a batch size"],
)
def test_replays_recorded_whole_are_healthy(trace: Kineto, tmp_path: Path) -> None:
    path = trace.save(tmp_path / "t.json")
    assert list(warnings_of(path)) == ["no-shapes"]
    assert is_complete(path)


def test_graphs_of_different_sizes_in_a_step_are_healthy(tmp_path: Path) -> None:
    """Piecewise graphs: 4, 15 and 12 kernels, the same in every step."""
    trace = Kineto()
    for step in range(4):
        begin = 1.0 + step * 10_000
        trace.annotation("step[DECODE bs=1]", begin, 3000)
        for piece, size in enumerate((4, 15, 15, 12)):
            trace.replay([(f"k{number}", 10.0, (1, 1, 1)) for number in range(size)], at=begin + 10 + piece * 500)
    path = trace.save(tmp_path / "t.json")
    assert list(warnings_of(path)) == ["no-shapes"]
    assert is_complete(path)
