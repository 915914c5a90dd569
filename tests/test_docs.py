"""The commands of the documents print what the documents say."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from stepscope import cli

REPOSITORY = Path(__file__).parents[1]
RECORDED = REPOSITORY.parent / "shared" / "traces"
_LEFT_OUT = re.compile(r"^ *\.\.\.\n", re.MULTILINE)
_EXAMPLE = re.compile(r"^```\n\$ (?P<command>stepscope .+)\n(?P<output>(?:.*\n)*?)```$", re.MULTILINE)
_BLOCK = re.compile(r"^```\n((?:.*\n)*?)```$", re.MULTILINE)

EXAMPLES = [found.groups() for found in _EXAMPLE.finditer((REPOSITORY / "docs" / "floor.md").read_text("utf-8"))]
SHOWN = [block for block in _BLOCK.findall((REPOSITORY / "README.md").read_text("utf-8")) if " → " in block]
"""What README shows of the output of commands: of the demo twice, and of a comparison."""
COMPARE = "stepscope compare graph-cast.json.gz graph-gather.json.gz --model glm-5 --tp 8"


def test_the_examples_are_found() -> None:
    assert len(EXAMPLES) == 3
    assert len(SHOWN) == 3


@pytest.mark.parametrize(("command", "output"), EXAMPLES, ids=["86 ms", "Q4_K", "trace"])
def test_an_example_prints_what_is_shown(
    command: str, output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--trace" in command:
        in_folder("sglang-h200", monkeypatch)
    assert_shows(printed_by(command, monkeypatch, capsys), output)


def test_the_demo_prints_what_the_readme_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_shows(printed_by("stepscope demo", monkeypatch, capsys), f"{SHOWN[0]}...\n{SHOWN[1]}")


def test_a_comparison_prints_what_the_readme_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_folder("h200-decode", monkeypatch)
    assert_shows(printed_by(COMPARE, monkeypatch, capsys), SHOWN[2])


def in_folder(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not RECORDED.is_dir():
        pytest.skip("the real traces are not beside the repository")
    monkeypatch.chdir(RECORDED / name)


def printed_by(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    for variable in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    assert cli.main() == 0
    return capsys.readouterr().out


def assert_shows(printed: str, output: str) -> None:
    """Assert that all parts of an output, with `...` between them, are printed in this order."""
    at = 0
    for shown in _LEFT_OUT.split(output):
        part = shown.removesuffix("\n")
        found = printed.find(part, at)
        assert found >= 0, f"not printed, or not in this order:\n{part}\n--- printed:\n{printed}"
        at = found + len(part)
