from __future__ import annotations

import pytest

from stepscope.errors import ExitCode, UsageError
from stepscope.hardware import Figure, find_gpu, gpu_names

CONTRACT = {
    *("h200", "h100", "h20", "b200", "a100-80g", "rtx-pro-6000"),
    *("rtx-5090", "rtx-4090", "l40s", "mi300x", "mi355x"),
}


def test_names_are_the_contracts() -> None:
    assert {"h200", "rtx-pro-6000"} <= set(gpu_names()) <= CONTRACT


@pytest.mark.parametrize("name", gpu_names())
def test_every_figure_is_positive_and_says_where_it_comes_from(name: str) -> None:
    gpu = find_gpu(name, None)
    assert gpu is not None
    figures = [value for field in gpu.__struct_fields__ if isinstance(value := getattr(gpu, field), Figure)]
    assert figures
    assert all(figure.value > 0 and len(figure.source) > 10 for figure in figures)
    assert gpu.recorded_names


@pytest.mark.parametrize("name", gpu_names())
def test_a_measured_rate_is_below_the_datasheets(name: str) -> None:
    gpu = find_gpu(name, None)
    assert gpu is not None
    if gpu.memory_measured_gb_per_s and gpu.memory_gb_per_s:
        assert gpu.memory_measured_gb_per_s.value < gpu.memory_gb_per_s.value


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
