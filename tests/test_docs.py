"""The commands of the documents print what the documents say."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from stepscope import cli

REPOSITORY = Path(__file__).parents[1]
RECORDED = REPOSITORY.parent / "shared" / "traces" / "sglang-h200"
LEFT_OUT = "...\n"
_EXAMPLE = re.compile(r"^```\n\$ (?P<command>stepscope .+)\n(?P<output>(?:.*\n)*?)```$", re.MULTILINE)

EXAMPLES = [found.groups() for found in _EXAMPLE.finditer((REPOSITORY / "docs" / "floor.md").read_text("utf-8"))]


def test_the_examples_are_found() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize(("command", "output"), EXAMPLES, ids=["86 ms", "Q4_K", "trace"])
def test_an_example_prints_what_is_shown(
    command: str, output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--trace" in command:
        if not RECORDED.is_dir():
            pytest.skip("the real traces are not beside the repository")
        monkeypatch.chdir(RECORDED)
    for variable in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    assert cli.main() == 0
    printed = capsys.readouterr().out
    at = 0
    for shown in re.split(rf"^{re.escape(LEFT_OUT)}", output, flags=re.MULTILINE):
        found = printed.find(shown, at)
        assert found >= 0, f"not printed, or not in this order:\n{shown}\n--- printed:\n{printed}"
        at = found + len(shown)
