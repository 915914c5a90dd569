"""Where a cast comes from: its frames, its statement, or both lines where two cannot be told apart."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import pytest
from tests.answers import finding
from tests.examples.kv_pool_cast import BF16, FP8, POOL
from tests.kernel_names import ADD, FP8_WRITE, TO_BF16
from tests.kineto import Kineto
from tests.stages import diagnosed

from stepscope.report import Format, draw

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.document import Finding

SOURCE = """\
import torch


class Attention:
    def forward_decode(self, q, pool, layer):
        keys = pool.get_key_buffer(layer).to(q.dtype)
        return self.attend(q, keys)
"""
TWICE = """\
import torch


class Attention:
    def forward_decode(self, keys, other):
        if self.is_ragged:
            keys = keys.to(torch.bfloat16)
        else:
            keys = other.to(torch.bfloat16)
        return keys
"""


def recorded(*, buffer: bool) -> Kineto:
    """Three steps of 78 layers in which `forward_decode` casts the pool, with the stacks around it."""
    trace = Kineto()
    at = 10.0
    for _ in range(3):
        begin = at
        for _ in range(78):
            trace.frame("app/server.py(7): step", at, 29)
            trace.frame("app/model.py(5): forward_decode", at + 1, 27)
            if buffer:
                trace.frame("app/pool.py(3): get_key_buffer", at + 2, 1)
            trace.frame("<built-in method to of Tensor object at 0x7f0>", at + 4, 9)
            trace.call(
                TO_BF16, at=at + 6, duration=100, op="aten::copy_", dims=[POOL, POOL, []], types=[BF16, FP8, "Scalar"]
            )
            trace.call(ADD, at=at + 14, duration=5)
            trace.call(FP8_WRITE, at=at + 20, duration=2)
            at += 30
        trace.annotation("step[DECODE bs=1]", begin, at - begin - 1)
    return trace


def found(trace: Kineto, folder: Path) -> Finding:
    return finding(diagnosed(trace, sources=[folder]), "kv-pool-cast")


def missing(trace: Kineto, folder: Path) -> str:
    """Return what is said of the line of code that could not be found."""
    unchecked = diagnosed(trace, sources=[folder], context=1024).could_not_check
    (row,) = (row for row in unchecked if row.rule == "kv-pool-cast")
    return row.missing


def test_frames_statement_and_place(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    cast = found(recorded(buffer=True), tmp_path)
    assert [(frame.file, frame.line, frame.function) for frame in cast.evidence.frames] == [
        ("app/server.py", 7, "step"),
        ("app/model.py", 5, "forward_decode"),
    ]
    assert cast.evidence.statement == "keys = pool.get_key_buffer(layer).to(q.dtype)"
    assert cast.evidence.statement_at == "app/model.py:6"
    assert [fix.where for fix in cast.fix if fix.kind == "code"] == ["app/model.py:6"] * 2


def test_without_its_source_the_innermost_function_is_the_place(tmp_path: Path) -> None:
    cast = found(recorded(buffer=True), tmp_path)
    assert missing(recorded(buffer=True), tmp_path) == "which statement it comes from: app/model.py was not found"
    assert (cast.evidence.statement, cast.evidence.statement_at) == (None, None)
    assert [fix.where for fix in cast.fix if fix.kind == "code"] == ["app/model.py:5"] * 2


def test_a_source_that_has_changed_since_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("# a line more\n# and another\n# and a third\n" + SOURCE)
    cast = found(recorded(buffer=True), tmp_path)
    assert missing(recorded(buffer=True), tmp_path) == (
        "which statement it comes from: app/model.py has changed since, or is another version: no function"
        " forward_decode is on line 5 (it begins on line 8)"
    )
    assert (cast.evidence.statement, cast.evidence.statement_at) == (None, None)


def test_two_lines_that_cannot_be_told_apart_are_both_said(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(TWICE)
    cast = found(recorded(buffer=False), tmp_path)
    assert (cast.evidence.statement, cast.evidence.statement_at) == (None, None)
    assert any("one of the lines 7, 9 of app/model.py" in note for note in cast.notes)


def test_a_call_that_the_source_does_not_make_is_said(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SOURCE.replace(".to(q.dtype)", ""))
    assert missing(recorded(buffer=True), tmp_path) == (
        "which statement it comes from: forward_decode in app/model.py holds no call that can have been recorded as to"
    )


def test_without_stacks_it_is_said_that_there_are_none(tmp_path: Path) -> None:
    trace = recorded(buffer=True)
    trace.events = [event for event in trace.events if event["cat"] != "python_function"]
    cast = found(trace, tmp_path)
    assert missing(trace, tmp_path) == "which line of code it comes from: no Python stacks around it"
    assert (cast.evidence.frames, cast.evidence.modules, cast.evidence.layers) == ([], [], [])
    assert {fix.where for fix in cast.fix} == {None}


def test_modules_and_layers_are_evidence(tmp_path: Path) -> None:
    trace = recorded(buffer=True)
    steps = [event for event in trace.events if event["name"] == "app/server.py(7): step"]
    for number, event in enumerate(steps):
        trace.frame(f"nn.Module: Layer_{number % 78}", event["ts"] + 0.25, event["dur"] - 0.5)
    evidence = found(trace, tmp_path).evidence
    assert (evidence.modules, evidence.layers) == (["Layer_0"], list(range(78)))


def test_a_cast_within_torch_is_placed_in_your_code(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    trace = recorded(buffer=True)
    casts = [event for event in trace.events if event["name"].startswith("<built-in method to")]
    for event in casts:
        event["name"] = "torch/_tensor.py(100): to"
    cast = found(trace, tmp_path)
    assert [(frame.function, frame.yours) for frame in cast.evidence.frames] == [
        ("step", True),
        ("forward_decode", True),
        ("to", False),
    ]
    assert cast.evidence.statement_at == "app/model.py:6"


def code_shown(source: str, folder: Path) -> str:
    """Return what the terminal's report says of the code."""
    (folder / "model.py").write_text(source)
    text = StringIO()
    draw(diagnosed(recorded(buffer=True), sources=[folder]), Format.TERMINAL, text)
    said = " ".join(text.getvalue().split())
    return said[said.index(" code app/") : said.index(" stack app/")]


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("keys =", "keys =", ": keys = pool.get_key_buffer(layer).to(q.dtype)"),
        (".to(q.dtype)", ".to(\n            q.dtype\n        )", ": keys = pool.get_key_buffer(layer).to( q.dtype )"),
        (  # which of the two it is cannot be told, but the line can
            "keys = pool.get_key_buffer(layer).to(q.dtype)",
            "keys = pool.get_key_buffer(layer); keys = self.a or keys.to(1); self.b or keys.to(2)",
            "",
        ),
    ],
)
def test_a_statement_is_shown_in_one_line_with_its_place(old: str, new: str, shown: str, tmp_path: Path) -> None:
    assert code_shown(SOURCE.replace(old, new), tmp_path) == f" code app/model.py:6{shown}"


def test_each_failed_look_up_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("#" * (2 << 20))
    trace = recorded(buffer=True)
    (row,) = (
        row
        for row in diagnosed(trace, sources=[tmp_path], context=1024).could_not_check
        if row.missing.startswith("which statement")
    )
    assert row.missing == "which statement it comes from: app/model.py is larger than 1 MB, too large to be parsed"
    assert row.how_to_capture.startswith("read that function")
