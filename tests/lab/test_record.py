"""Recording on the CPU: traces, truth, and ranks that wait for a late one."""

from __future__ import annotations

import gzip
import json
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch

from stepscope.errors import NotATraceError, UsageError
from stepscope.lab import measure, ranks, slowdowns, truth
from stepscope.lab.cases import cases_of, twin_of
from stepscope.lab.config import LabConfig
from stepscope.lab.record import Recorder

if TYPE_CHECKING:
    from pathlib import Path

TINY = LabConfig(model="tiny", layers=3, tp_slice=2, pool_slots=2048)

pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.time_steps, "__kwdefaults__", {"rounds": 2})


@pytest.fixture(name="recorded", scope="module")
def recorded_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("set")
    recorder = Recorder(output, torch.device("cpu"))
    (case,) = cases_of("fills", TINY)
    recorder.time(case)
    folders = recorder.record(case)
    assert [folder.name for folder in folders] == ["healthy-1x1024-pool2048", "fills-1x1024-pool2048"]
    return output


def events(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"])


def steps(path: Path) -> int:
    return sum(event["name"] == "step[DECODE bs=1]" for event in events(path))


def test_a_case_is_recorded_with_its_twin(recorded: Path) -> None:
    slow, healthy = (truth.read(recorded / f"{name}-1x1024-pool2048") for name in ("fills", "healthy"))
    assert (slow.slowdown, slow.rule, slow.twin) == ("fills", "fill-in-step", "healthy-1x1024-pool2048")
    assert (healthy.slowdown, healthy.rule, healthy.twin) == (None, None, None)
    assert slow.recordings["eager"].step_without == healthy.recordings["eager"].step
    assert slow.machine.gpu is None  # what says that the traces hold no GPU work
    assert slow.recordings["eager"].kernels_per_step is None
    assert slow.recordings["eager"].step.clock == "host"
    assert json.loads((recorded / "config.json").read_bytes())["num_hidden_layers"] == 3


def test_the_traces_hold_steps_shapes_and_stacks(recorded: Path) -> None:
    folder = recorded / "fills-1x1024-pool2048"
    assert steps(folder / "eager.json.gz") == 4
    assert steps(folder / "stacks.json.gz") == 2
    with_stacks = events(folder / "stacks.json.gz")
    assert any(event["args"].get("Input Dims") for event in with_stacks if event.get("cat") == "cpu_op")
    assert any("MLAAttention" in event["name"] for event in with_stacks if event.get("cat") == "python_function")


def test_the_slowdown_is_in_the_trace(recorded: Path) -> None:
    def zeros(name: str) -> int:
        trace = events(recorded / f"{name}-1x1024-pool2048" / "eager.json.gz")
        return sum(event["name"] == "aten::zeros" for event in trace)

    assert zeros("healthy") == 0
    assert zeros("fills") == 4 * (3 * 2 + 2)  # steps × (two a layer, one more for its experts)


def test_every_slowdown_has_cases_and_each_a_twin() -> None:
    for name in slowdowns.names():
        for case in cases_of(name, LabConfig()):
            for mode in case.modes:
                twin, twin_mode = twin_of(case, mode)
                assert twin.config.slowdown is None
                assert twin.name == case.name.replace(name, "healthy")
                assert twin_mode == ("graph" if name == "no-graph" else mode)


def test_the_control_experiment_changes_only_the_pool() -> None:
    sizes = [
        case.config.pool_slots for case in cases_of("full-pool-cast", LabConfig()) if case.config.contexts == (1024,)
    ]
    assert sizes == [495_552, 131_072, 65_536]


@pytest.mark.parametrize("text", [None, "{", '{"slowdown": 3}'])
def test_a_folder_without_truth_is_said(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "truth.json").write_text(text)
    with pytest.raises(NotATraceError, match="is no record of the laboratory"):
        truth.read(tmp_path)


def test_an_unknown_slowdown_has_no_cases() -> None:
    with pytest.raises(UsageError, match="known are"):
        list(cases_of("none", TINY))


def test_a_late_rank_waits_before_each_all_reduce(tmp_path: Path) -> None:
    config = LabConfig(model="tiny", layers=2, contexts=(64,), pool_slots=1024)
    late, healthy = ranks.record_ranks(config, tmp_path, late=1)
    assert (late.name, healthy.name) == ("ranks-late1-1x64-pool1024", "ranks-healthy-1x64-pool1024")
    told, twin = (json.loads((folder / "ranks.json").read_bytes()) for folder in (late, healthy))
    assert (told["late_rank"], told["delay_us"], told["all_reduces_per_step"]) == (1, 200, 4)
    assert (twin["late_rank"], twin["delay_us"], twin["all_reduces_per_step"]) == (None, 0, 4)
    assert (told["twin"], twin["twin"], told["all_reduce_us"]) == (healthy.name, None, None)
    assert told["all_reduce_bytes"] == 2 * json.loads((late / "config.json").read_bytes())["hidden_size"]
    recording = told["recordings"]["eager"]
    assert len(recording["steps"]) == 2
    assert recording["steps_without"] == twin["recordings"]["eager"]["steps"]
    for folder, rank in product((late, healthy), range(2)):
        trace = events(folder / recording["traces"]["steps"][rank])
        ops = sorted((e for e in trace if e.get("cat") == "cpu_op"), key=_start)
        reduced = [op for op in ops if op["name"] == "c10d::allreduce_"]
        assert len(reduced) == ranks.STEPS * 4
        if folder == late and rank == 1:
            for op in reduced:
                before = max(other["ts"] + other["dur"] for other in ops if other["ts"] + other["dur"] <= op["ts"])
                assert op["ts"] - before >= 200


def _start(event: dict[str, Any]) -> float:
    return float(event["ts"])
