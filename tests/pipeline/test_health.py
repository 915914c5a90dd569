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


def all_warnings_of(path: Path, layers: int | None = None) -> dict[str, TraceWarning]:
    linked = link(load(path))
    found = check_health(linked, find_steps(linked), layers)
    assert len({warning.code for warning in found}) == len(found), "one warning a code"
    return {warning.code: warning for warning in found}


def warnings_of(path: Path, layers: int | None = None) -> dict[str, TraceWarning]:
    """Return the warnings but for those of healthy traces: no stacks, and steps that figures are not taken from."""
    healthy = {"no-stacks", "steps-left-out", "mixed-sizes"}
    return {code: warning for code, warning in all_warnings_of(path, layers).items() if code not in healthy}


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


def test_a_replay_without_gpu_rows_is_missing_where_nothing_else_marks_a_step(tmp_path: Path) -> None:
    trace, at = Kineto(), 10.0
    for number in range(6):
        at = trace.replay([] if number == 3 else [("k", 20.0, (1, 1, 1))] * 4, at=at) + 60
    assert warnings_of(trace.save(tmp_path / "t.json"))["gpu-rows-missing"].count == 1
    assert not is_complete(tmp_path / "t.json")
    (row,) = diagnose([tmp_path / "t.json"]).steps
    assert row.gpu_idle_us is None


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
    assert warnings["outside-steps"].message.endswith(": 3.5 µs")  # 7 × 0.5
    assert is_complete(path)


@pytest.mark.parametrize(("duration", "is_note"), [(5.0, True), (7.0, False)])
def test_work_outside_the_steps_is_a_warning_from_one_percent_of_the_gpus_time_on(
    duration: float,
    is_note: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    trace = eager()  # 4 steps of 3 × 50 µs: 600 µs
    trace.kernel("queued", 2, duration, correlation=900)
    assert warnings_of(trace.save(tmp_path / "t.json"))["outside-steps"].is_note is is_note


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
    assert "stacks-slow-host" in warnings_of(path)
    assert is_complete(path)


@pytest.mark.parametrize(("stack", "warned"), [("serve.py(7): run;main.py(1): <module>", False), ("", True)])
def test_the_stack_as_text_on_old_traces_ops_is_a_stack(stack: str, warned: bool, tmp_path: Path) -> None:  # noqa: FBT001
    trace = eager()
    for span in trace.document()["traceEvents"]:
        if span.get("cat") == "cpu_op":
            span.setdefault("args", {})["Call stack"] = stack
    path = trace.save(tmp_path / "t.json")
    linked = link(load(path))
    assert has_stacks(linked) is not warned
    codes = [warning.code for warning in check_health(linked, find_steps(linked), None)]
    assert ("no-stacks" in codes) is warned


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
    assert next(iter(warnings_of(bad))) == "damaged-events"
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


def test_of_a_graphs_kernels_no_option_records_shapes_and_stacks(tmp_path: Path) -> None:
    graph = all_warnings_of(replays([40, 40, 40, 40]).save(tmp_path / "graph.json"))
    ops = all_warnings_of(eager(shapes=False).save(tmp_path / "eager.json"))
    for code, option in (("no-shapes", "record_shapes=True"), ("no-stacks", "with_stack=True")):
        assert graph[code].message.endswith("--capture-trace can tell them")
        assert option in ops[code].message
        assert graph[code].is_note
        assert ops[code].is_note


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


def test_stacks_and_modules_are_told_when_they_are_not_recorded(tmp_path: Path) -> None:
    assert list(all_warnings_of(eager(steps=3).save(tmp_path / "plain.json"))) == ["no-stacks"]
    with_stacks = eager(stacks=True)
    assert {"stacks-slow-host", "no-modules"} <= set(all_warnings_of(with_stacks.save(tmp_path / "stacks.json")))
    with_stacks.frame("nn.Module: Layer_5", 12, 5)
    codes = set(all_warnings_of(with_stacks.save(tmp_path / "modules.json")))
    assert "stacks-slow-host" in codes
    assert not {"no-stacks", "no-modules"} & codes


def test_a_step_with_fewer_kernels_than_layers_was_not_recorded_whole(tmp_path: Path) -> None:
    path = eager(steps=4).save(tmp_path / "t.json")  # three kernels a step
    assert "fewer-kernels-than-layers" not in warnings_of(path, layers=3)
    warning = warnings_of(path, layers=4)["fewer-kernels-than-layers"]
    assert (warning.count, warning.spoils_totals) == (4, False)  # the model may be another one


def test_steps_of_one_batch_with_far_fewer_kernels_than_others(tmp_path: Path) -> None:
    trace = eager(steps=4)
    for number in range(2):
        trace.call(f"more_{number}", at=3100 + number * 20, duration=50, op="aten::mm", dims=[[4, 4], [4, 4]])
    warning = warnings_of(trace.save(tmp_path / "t.json"))["unstable-steps"]
    assert (warning.count, warning.spoils_totals) == (3, False)  # three of 3 kernels beside one of 5


@pytest.mark.parametrize(("overlap", "warns"), [(13.0, False), (25.0, True)])
def test_kernels_of_one_stream_overlap_by_a_few_us_only(overlap: float, *, warns: bool, tmp_path: Path) -> None:
    trace = eager()
    trace.kernel("early", 5000, 50, stream=7)
    trace.kernel("next", 5050 - overlap, 50, stream=7)
    trace.kernel("beside", 5000, 500, stream=8)
    assert ("overlapping-kernels" in warnings_of(trace.save(tmp_path / "t.json"))) is warns


def test_a_kernel_that_runs_over_many_later_ones_is_left_out_of_every_sum(tmp_path: Path) -> None:
    def trace(nonsense_us: float) -> Path:
        built = Kineto()
        built.annotation("step[DECODE bs=1]", 1, 1000)
        for number in range(20):
            duration = nonsense_us if number == 4 else 8.0
            correlation = built.launch(10 + number * 20)
            built.kernel("kernel", 20 + number * 20, duration, correlation=correlation)
        return built.save(tmp_path / f"{nonsense_us}.json")

    assert "overrunning-durations" not in warnings_of(trace(8.0))
    path = trace(7e6)
    warning = warnings_of(path)["overrunning-durations"]
    assert (warning.count, warning.spoils_totals) == (1, True)
    step = diagnose([path]).steps[0]
    assert step.gpu_busy_us == pytest.approx(19 * 8)
    assert step.kernels_per_step == 19
    assert step.gpu_idle_us is None


class TestReplaysRecordedInPart:
    """7,242 ms of which 63 ms of kernels were recorded, a few for each of many graph launches: idle is not known."""

    LAUNCHES = 630
    KERNELS = 5
    KERNEL_US = 20.0  # 630 × 5 × 20 µs = 63 ms
    PERIOD_US = 7_242_000 / LAUNCHES

    def trace(self, *, launch_us: float, wait_us: float) -> Kineto:
        built = Kineto()
        for number in range(self.LAUNCHES):
            at = 1 + number * self.PERIOD_US
            correlation = built.launch(at, launch_us, name="cudaGraphLaunch")
            for kernel in range(self.KERNELS):
                built.kernel("kernel", at + launch_us + kernel * 21, self.KERNEL_US, correlation=correlation)
            if wait_us:
                built.launch(at + launch_us + 200, wait_us, name="cudaStreamSynchronize")
        return built

    def test_long_launches_of_few_kernels(self, tmp_path: Path) -> None:
        path = self.trace(launch_us=3300, wait_us=0).save(tmp_path / "t.json")
        warning = warnings_of(path)["replay-in-part"]
        assert (warning.count, warning.spoils_totals) == (self.LAUNCHES, True)
        assert diagnose([path]).steps[0].gpu_idle_us is None

    def test_waits_for_work_that_is_not_there(self, tmp_path: Path) -> None:
        path = self.trace(launch_us=10, wait_us=10_000).save(tmp_path / "t.json")
        warning = warnings_of(path)["unrecorded-work"]
        assert (warning.count, warning.spoils_totals) == (self.LAUNCHES - 1, True)
        assert diagnose([path]).steps[0].gpu_idle_us is None

    def test_small_graphs_that_are_launched_quickly_are_healthy(self, tmp_path: Path) -> None:
        path = self.trace(launch_us=10, wait_us=0).save(tmp_path / "t.json")
        assert not {"replay-in-part", "unrecorded-work"} & set(warnings_of(path))
        assert diagnose([path]).steps[0].gpu_idle_us is not None
