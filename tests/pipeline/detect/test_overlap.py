"""Work that several rules found is reported once, by the rule that explains more of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from tests.kineto import Kineto
from tests.stages import case_of

from stepscope.document import Confidence, Evidence
from stepscope.pipeline.detect.overlap import explained
from stepscope.pipeline.detect.rule import Case, Cause
from stepscope.pipeline.whatif import Change

if TYPE_CHECKING:
    from collections.abc import Collection


def case() -> Case:
    """Two steps of a (100), b (50) and c (10)."""
    trace = Kineto()
    for begin in (0, 20):
        trace.annotation("step[DECODE bs=1]", begin, 19)
        for index, (name, us) in enumerate((("a", 100), ("b", 50), ("c", 10))):
            trace.call(name, at=begin + 5 * index, duration=us)
    return case_of(trace)


def cause(case: Case, names: Collection[str], us: float = 1.0) -> Cause:
    rows = np.isin(case.linked.kernels["name"].cast(str).to_list(), list(names))
    return Cause(
        title="t",
        confidence=Confidence.HIGH,
        time_us_per_step=us,
        evidence=Evidence(),
        change=Change(rows),
        assumption="a",
        control="c",
    )


def test_a_cause_within_another_is_named_as_its_part() -> None:
    built = case()
    kept = explained(built, {"wide": cause(built, "ab"), "narrow": cause(built, "b", us=50)}, ())
    assert list(kept) == ["wide"]
    assert kept["wide"].notes == ["Part of it is what narrow finds: 50.0 µs a step."]


def test_causes_that_share_little_stay_apart() -> None:
    built = case()
    assert set(explained(built, {"one": cause(built, "ac"), "other": cause(built, "bc")}, ())) == {"one", "other"}


def test_only_the_steps_that_are_judged_are_compared() -> None:
    built = replace(case(), step_indices=[1])
    both, judged = cause(built, "b"), np.isin(built.steps.step_of_kernel, [1])
    wide = cause(built, "ab")
    assert wide.change
    in_one = replace(wide, change=Change(wide.change.removed & judged))
    assert list(explained(built, {"wide": in_one, "narrow": both}, ())) == ["wide"]


def test_of_the_same_work_the_rule_that_is_not_general_speaks() -> None:
    built = case()
    for general, kept in ({"x"}, "y"), ({"y"}, "x"):
        assert list(explained(built, {"x": cause(built, "ab"), "y": cause(built, "ab")}, general)) == [kept]


def test_a_cause_that_touches_no_kernel_is_part_of_nothing() -> None:
    built = case()
    assert set(explained(built, {"host": cause(built, ""), "a": cause(built, "a")}, ())) == {"host", "a"}
