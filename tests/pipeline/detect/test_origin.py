"""Where a cast comes from: its frames, its statement, or both lines where two cannot be told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.answers import finding
from tests.examples.kv_pool_cast import BF16, FP8, POOL
from tests.kernel_names import ADD, FP8_WRITE, TO_BF16
from tests.kineto import Kineto
from tests.stages import diagnosed

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
    assert (cast.evidence.statement, cast.evidence.statement_at) == (None, None)
    assert [fix.where for fix in cast.fix if fix.kind == "code"] == ["app/model.py:5"] * 2


def test_a_source_that_has_changed_since_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("# a line more\n# and another\n# and a third\n" + SOURCE)
    cast = found(recorded(buffer=True), tmp_path)
    assert (cast.evidence.statement, cast.evidence.statement_at) == (None, None)


def test_two_lines_that_cannot_be_told_apart_are_both_said(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(TWICE)
    cast = found(recorded(buffer=False), tmp_path)
    assert (cast.evidence.statement, cast.evidence.statement_at) == (None, None)
    assert any("one of the lines 7, 9 of app/model.py" in note for note in cast.notes)
