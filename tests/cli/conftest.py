"""What tests of commands share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from tests.samples_of_trouble import pool_cast

from stepscope import cli

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(name="run")
def run_fixture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process: its exit code, stdout and stderr."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["stepscope", *map(str, arguments)])
        capsys.readouterr()
        code = int(cli.main())
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(name="trace", scope="module")
def trace_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pool_cast().save(tmp_path_factory.mktemp("trace") / "trace.json.gz")
