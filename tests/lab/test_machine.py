"""What nvidia-smi says, and says not; a script of our own stands for it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from stepscope.document import Clocks
from stepscope.lab import machine
from stepscope.lab.machine import driver_and_clocks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a script stands for nvidia-smi")


@pytest.fixture(name="nvidia_smi")
def nvidia_smi_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    monkeypatch.setattr(machine, "_SETTLING_S", 0.0)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def install(script: str) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return install


def test_driver_and_clocks_are_read(nvidia_smi: Callable[[str], None], tmp_path: Path) -> None:
    nvidia_smi(f'echo "$@" > {tmp_path}/asked; echo "580.159.04, 1500, 3201, 684.53, 53"')
    driver, clocks = driver_and_clocks("GPU-12ab", lambda: None)
    assert driver == "580.159.04"
    assert clocks == Clocks(sm_mhz=1500, memory_mhz=3201, power_w=684.53, temperature_c=53)
    assert "-i GPU-12ab" in (tmp_path / "asked").read_text()


def test_what_a_gpu_does_not_tell_is_none(nvidia_smi: Callable[[str], None]) -> None:
    nvidia_smi('echo "580.1, 1500, [N/A], [Not Supported], 53"')
    clocks = driver_and_clocks(None, lambda: None)[1]
    assert clocks == Clocks(sm_mhz=1500, memory_mhz=None, power_w=None, temperature_c=53)


@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'", "exit 0", "echo '1, 2, 3, 4, 5'; exit 3"])
def test_an_answer_of_another_kind_is_none(script: str, nvidia_smi: Callable[[str], None]) -> None:
    nvidia_smi(script)
    assert driver_and_clocks(None, lambda: None) == (None, None)


@pytest.mark.usefixtures("nvidia_smi")
def test_without_nvidia_smi_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert driver_and_clocks(None, lambda: None) == (None, None)


def test_the_gpu_works_until_the_answer_is_there(nvidia_smi: Callable[[str], None], tmp_path: Path) -> None:
    nvidia_smi(f"while [ ! -e {tmp_path}/worked ]; do sleep 0.01; done; echo '1, 2, 3, 4, 5'")
    assert driver_and_clocks(None, (tmp_path / "worked").touch)[0] == "1"


def test_one_that_hangs_is_stopped(nvidia_smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi("exec sleep 60")
    monkeypatch.setattr(machine, "_PATIENCE_S", 0.2)
    assert driver_and_clocks(None, lambda: time.sleep(0.01)) == (None, None)
