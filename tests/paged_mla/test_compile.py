from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepscope.paged_mla.hopper.compile import CompilerUnavailableError, compile_cubin, nvrtc
from stepscope.paged_mla.hopper.decode import merge_shape, split_defines, split_shared_bytes
from stepscope.paged_mla.launch_table import SHARED_LIMIT, TABLE, Launch

SM_SHARED = 233_472  # bytes of shared memory in one SM of sm_90, of which each block has 1,024 reserved
SM_REGISTERS = 65_536


def hopper_launches() -> list[Launch]:
    return [row.launch for row in TABLE if row.launch.kernel != "triton"]


@pytest.fixture(scope="module")
def compiled() -> list[dict[str, Any]]:
    # Its own process: kernels imported under Triton's interpreter cannot be compiled.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compile_ahead.py")
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_triton_launch_compiles_for_its_chip(compiled: list[dict[str, Any]]) -> None:
    expected = {(row.chip, row.form) for row in TABLE if row.launch.kernel == "triton"} | {(90, "e4m3")}
    assert {(one["chip"], one["form"]) for one in compiled if one["kernel"] == "split"} == expected
    assert {one["chip"] for one in compiled} == {80, 89, 90, 100, 120}
    kernels = {"split", "merge", "plan", "cast", "gather_cast"}
    assert all({one["kernel"] for one in compiled if one["chip"] == chip} == kernels for chip in SHARED_LIMIT)


def test_shared_memory_is_within_each_chips_limit(compiled: list[dict[str, Any]]) -> None:
    for one in compiled:
        assert 0 <= one["shared"] <= SHARED_LIMIT[one["chip"]], one


@pytest.mark.parametrize("launch", hopper_launches(), ids=lambda v: f"{v.kernel}{v.heads}x{v.blocks_per_sm}")
def test_hopper_blocks_fit_together_on_one_sm(launch: Launch) -> None:
    shared = split_shared_bytes(launch)
    assert shared <= SHARED_LIMIT[90]
    assert (shared + 1024) * launch.blocks_per_sm <= SM_SHARED


@pytest.mark.parametrize("launch", hopper_launches(), ids=lambda v: f"{v.kernel}{v.heads}x{v.blocks_per_sm}")
def test_hopper_kernels_compile_without_local_memory(launch: Launch) -> None:
    try:
        nvrtc()
    except CompilerUnavailableError:
        pytest.skip("no NVRTC here (package nvidia-cuda-nvrtc)")
    cubin = compile_cubin(f"split_{launch.kernel}", **dict(split_defines(launch)))
    assert cubin[:4] == b"\x7fELF"
    usage = resource_usage(cubin)
    assert usage["LOCAL"] == 0
    assert usage["STACK"] <= 8  # one register at most, outside the loop
    assert usage["REG"] * launch.warps * 32 * launch.blocks_per_sm <= SM_REGISTERS


def resource_usage(cubin: bytes) -> dict[str, int]:
    triton = pytest.importorskip("triton")
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        pytest.skip("this Triton brings no cuobjdump")
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"stepscope-{os.getpid()}.cubin"  # noqa: S108 - removed below
    path.write_bytes(cubin)
    try:
        text = subprocess.run(  # noqa: S603 - Triton's own tool
            [str(tool), "-res-usage", str(path)], capture_output=True, text=True, check=True
        )
    finally:
        path.unlink()
    line = next(one for one in (text.stdout + text.stderr).splitlines() if "REG:" in one)
    return {key: int(value) for key, value in (pair.split(":") for pair in line.split() if pair.count(":") == 1)}


@pytest.mark.parametrize("shape", [(1, 8, 132), (16, 8, 264), (64, 128, 66), (4096, 1, 132)])
def test_merge_compiles_and_covers_a_row(shape: tuple[int, int, int]) -> None:
    lanes, groups, in_flight = merge_shape(*shape)
    assert 512 % (lanes * 4) == 0
    assert lanes * groups <= 512
    try:
        assert compile_cubin("merge", BATCH=in_flight)[:4] == b"\x7fELF"
    except CompilerUnavailableError:
        pytest.skip("no NVRTC here (package nvidia-cuda-nvrtc)")
