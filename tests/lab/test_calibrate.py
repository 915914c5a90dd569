"""The whole calibration: on the CPU with the parts of a GPU put in, and what happens where there is none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from stepscope.document import Calibration, Measurement, NotMeasured
from stepscope.errors import DeviceError, ExitCode
from stepscope.hardware import find_gpu
from stepscope.lab import calibrate as module
from stepscope.lab.calibrate import Sizes, calibrate, keep, measure
from stepscope.lab.ceilings import Bench
from stepscope.paged_mla.bench.timing import Timing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SMALL = Sizes(tensor_bytes=1 << 16, matrix=64, launches=4, graph_kernels=5)


def time_call(call: Callable[[], object]) -> Timing:
    call()
    return Timing(2.0, 0.1)


def time_graph(call: Callable[[int], object], count: int) -> Timing:
    for number in range(count):
        call(number)
    return Timing(2.0, 0.1)


BENCH = Bench(torch.device("cpu"), time_call, time_graph, launch=lambda: None, synchronize=lambda: None)


def found(*measured: Measurement, device: str = "NVIDIA H200", gpu: str = "h200") -> Calibration:
    return Calibration(
        gpu=gpu,
        device=device,
        date="2026-01-31",
        torch="2.11.0",
        runtime="CUDA 13.0",
        driver="580.1",
        clocks=None,
        measured=list(measured),
        not_measured=[],
        kept_in="",
    )


def measured(name: str, value: float) -> Measurement:
    return Measurement(name=name, value=value, spread=0.1, datasheet=None, how="a copy")


@pytest.fixture(name="settings")
def settings_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "stepscope" / "gpus"


def test_every_ceiling_is_measured_and_says_how() -> None:
    steps = list(measure(SMALL, BENCH))
    assert [step.name for step in steps] == [
        "memory_measured_gb_per_s",
        "memory_read_measured_gb_per_s",
        "bf16_measured_tflops",
        "fp8_measured_tflops",
        "launch_latency_us",
        "graph_kernel_us",
    ]
    assert all(isinstance(step, Measurement) and step.how for step in steps)
    first = steps[0]
    assert isinstance(first, Measurement)
    assert first.value == pytest.approx(65.536)  # 2 × 65,536 bytes in 2 µs
    assert "6.1e-05 GiB" in first.how


def test_what_a_gpu_cannot_do_is_said_and_the_rest_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_scaled_mm")
    gaps = [step for step in measure(SMALL, BENCH) if isinstance(step, NotMeasured)]
    assert [gap.name for gap in gaps] == ["fp8_measured_tflops"]
    assert "_scaled_mm" in gaps[0].reason


@pytest.mark.parametrize(("free", "tensor"), [(140 << 30, 4 << 30), (8 << 30, 2 << 30)])
def test_tensors_fit_into_what_is_free(free: int, tensor: int) -> None:
    assert Sizes().fitting(free).tensor_bytes == tensor


@pytest.mark.usefixtures("settings")
def test_what_was_measured_is_used_from_then_on() -> None:
    before = find_gpu("h200", None)
    keep(found(measured("memory_measured_gb_per_s", 4234.567), measured("graph_kernel_us", 1.25)))
    gpu = find_gpu(None, "NVIDIA H200")
    assert gpu is not None
    assert before is not None
    assert gpu.memory_measured_gb_per_s is not None
    assert gpu.memory_measured_gb_per_s.value == 4235  # four digits
    source = gpu.memory_measured_gb_per_s.source
    assert all(part in source for part in ("2026-01-31", "torch 2.11.0", "driver 580.1", "a copy", "0.1 apart"))
    assert gpu.memory_gb_per_s == before.memory_gb_per_s
    assert gpu.bf16_measured_tflops == before.bf16_measured_tflops
    assert gpu.name == before.name


@pytest.mark.usefixtures("settings")
def test_a_later_calibration_keeps_what_it_did_not_measure() -> None:
    keep(found(measured("memory_measured_gb_per_s", 1.0), measured("fp8_measured_tflops", 2.0)))
    keep(found(measured("memory_measured_gb_per_s", 3.0)))
    gpu = find_gpu("h200", None)
    assert gpu is not None
    assert gpu.memory_measured_gb_per_s is not None
    assert gpu.fp8_measured_tflops is not None
    assert (gpu.memory_measured_gb_per_s.value, gpu.fp8_measured_tflops.value) == (3.0, 2.0)


class FakeCuda:
    """The parts of torch.cuda that a calibration asks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.uuid = None

    def put_into(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: self)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1 << 18, 1 << 18))
        monkeypatch.setattr(module, "Bench", lambda *_: BENCH)
        monkeypatch.setattr(module, "driver_and_clocks", lambda *_: ("580.1", None))
        monkeypatch.setattr(module, "_load", lambda _: lambda: None)
        monkeypatch.setattr(module, "Sizes", lambda: SMALL)


def test_the_command_measures_keeps_and_prints(
    settings: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., tuple[int, str, str]]
) -> None:
    FakeCuda("NVIDIA H200").put_into(monkeypatch)
    code, out, err = run("calibrate", "--format", "json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["gpu"] == "h200"
    assert document["kept_in"] == str(settings / "h200.toml")
    copy = document["measured"][0]
    assert (copy["value"], copy["datasheet"]) == (pytest.approx(65.536), 4800)
    gpu = find_gpu("h200", None)
    assert gpu is not None
    assert gpu.memory_measured_gb_per_s is not None
    assert gpu.memory_measured_gb_per_s.value == 65.54


@pytest.mark.parametrize("report_format", ["terminal", "markdown"])
@pytest.mark.usefixtures("settings")
def test_the_report_names_what_was_measured(
    report_format: str, monkeypatch: pytest.MonkeyPatch, run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    FakeCuda("NVIDIA H200").put_into(monkeypatch)
    monkeypatch.delattr(torch, "_scaled_mm")
    path = tmp_path / "report"
    assert run("calibrate", "--format", report_format, "--output", path) == (0, "", "")
    text = path.read_text().replace("\n", "")
    for part in ("NVIDIA H200", "66 GB/s", "5%", "1.4%", "not measured: matmul FP8", "2.0 µs", "h200.toml"):
        assert part in text


@pytest.mark.usefixtures("settings")
def test_an_unknown_gpu_gets_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda("Moore Threads MTT S5000 (x)").put_into(monkeypatch)
    assert calibrate().gpu == "moore-threads-mtt-s5000-x"
    gpu = find_gpu("moore-threads-mtt-s5000-x", None)
    assert gpu is not None
    assert gpu == find_gpu(None, "Moore Threads MTT S5000 (x)")
    assert gpu.memory_gb_per_s is None
    assert gpu.memory_measured_gb_per_s is not None


def test_a_device_that_fails_is_one_sentence(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda("NVIDIA H200").put_into(monkeypatch)

    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    with pytest.raises(DeviceError, match=r"^calibrate: the GPU failed \(CUDA error: out of memory\)$"):
        calibrate()
    assert list(settings.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_exits_with_5(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = run("calibrate")
    assert (code, out) == (ExitCode.REMOTE_FAILURE, "")
    assert err.startswith("stepscope: calibrate: torch finds no GPU here")


def test_settings_are_checked_before_anything_is_measured(
    settings: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., tuple[int, str, str]]
) -> None:
    FakeCuda("NVIDIA H200").put_into(monkeypatch)
    monkeypatch.setattr(module, "measure", lambda *_: pytest.fail("measured"))
    settings.parent.mkdir(parents=True)
    settings.write_text("a file where the folder should be")
    code, out, err = run("calibrate")
    assert (code, out) == (2, "")
    assert str(settings) in err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("settings")
def test_a_real_gpu_stays_below_its_datasheet() -> None:
    for one in calibrate().measured:
        assert one.spread < one.value
        assert one.datasheet is None or one.value < one.datasheet
