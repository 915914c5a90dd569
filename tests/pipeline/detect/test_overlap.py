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


def cause(case: Case, names: Collection[str], us: float = 1.0, *, factor: float = 0.0, is_idle: bool = False) -> Cause:
    rows = np.isin(case.linked.kernels["name"].cast(str).to_list(), list(names))
    return Cause(
        title="t",
        confidence=Confidence.HIGH,
        time_us_per_step=us,
        evidence=Evidence(),
        change=Change.scaled(rows, factor) if factor else Change(rows),
        assumption="a",
        control="c",
        is_idle=is_idle,
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


def test_two_causes_that_shorten_the_same_work_both_hold() -> None:
    """A step of padded rows, whose multiplications (b) are slow besides: 50 × 0.5 × 0.6 once both are fixed."""
    built = case()
    causes = {"padding": cause(built, "abc", factor=0.5), "slow": cause(built, "b", factor=0.6)}
    assert set(explained(built, causes, {"slow"})) == {"padding", "slow"}
    without = [found.change for found in explained(built, causes, {"slow"}).values() if found.change is not None]
    left = built.timeline.replay(built.step_indices, without[0] | without[1])
    assert np.median(left.busy_us) == 50 + 50 * 0.5 * 0.6 + 5


def test_what_another_cause_shortens_to_next_to_nothing_is_a_part_of_it() -> None:
    built = case()
    for factor, kept in ((0.09, ["wide"]), (0.11, ["narrow", "wide"])):
        causes = {"wide": cause(built, "ab", factor=factor), "narrow": cause(built, "b", factor=0.5)}
        assert sorted(explained(built, causes, ())) == kept


def test_work_that_is_gone_is_no_longer_shortened() -> None:
    built = case()
    causes = {"gone": cause(built, "ab"), "slow": cause(built, "b", factor=0.5)}
    assert list(explained(built, causes, ())) == ["gone"]


def test_a_rule_that_is_special_is_no_part_of_a_general_one_on_the_same_work() -> None:
    built = case()
    causes = {"special": cause(built, "b", factor=0.5), "general": cause(built, "b", factor=0.01)}
    assert set(explained(built, causes, {"general"})) == {"special", "general"}


def test_idle_time_is_no_part_of_work_though_it_takes_some_out() -> None:
    """The reduction whose result a wait is for may be of a chain of small kernels; the wait is not."""
    built = case()
    causes = {"chain": cause(built, "bc"), "wait": cause(built, "c", is_idle=True)}
    assert set(explained(built, causes, ())) == {"chain", "wait"}


def test_a_host_that_launches_too_slowly_is_of_no_work() -> None:
    built = case()
    nothing = np.zeros(built.linked.kernels.height, dtype=np.bool_)
    host = replace(cause(built, ""), change=Change(nothing, launches_free=True))
    causes = {"launch-bound": host, "a": cause(built, "a"), "b": cause(built, "b", factor=0.5)}
    assert set(explained(built, causes, ())) == set(causes)


def test_parts_of_one_kernels_time_that_two_causes_take_add_up() -> None:
    """Of a collective (a, 100) 60 are waiting and 30 a transfer that is slow: 10 are left, and of b 0.5 × (50 - 20)."""
    built = case()
    name = built.linked.kernels["name"].cast(str).to_numpy()
    wait, transfer = (Change.shorter(np.where(name == "a", us * 1e3, 0.0)) for us in (60, 30))
    other = Change.scaled(name == "b", 0.5) | Change.shorter(np.where(name == "b", 20e3, 0.0))
    causes = {
        rule: replace(cause(built, "a"), change=change) for rule, change in (("wait", wait), ("transfer", transfer))
    }
    assert set(explained(built, causes, ())) == {"wait", "transfer"}
    left = built.timeline.replay(built.step_indices, wait | transfer | other)
    assert np.median(left.busy_us) == 10 + 15 + 10
    assert (wait | transfer).touched.tolist() == (name == "a").tolist()
