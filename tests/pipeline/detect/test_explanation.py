"""What a rule's docstring tells stands in its findings: the control, and the fixes where the work comes from."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from tests.decode_steps import Work, eager
from tests.kernel_names import ADD
from tests.stages import case_of

from stepscope.document import Confidence, Evidence, Fix
from stepscope.errors import UsageError
from stepscope.pipeline.attribute.stacks import Stack, StackFrame
from stepscope.pipeline.attribute.statement import Statement
from stepscope.pipeline.detect.checked import checked
from stepscope.pipeline.detect.explanation import control_of, fixes_of, title_of
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.registry import all_rules
from stepscope.pipeline.detect.rule import Case, Cause, Excluded, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

EXPLANATION = """Something is slow,
and the `GPU` waits.

## What it looks like
A gap.

## Control
Leave `it`
out.

## Fixes
- configuration: Set `--fast`, and
  `--faster` (v1.2, that is). Needs a restart; more memory.
- code: Do less. Or nothing.
"""
SET = Fix(what="Set --fast, and --faster (v1.2, that is)", kind="configuration", needs="a restart; more memory")
DO = Fix(what="Do less. Or nothing", kind="code")


def test_an_explanation_is_read_in_single_lines_without_marks() -> None:
    assert title_of(EXPLANATION) == "Something is slow, and the GPU waits"
    assert control_of(EXPLANATION) == "Leave it out."
    assert fixes_of(EXPLANATION) == (SET, DO)


def test_what_has_no_sections_has_no_control_and_no_fixes() -> None:
    assert (title_of("It is slow."), control_of("It is slow."), fixes_of("It is slow.")) == ("It is slow", "", ())


@pytest.mark.parametrize("item", ["- setting: Do it.", "- code: Do it", "- Do it."])
def test_a_fix_of_another_form_is_refused(item: str) -> None:
    with pytest.raises(ValueError, match="not a fix"):
        fixes_of(f"Slow.\n\n## Fixes\n{item}\n")


def told(*, origin: Origin | None = None, fixes: Sequence[Fix] | None = None) -> Cause:
    cause = Cause(
        title="t",
        confidence=Confidence.HIGH,
        notes=["seen"],
        time_us_per_step=1,
        evidence=Evidence(op="aten::mm"),
        change=None,
        origin=origin,
        fixes=fixes,
    )
    excluded = Excluded(1.0, 0.5, "none")

    def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Excluded]:  # noqa: ARG001 -- a rule's
        yield cause
        yield excluded

    said, other = checked(Rule("slow", EXPLANATION, check, needs=()), case_of(eager([[Work(ADD, 5)]] * 3)), {})
    assert other is excluded
    assert isinstance(said, Cause)
    return said


def test_a_cause_has_the_control_and_all_fixes_of_its_rule_or_those_that_it_names() -> None:
    assert (told().control, told().fixes) == ("Leave it out.", (SET, DO))
    assert told(fixes=[DO]).fixes == [DO]
    assert told(fixes=[]).fixes == []


@pytest.mark.parametrize(
    ("lines", "at", "notes"),
    [
        ((7,), "model.py:7", ["seen"]),
        ((7, 9), None, ["seen", "The call is on one of the lines 7, 9 of model.py."]),
    ],
)
def test_an_origin_tells_where_the_code_is_to_change(lines: tuple[int, ...], at: str | None, notes: list[str]) -> None:
    stack = Stack((StackFrame("model.py", 5, "forward"),), 0, None, modules=("Model_0",))
    cause = told(origin=Origin(stack, Statement("y = f(x)", "model.py", lines), frames=[], layers=[3, 4]))
    assert [fix.where for fix in cause.fixes or ()] == [None, "model.py:7"]
    assert cause.notes == notes
    evidence = cause.evidence
    assert (evidence.op, evidence.modules, evidence.layers) == ("aten::mm", ["Model_0"], [3, 4])
    assert (evidence.statement, evidence.statement_at) == ("y = f(x)" if at else None, at)


def test_without_docstrings_there_are_no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    class Flags:
        optimize = 2

    monkeypatch.setattr(sys, "flags", Flags)
    all_rules.cache_clear()
    with pytest.raises(UsageError, match="-OO"):
        all_rules()
