"""`stepscope lab`."""

from __future__ import annotations

import json
import sys
from importlib import util
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

TINY = ("--model", "tiny", "--layers", "2", "--tp-slice", "2", "--device", "cpu")


@pytest.mark.parametrize(
    "command", [("run",), ("record", "--output", "x", "--all"), ("ranks", "--output", "x"), ("prove", "x")]
)
def test_without_torch_it_says_what_installs_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    module = sys.modules["stepscope.cli.lab"]  # the package's attribute of that name is the command
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "torch" else util.find_spec(name))
    code, out, error = run("lab", *command)
    assert (code, out) == (4, "")
    assert error == f"stepscope: lab {command[0]} needs torch: pip install 'stepscope[gpu]'\n"


def test_run_reports_in_every_format(run: Run) -> None:
    pytest.importorskip("torch")
    options = (*TINY, "--batch", "2", "--context", "40", "--context", "9", "--pool-slots", "512", "--slowdown", "fills")
    code, text, _ = run("lab", "run", *options)
    assert code == 0
    assert "tokens/s" in text
    _, markdown, _ = run("lab", "run", *options, "--format", "markdown")
    assert markdown.startswith("| what | measured |\n")
    _, document, _ = run("lab", "run", *options, "--format", "json")
    told = json.loads(document)
    assert told["config"]["contexts"] == [40, 9]
    assert told["config"]["slowdown"] == "fills"
    assert told["memory_bytes"] is None
    assert told["tokens_per_s"] == pytest.approx(2e6 / told["step"]["median_us"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("run", "--slowdown", "none"), "--slowdown none: known are allocator-churn"),
        (("run", "--batch", "3", "--context", "5", "--context", "6"), "--context was given 2 times for a batch of 3"),
        (("record", "--output", "x"), "lab record takes --slowdown NAME or --all"),
        (("record", "--output", "x", "--all", "--slowdown", "fills"), "lab record takes --slowdown NAME or --all"),
        (("record", "--output", "x", "--slowdown", "none"), "--slowdown none: known are allocator-churn"),
    ],
)
def test_wrong_usage_is_one_sentence(run: Run, options: tuple[str, ...], sentence: str) -> None:
    pytest.importorskip("torch")
    code, out, error = run("lab", *options, *TINY)
    assert (code, out) == (2, "")
    assert error.startswith(f"stepscope: {sentence}")


def test_prove_refuses_a_folder_without_cases(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code, _, error = run("lab", "prove", tmp_path)
    assert code == 3
    assert "holds no case that the laboratory recorded" in error
