"""Real servers, each started once for the tests that ask for it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.servers.vllm_server import Server, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDED = {"torch_profiler_record_shapes": True, "torch_profiler_with_stack": True}


@pytest.fixture(autouse=True, scope="session")
def _ends_servers_when_terminated() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def vllm() -> Path:
    """The environment of vLLM."""
    environment = Path(os.environ.get("STEPSCOPE_SERVERS", ".servers")).absolute() / "vllm"
    if not (environment / "bin" / "vllm").exists():
        pytest.fail(f"{environment} holds no vLLM: `make test-servers` installs it")
    return environment


@pytest.fixture(scope="session")
def server(vllm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that records shapes and stacks."""
    with serving(vllm, tmp_path_factory.mktemp("server"), profiler=RECORDED) as running:
        yield running


@pytest.fixture
def mortal(vllm: Path, tmp_path: Path) -> Iterator[Server]:
    """Another one, to be killed."""
    with serving(vllm, tmp_path, profiler=RECORDED) as running:
        yield running


@pytest.fixture
def unprofiled(vllm: Path, tmp_path: Path) -> Iterator[Server]:
    """A server without a profiler."""
    with serving(vllm, tmp_path, profiler=None) as running:
        yield running
