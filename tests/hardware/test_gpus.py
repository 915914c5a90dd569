from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from stepscope.errors import ExitCode, UsageError
from stepscope.hardware import FIGURES, Gpu, find_gpu, gpu_names, name_of

ROOT = Path(__file__).parents[2]
GPUS = ROOT / "src/stepscope/hardware/gpus"
ONLY_MEASURED = {field for field in FIGURES if "measured" in field} | {
    "collective_latency_us",
    "launch_latency_us",
    "graph_kernel_us",
}

CONTRACT = {
    *("h200", "h100", "h20", "b200", "a100-80g", "rtx-pro-6000"),
    *("rtx-5090", "rtx-4090", "l40s", "mi300x", "mi355x"),
}


DATASHEETS = {
    # name: memory in GB/s, then TFLOPS of bf16, fp8, fp4, dense with sums in fp32; None: no such unit
    "rtx-pro-6000": (1792, 504, 1008, 2015),
    "b200": (8000, 2250, 4500, 9000),
    "h200": (4800, 989, 1979, None),
    "h100": (3350, 989, 1979, None),
    "a100-80g": (2039, 312, None, None),
    "mi300x": (5300, 1307, 2615, None),
    "rtx-4090": (1008, 165, 330, None),
    "rtx-5090": (1792, 210, 419, 1676),
    "l40s": (864, 362, 733, None),
    "mi355x": (8000, 2500, 5000, 10000),
    "h20": (4000, 148, 296, None),
}
RECORDED = {
    "NVIDIA H200": "h200",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H20": "h20",
    "NVIDIA B200": "b200",
    "NVIDIA A100-SXM4-80GB": "a100-80g",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000",
    "NVIDIA GeForce RTX 5090": "rtx-5090",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA L40S": "l40s",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI355X": "mi355x",
}
"""What torch calls them."""
MEASURED = {
    "memory_measured_gb_per_s": "memory_gb_per_s",
    "memory_read_measured_gb_per_s": "memory_gb_per_s",
    "bf16_measured_tflops": "bf16_tflops",
    "fp8_measured_tflops": "fp8_tflops",
}
VARIANTS = ("NVIDIA H200 NVL", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H20-3e", "NVIDIA A100-SXM4-40GB")
"""GPUs with figures of their own, of which nothing is known here."""


def test_names_are_the_contracts() -> None:
    assert set(gpu_names()) == CONTRACT


@pytest.mark.parametrize("name", gpu_names())
def test_every_figure_says_where_it_comes_from(name: str) -> None:
    """Read as plain TOML: a figure is a value above 0 and a source that names a document or a measurement."""
    file = tomllib.loads((GPUS / f"{name}.toml").read_text(encoding="utf-8"))
    figures = {key: value for key, value in file.items() if key not in {"name", "recorded_names"}}
    assert {"memory_bytes", "memory_gb_per_s", "bf16_tflops", "link_gb_per_s"} <= set(figures)
    assert file["recorded_names"]
    for key, figure in figures.items():
        assert set(figure) == {"value", "source"}
        assert figure["value"] > 0
        words = ("datasheet", "data sheet", "architecture document", "architecture technical brief", "PCIe ")
        measured = ("torch", "NCCL")
        assert any(word in figure["source"] for word in (measured if key in ONLY_MEASURED else words))


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_is_in_the_documentation(name: str) -> None:
    assert f"| `{name}` |" in (ROOT / "docs/hardware.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("field", FIGURES)
def test_every_figure_is_in_the_documentation(field: str) -> None:
    assert f"| `{field}` |" in (ROOT / "docs/hardware.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DATASHEETS)
def test_the_datasheets_figures(name: str) -> None:
    gpu = find_gpu(name, None)
    assert gpu is not None
    figures = (gpu.memory_gb_per_s, gpu.bf16_tflops, gpu.fp8_tflops, gpu.fp4_tflops)
    assert tuple(figure and figure.value for figure in figures) == DATASHEETS[name]


@pytest.mark.parametrize("recorded", RECORDED)
def test_a_gpu_is_known_by_what_torch_calls_it(recorded: str) -> None:
    assert find_gpu(None, recorded) == find_gpu(RECORDED[recorded], None)
    assert name_of(recorded) == RECORDED[recorded]


@pytest.mark.parametrize("recorded", VARIANTS)
def test_a_variant_is_not_taken_for_its_sibling(recorded: str) -> None:
    assert find_gpu(None, recorded) == Gpu(recorded, [recorded])


@pytest.mark.parametrize("name", gpu_names())
def test_a_measured_rate_is_below_the_datasheets(name: str) -> None:
    gpu = find_gpu(name, None)
    assert gpu is not None
    for measured, peak in MEASURED.items():
        figure, limit = getattr(gpu, measured), getattr(gpu, peak)
        assert figure is None or figure.value < limit.value


def test_the_h200() -> None:
    gpu = find_gpu("h200", None)
    assert gpu is not None
    assert gpu.memory_gb_per_s is not None
    assert gpu.memory_measured_gb_per_s is not None
    assert (gpu.memory_gb_per_s.value, gpu.memory_measured_gb_per_s.value) == (4800, 4300)
    assert find_gpu(None, "NVIDIA H200") == gpu


def test_a_name_given_beats_the_recorded_one() -> None:
    assert find_gpu("rtx-pro-6000", "NVIDIA H200") == find_gpu("rtx-pro-6000", None)


def test_recorded_names_belong_to_one_gpu() -> None:
    recorded = [name for key in gpu_names() if (gpu := find_gpu(key, None)) for name in gpu.recorded_names]
    assert len(recorded) == len(set(recorded))


def test_an_unknown_recorded_name_is_kept_without_rates() -> None:
    gpu = find_gpu(None, "AMD Instinct MI999X")
    assert gpu is not None
    assert gpu.name == "AMD Instinct MI999X"
    assert gpu.memory_gb_per_s is None
    assert gpu.fp8_tflops is None


def test_no_name_at_all_is_no_gpu() -> None:
    assert find_gpu(None, None) is None


@pytest.mark.parametrize("name", ["h300", "", "NVIDIA H200", "../gpus/h200"])
def test_an_unknown_name_is_wrong_usage_and_says_which_are_known(name: str) -> None:
    with pytest.raises(UsageError, match=r"known are .*h200") as caught:
        find_gpu(name, "NVIDIA H200")
    assert caught.value.exit_code is ExitCode.WRONG_USAGE
