"""`stepscope.profile` in this process: what it records, when it stops, and what it leaves behind."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.profiler import ProfilerActivity

import stepscope
from stepscope.capture import torch_profile
from stepscope.errors import PartNotInstalledError, UsageError
from stepscope.pipeline.steps.annotations import annotated_steps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_wishes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither settings nor a rank of whoever runs the tests; and nobody records afterwards."""
    for name in ("STEPS", "WAIT", "STACKS", "OUTPUT"):
        monkeypatch.delenv(f"STEPSCOPE_PROFILE_{name}", raising=False)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    yield
    assert not is_recording()


def is_recording() -> bool:
    return torch._C._autograd._profiler_enabled()  # noqa: SLF001 -- there is no public way to ask


def work(number: int) -> None:
    """One call of an op, whose shape tells the step's number."""
    torch.ones(number + 1, 7).relu()


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def steps_of(path: Path) -> list[str]:
    events = document(path)["traceEvents"]
    found = [event for event in events if event.get("cat") == "user_annotation"]
    return [event["name"] for event in sorted(found, key=lambda event: float(event["ts"]))]


def sizes_of(path: Path) -> list[int]:
    """The shapes that `work` left in the trace, less one: which steps were recorded."""
    events = [event for event in document(path)["traceEvents"] if event.get("name") == "aten::relu"]
    return [event["args"]["Input Dims"][0][0] - 1 for event in sorted(events, key=lambda event: float(event["ts"]))]


def run(count: int, output: Path, **wishes: Any) -> stepscope.profile:
    recorded = stepscope.profile(output=output, **wishes)
    take(recorded, count)
    return recorded


def take(recorded: stepscope.profile, count: int, *, failing_step: int | None = None) -> None:
    with recorded:
        for number in range(count):
            work(number)
            if number == failing_step:
                raise ZeroDivisionError
            recorded.step()


@pytest.mark.parametrize(("wait", "steps"), [(0, 1), (0, 3), (1, 1), (1, 4), (2, 1), (3, 5)])
def test_the_steps_asked_for_are_recorded_and_no_others(wait: int, steps: int, tmp_path: Path) -> None:
    path = run(wait + steps + 3, tmp_path, wait=wait, steps=steps).path
    assert path is not None
    assert sizes_of(path) == list(range(wait, wait + steps))
    assert steps_of(path) == [f"ProfilerStep#{number}" for number in range(wait, wait + steps)]
    assert list(tmp_path.iterdir()) == [path]


def test_five_steps_after_three_unless_told_otherwise(tmp_path: Path) -> None:
    path = run(9, tmp_path).path
    assert path is not None
    assert sizes_of(path) == [3, 4, 5, 6, 7]


def test_the_step_finder_finds_them(tmp_path: Path) -> None:
    path = run(7, tmp_path, steps=4, wait=2).path
    assert path is not None
    trace = stepscope.load(path)
    found = annotated_steps(trace, trace.launches["start_ns"].to_numpy()[:0])
    assert [step.name for step in found] == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"]


def with_gpu(path: Path, target: Path) -> Path:
    """The same trace as a GPU would have made it: each relu launches a kernel of 5 µs, which begins 10 µs later."""
    trace = document(path)
    trace["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200"}]
    relus = [event for event in trace["traceEvents"] if event.get("name") == "aten::relu"]
    for number, op in enumerate(relus, start=1):
        start = float(op["ts"])
        both = {"ph": "X", "args": {"correlation": number, "device": 0, "stream": 7}}
        trace["traceEvents"] += [
            both | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start, "dur": 0.1}
            | {"pid": op["pid"], "tid": op["tid"]},
            both | {"cat": "kernel", "name": "relu_kernel", "ts": start + 10, "dur": 5, "pid": 0, "tid": 7},
        ]  # fmt: skip
    target.write_text(json.dumps(trace))
    return target


def test_a_diagnosis_finds_them_once_there_is_gpu_work(tmp_path: Path) -> None:
    path = run(9, tmp_path).path
    assert path is not None
    (steps,) = stepscope.diagnose([with_gpu(path, tmp_path / "gpu.json")]).steps
    assert (steps.count, steps.kernels_per_step, steps.gpu_busy_us) == (5, 1, 5)


def test_the_end_of_a_block_that_ended_early_is_no_step(tmp_path: Path) -> None:
    """Torch marks what comes after the last `step()` too; a diagnosis counts the two that were whole."""
    with pytest.warns(RuntimeWarning, match=r"^2 of the 5 steps asked for were recorded"):
        path = run(5, tmp_path).path
    assert path is not None
    assert sizes_of(path) == [3, 4]
    (steps,) = stepscope.diagnose([with_gpu(path, tmp_path / "gpu.json")]).steps
    assert steps.count == 2


def test_shapes_are_recorded_and_stacks_only_when_asked_for(tmp_path: Path) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu()

    model, frames = Model(), {}
    for stacks in (False, True):
        with stepscope.profile(1, wait=1, stacks=stacks, output=tmp_path) as recorded:
            for _ in range(2):
                model(torch.ones(3, 7))
                recorded.step()
        assert recorded.path is not None
        trace = document(recorded.path)
        frames[stacks] = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "python_function"]
        relu = next(event for event in trace["traceEvents"] if event.get("name") == "aten::relu")
        assert relu["args"]["Input Dims"] == [[3, 7]]
        assert trace["record_shapes"] == 1
        assert trace.get("with_stack", 0) == int(stacks)
    assert frames[False] == []
    assert "nn.Module: Model_0" in frames[True]
    assert any("test_torch_profile.py(" in name and name.endswith(": forward") for name in frames[True])


def test_everything_that_torch_can_record_is_switched_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch sees a GPU, it is recorded too."""
    asked: list[Any] = []
    real = torch.profiler.profile

    def profile(**switches: Any) -> Any:
        asked.append(switches)
        return real(**switches | {"activities": [ProfilerActivity.CPU]})

    both = {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: both)
    monkeypatch.setattr(torch.profiler, "profile", profile)
    run(2, tmp_path, steps=1, wait=1)
    (switches,) = asked
    assert switches["activities"] == both
    assert switches["record_shapes"] is True


def test_recording_stops_by_itself_within_the_block(tmp_path: Path) -> None:
    with stepscope.profile(2, wait=1, output=tmp_path) as recorded:
        for number in range(3):
            assert recorded.path is None
            work(number)
            recorded.step()
        assert recorded.path is not None
        assert sizes_of(recorded.path) == [1, 2]
        assert not is_recording()
        for number in range(3, 6):
            work(number)
            recorded.step()
    assert list(tmp_path.iterdir()) == [recorded.path]


@pytest.mark.parametrize("failing_step", [0, 1, 2, 3])
def test_an_exception_passes_and_leaves_nothing(failing_step: int, tmp_path: Path) -> None:
    """In each state of the profiler: not begun, warming up, in the first and in the last step."""
    recorded = stepscope.profile(2, wait=2, output=tmp_path)
    with pytest.raises(ZeroDivisionError):
        take(recorded, 4, failing_step=failing_step)
    assert list(tmp_path.iterdir()) == []
    assert recorded.path is None
    assert run(3, tmp_path, steps=2, wait=1).path is not None  # another one can record at once


def test_what_was_complete_before_an_exception_stays(tmp_path: Path) -> None:
    recorded = stepscope.profile(1, wait=1, output=tmp_path)
    with pytest.raises(ZeroDivisionError):
        take(recorded, 4, failing_step=3)
    assert recorded.path is not None
    assert sizes_of(recorded.path) == [1]


def test_a_block_within_another_is_refused_and_the_outer_one_goes_on(tmp_path: Path) -> None:
    with stepscope.profile(1, wait=1, output=tmp_path) as outer:
        work(0)
        outer.step()
        with pytest.raises(UsageError, match=r"recording already"), stepscope.profile(output=tmp_path):
            pytest.fail("it was entered")
        work(1)
        outer.step()
    assert outer.path is not None
    assert sizes_of(outer.path) == [1]


def test_within_torchs_own_profiler_it_is_refused(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]):
        with pytest.raises(UsageError, match=r"torch's profiler is recording already"):
            run(1, tmp_path)
        assert is_recording()


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_block_without_a_whole_recorded_step_says_so_and_writes_nothing(count: int, tmp_path: Path) -> None:
    message = r"^no step was recorded: step 4 would have been the first, and did not end \(step\(\) ends each\)$"
    with pytest.warns(RuntimeWarning, match=message):
        assert run(count, tmp_path).path is None
    assert list(tmp_path.iterdir()) == []


def test_the_environment_goes_before_the_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_PROFILE_STEPS", "2")
    monkeypatch.setenv("STEPSCOPE_PROFILE_WAIT", "1")
    monkeypatch.setenv("STEPSCOPE_PROFILE_STACKS", "1")
    monkeypatch.setenv("STEPSCOPE_PROFILE_OUTPUT", str(tmp_path / "there"))
    path = run(9, tmp_path / "here", steps=7, wait=0).path
    assert path is not None
    assert path.parent == tmp_path / "there"
    assert sizes_of(path) == [1, 2]
    assert document(path)["with_stack"] == 1
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("STEPS", "0"), ("STEPS", "many"), ("STEPS", "-1"), ("STEPS", "9" * 5000), ("WAIT", "1.5"), ("STACKS", "yes")],
)
def test_an_environment_that_cannot_be_is_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"STEPSCOPE_PROFILE_{name}", value)
    with pytest.raises(UsageError, match=r"must be"):
        stepscope.profile()


@pytest.mark.parametrize("wishes", [{"steps": 0}, {"steps": -1}, {"wait": -1}, {"steps": 10**9}])
def test_steps_that_cannot_be_are_refused(wishes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"must be at least"):
        stepscope.profile(**wishes)


def test_the_rank_is_in_the_name_and_in_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    path = run(2, tmp_path, steps=1, wait=1).path
    assert path is not None
    assert path.name.startswith("rank3-")
    assert document(path)["distributedInfo"] == {"rank": 3, "world_size": 8}
    assert stepscope.load(path.rename(tmp_path / "another-name.json.gz")).rank == 3


@pytest.mark.parametrize("rank", ["", "x", "-1", "9" * 5000])
def test_a_rank_that_is_none_is_not_told(rank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", rank)
    path = run(2, tmp_path, steps=1, wait=1).path
    assert path is not None
    assert "distributedInfo" not in document(path)
    assert stepscope.load(path).rank is None


def test_torchs_own_group_tells_the_rank_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")  # of a launcher that is not torch's
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        path = run(2, tmp_path / "traces", steps=1, wait=1).path
    finally:
        torch.distributed.destroy_process_group()
    assert path is not None
    assert path.name.startswith("rank0-")
    assert document(path)["distributedInfo"]["backend"] == "gloo"


def test_two_blocks_of_a_process_write_two_traces(tmp_path: Path) -> None:
    first, second = (run(2, tmp_path, steps=1, wait=1).path for _ in range(2))
    assert first is not None
    assert second is not None
    assert sorted(tmp_path.iterdir()) == sorted([first, second])


def test_an_output_that_cannot_be_is_refused_before_the_block(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot be written"):
        run(1, tmp_path / "file")


def test_a_trace_that_torch_could_not_write_whole_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch says nothing of a full disk."""
    real = torch.profiler.profile.export_chrome_trace

    def cut(self: torch.profiler.profile, path: str) -> None:
        real(self, path)
        with open(path, "r+b") as stream:  # noqa: PTH123 -- a name
            stream.truncate(1000)

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", cut)
    with pytest.raises(UsageError, match=r"could not write the whole trace"):
        run(9, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_step_outside_the_block_is_refused() -> None:
    with pytest.raises(UsageError, match=r"outside the block"):
        stepscope.profile().step()


def test_without_torch_the_install_line_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PartNotInstalledError, match=r"pip install 'stepscope\[gpu\]'"):
        run(1, tmp_path)


def test_only_the_block_imports_torch() -> None:
    code = "import sys; from stepscope import profile; profile(3); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0  # noqa: S603 -- ours


def test_nothing_is_left_of_a_recording() -> None:
    assert torch_profile._running is None  # noqa: SLF001 -- what the next block looks at
