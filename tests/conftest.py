"""What all tests share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from stepscope import cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True, scope="session")
def no_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whoever runs the tests may have calibrated a GPU; here the shipped figures hold, in child processes too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
        yield


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
