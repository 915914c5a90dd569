"""`stepscope probe` on a real vLLM server, whose interpreter is not the one that stepscope runs in."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.processes import process
from tests.servers.install_vllm import TORCH, VERSION

if TYPE_CHECKING:
    from tests.servers.vllm_server import Server

pytestmark = pytest.mark.servers


def probed(target: str | Path) -> dict[str, Any]:
    answer = process("probe", target, "--format", "json")
    assert answer.returncode == 0, answer.stderr
    return dict(json.loads(answer.stdout))


def engine_of(server: Server) -> int:
    """The process that runs the engine; it has renamed itself, so that its command line tells nothing."""
    (engine,) = (pid for pid in server.processes() if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return engine


@pytest.mark.parametrize("asked", ["url", "pid", "engine", "python"])
def test_the_servers_own_interpreter_and_packages_are_found(server: Server, vllm: Path, asked: str) -> None:
    python = vllm / "bin" / "python"
    targets: dict[str, str | Path] = {
        "url": server.url,
        "pid": str(server.pid),
        "engine": str(engine_of(server)),
        "python": python,
    }
    found = probed(targets[asked])
    assert Path(found["server"]["python"]) == python
    assert Path(found["interpreter"]["prefix"]) == vllm
    versions = {package["name"]: package["version"] for package in found["packages"]}
    assert versions["vllm"] == f"{VERSION}+cpu"
    assert versions["torch"].partition("+")[0] == TORCH
    code = "import triton; print(triton.__version__)"
    told = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)  # noqa: S603 -- ours
    assert versions["triton"] == told.stdout.strip()
    assert found["gpus"] == []
    assert any("no GPU" in note for note in found["notes"])


def test_backends_are_judged_by_the_installed_source(server: Server, vllm: Path) -> None:
    found = {backend["name"]: backend for backend in probed(server.url)["backends"] if backend["engine"] == "vllm"}
    assert all(Path(backend["file"]).is_relative_to(vllm) for backend in found.values())
    # Read by hand in vLLM 0.32.0: Triton's lists FP8 types and keeps queries as they are; the CPU's lists neither.
    assert found["TRITON_MLA"]["fp8_kv"]["answer"] is True
    assert found["CPU_MLA"]["fp8_kv"]["answer"] is False


def test_nothing_runs_in_the_server(server: Server) -> None:
    before = server.processes()
    probed(server.url)
    assert server.processes() == before
    assert server.complete([16, 17, 18], 2) == 200
