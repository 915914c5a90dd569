"""The entry point answers an interrupt from its first moment on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stepscope.__main__ import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


class Interrupts:
    """A finder of modules that is interrupted when it looks for one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:  # noqa: ARG002 -- importlib's signature
        if name == self._name:
            raise KeyboardInterrupt


def test_an_interrupt_while_the_command_line_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name == "stepscope.cli" or name.startswith("stepscope.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Interrupts("stepscope.cli"), *sys.meta_path])
    assert run() == 130
    assert capsys.readouterr() == ("", "stepscope: interrupted\n")


def test_otherwise_it_is_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["stepscope", "rules", "--format", "json"])
    assert run() == 0
    assert '"kv-pool-cast"' in capsys.readouterr().out
