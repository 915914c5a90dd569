"""Causes to findings: severity, order, what hides what, and what is folded away."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.decode_steps import STEP, Work, copied, eager
from tests.examples.fill_in_step import FILL
from tests.kernel_names import ADD, ATTENTION, GEMM, TO_BF16
from tests.kineto import Kineto
from tests.published_cases import launched_one_by_one
from tests.stages import case_of, diagnosed

from stepscope import units
from stepscope.document import Confidence, Evidence, Finding, Fix, Range, Severity, WhatIf
from stepscope.pipeline.detect import detect
from stepscope.pipeline.detect.findings import findings_of, in_order, predicted_range, severity_of_gain
from stepscope.pipeline.detect.rule import Cause
from stepscope.pipeline.whatif import Change
from stepscope.report import Format, draw
from stepscope.report.sentences import is_folded

if TYPE_CHECKING:
    from stepscope.pipeline.detect.rule import Case


def cause(case: Case, kernel: str | None = None, *, launches_free: bool = False, time_us: float = 0.0) -> Cause:
    names = case.linked.kernels["name"].cast(str).to_numpy()
    return Cause(
        title=f"{kernel} runs",
        confidence=Confidence.HIGH,
        time_us_per_step=time_us,
        evidence=Evidence(),
        change=Change(np.array(names == kernel), launches_free=launches_free),
        assumption="it is gone",
        control="take it out",
        fixes=(Fix(what="take it out", kind="code"),),
    )


def found(case: Case, **causes: Cause) -> dict[str, Finding]:
    return {finding.rule: finding for finding in findings_of(case, 0, causes)}


def what_if(finding: Finding) -> WhatIf:
    assert finding.what_if is not None
    return finding.what_if


def mutually_hidden() -> Case:
    """Steps of 300 on the GPU (280 of it a cast) and 300 on the host, which launches one kernel every 100."""
    trace = Kineto()
    for begin in range(0, 1800, 300):
        trace.annotation(STEP, begin, 290)
        for index, (name, us) in enumerate((("a", 10), ("cast", 280), ("b", 10))):
            trace.call(name, at=begin + 100 * index, duration=us)
    return case_of(trace)


def gpu_bound() -> Case:
    """Steps of 100 on the GPU, of which x takes 40, y 15 and z 1; all is launched long before it runs."""
    return case_of(eager([[Work("rest", 44), Work("x", 40), Work("y", 15), Work("z", 1)]] * 5, annotation=STEP, pace=7))


@pytest.mark.parametrize(
    ("gain", "severity"),
    [
        (0.9, Severity.CRITICAL),
        (0.30, Severity.CRITICAL),
        (0.2999, Severity.MAJOR),
        (0.10, Severity.MAJOR),
        (0.0999, Severity.MINOR),
        (0.02, Severity.MINOR),
        (0.0199, Severity.INFO),
        (0.0, Severity.INFO),
        (-0.5, Severity.INFO),
    ],
)
def test_severity_by_gain(gain: float, severity: Severity) -> None:
    assert severity_of_gain(gain) is severity


def test_gains_are_fractions_of_todays_step() -> None:
    case = gpu_bound()
    findings = found(
        case, x=cause(case, "x", time_us=40), y=cause(case, "y", time_us=15), z=cause(case, "z", time_us=1)
    )
    assert case.measured.step_us == 100
    assert [what_if(finding).gain_fraction for finding in findings.values()] == pytest.approx([0.40, 0.15, 0.01])
    assert [what_if(finding).step_us.expected for finding in findings.values()] == pytest.approx([60, 85, 99])
    assert [finding.share_of_step for finding in findings.values()] == pytest.approx([0.40, 0.15, 0.01])
    assert [finding.severity for finding in findings.values()] == [Severity.CRITICAL, Severity.MAJOR, Severity.INFO]


def test_steps_that_the_replay_does_not_reproduce_are_not_predicted() -> None:
    case = replace(gpu_bound(), replay_error=0.021)
    x = found(case, x=cause(case, "x", time_us=40))["x"]
    assert x.what_if is None
    assert [fix.expected_step_us for fix in x.fix] == [None]
    assert (x.severity, x.confidence) == (Severity.MAJOR, Confidence.LOW)  # 40% of the step, but not predicted
    assert any("replay does not reproduce the steps" in note for note in x.notes)
    assert found(replace(case, replay_error=0.019), x=cause(case, "x"))["x"].what_if is not None


def test_what_if_is_said_to_be_withheld_and_by_how_much_the_replay_missed() -> None:
    case = case_of(launched_one_by_one())
    withheld = detect(replace(case, replay_error=0.3), 0)
    (finding,) = withheld.findings
    assert (finding.rule, finding.what_if) == ("launch-bound", None)
    missing = [row.missing for row in withheld.could_not_check if row.rule == "launch-bound"]
    missed = "the replay misses the recorded steps by 30%, more than 2%"
    assert missing == [f"what the step would be without it: {missed}"]


def test_causes_that_gain_apart_hide_nothing() -> None:
    case = gpu_bound()
    for finding in found(case, x=cause(case, "x"), y=cause(case, "y")).values():
        assert what_if(finding).hidden_by == []
        assert what_if(finding).gain_fraction_others_fixed == what_if(finding).gain_fraction
        assert what_if(finding).step_us_others_fixed == what_if(finding).step_us.expected


def test_a_fix_has_the_step_that_it_leads_to() -> None:
    case = gpu_bound()
    (fix,) = found(case, x=cause(case, "x"))["x"].fix
    assert fix.expected_step_us == pytest.approx(60)


def test_two_causes_that_hide_each_other_are_said_to() -> None:
    case = mutually_hidden()
    findings = found(case, cast=cause(case, "cast", time_us=280), host=cause(case, launches_free=True))
    cast, host = what_if(findings["cast"]), what_if(findings["host"])
    assert case.measured.step_us == pytest.approx(300)
    assert cast.gain_fraction == pytest.approx(0, abs=0.02)
    assert host.gain_fraction == pytest.approx(0, abs=0.02)
    assert (cast.hidden_by, host.hidden_by) == (["host"], ["cast"])
    assert cast.step_us_others_fixed == host.step_us_others_fixed == pytest.approx(21, abs=1)  # a and b, half apart
    assert cast.gain_fraction_others_fixed == pytest.approx((300 - 21) / 300, abs=0.01)
    assert host.gain_fraction_others_fixed == pytest.approx((300 - 21) / 300, abs=0.02)
    assert {finding.severity for finding in findings.values()} == {Severity.CRITICAL}


def test_a_cause_that_two_others_hide_names_both() -> None:
    case = mutually_hidden()
    findings = found(
        case, cast=cause(case, "cast"), host=cause(case, launches_free=True), python=cause(case, launches_free=True)
    )
    cast = what_if(findings["cast"])
    assert cast.hidden_by == ["host", "python"]
    assert cast.gain_fraction_others_fixed == pytest.approx((300 - 21) / 300, abs=0.01)


def test_a_third_cause_that_gains_by_itself_hides_neither() -> None:
    case = mutually_hidden()
    findings = found(
        case, cast=cause(case, "cast"), host=cause(case, launches_free=True), other=cause(case, "no such kernel")
    )
    assert what_if(findings["cast"]).hidden_by == ["host"]
    assert what_if(findings["other"]).hidden_by == []
    assert what_if(findings["other"]).gain_fraction_others_fixed == 0


def test_a_predictions_range_is_from_the_fastest_to_the_slowest_step_and_a_tenth_wider() -> None:
    case = case_of(eager([[Work("rest", us), Work("x", 40)] for us in (50, 60, 70, 80, 90)]))
    step = what_if(found(case, x=cause(case, "x"))["x"]).step_us
    # the first of five steps is not steady and the last has no successor: 60, 70 and 80 remain, each ± 7
    assert (step.low, step.expected, step.high) == pytest.approx((53, 70, 87))


def test_a_prediction_that_gains_nothing_is_no_wider_than_todays_steps() -> None:
    case = case_of(eager([[Work("rest", us), Work("x", 40)] for us in (50, 60, 70, 80, 90)]))
    step = what_if(found(case, none=cause(case, "no such kernel"))["none"]).step_us
    assert (step.low, step.expected, step.high) == (100, 110, 120)


def finding_of(rule: str, *, gain: float | None, others_fixed: float | None = None, share: float = 0.0) -> Finding:
    nothing = Range(low=1, expected=1, high=1)
    predicted = None
    if gain is not None:
        predicted = WhatIf(
            step_us=nothing,
            gpu_span_us=nothing,
            unprofiled_step_us=None,
            gain_fraction=gain,
            gain_fraction_others_fixed=gain if others_fixed is None else others_fixed,
            step_us_others_fixed=1,
            hidden_by=[],
            assumption="",
        )
    return Finding(
        rule=rule,
        trace=0,
        phase="decode",
        severity=Severity.INFO,
        confidence=Confidence.HIGH,
        title="",
        notes=[],
        time_us_per_step=1,
        share_of_step=share,
        evidence=Evidence(),
        what_if=predicted,
        control="",
        fix=[],
    )


def test_findings_come_by_their_larger_gain_and_those_without_a_prediction_last_by_share() -> None:
    findings = [
        finding_of("no prediction, small", gain=None, share=0.1),
        finding_of("gains a little", gain=0.05),
        finding_of("hidden", gain=0.0, others_fixed=0.6),
        finding_of("no prediction, large", gain=None, share=0.9),
        finding_of("gains much", gain=0.5),
    ]
    assert [finding.rule for finding in in_order(findings)] == [
        "hidden",
        "gains much",
        "gains a little",
        "no prediction, large",
        "no prediction, small",
    ]


@pytest.mark.parametrize(
    ("finding", "folded"),
    [
        (finding_of("r", gain=0.0099, share=0.0099), True),
        (finding_of("r", gain=0.01, share=0.0), False),
        (finding_of("r", gain=0.0, others_fixed=0.01), False),
        (finding_of("r", gain=0.0, share=0.01), False),
        (finding_of("r", gain=None, share=0.0099), True),
    ],
)
def test_what_neither_takes_nor_gains_a_hundredth_is_folded(finding: Finding, *, folded: bool) -> None:
    assert is_folded(finding) is folded


def test_a_folded_finding_is_only_named() -> None:
    cast = copied(TO_BF16, 4, (1024, 1024), "float", "c10::BFloat16")
    diagnosis = diagnosed(eager([[cast, *([Work(ADD, 50)] * 20)]] * 3))
    (finding,) = diagnosis.findings
    assert (finding.rule, finding.severity) == ("redundant-cast", Severity.INFO)
    text = StringIO()
    draw(diagnosis, Format.TERMINAL, text)
    assert "Also seen: redundant-cast" in text.getvalue()
    assert "No findings" in text.getvalue()


def test_a_range_does_not_go_below_nothing() -> None:
    predicted = predicted_range(np.array([900.0, 11_000.0, 11_000.0]), np.array([10.0, 10_000.0, 10_000.0]))
    assert (predicted.low, predicted.expected) == (0, 10_000)


def test_the_ladder_of_three_findings_and_what_is_folded_are_told_in_each_report() -> None:
    """78 layers: a pool cast of 100 µs, a multiplication of 30, of which a good kernel takes 10.3, a fill of 15.

    Two casts a step take 4 µs each; the rest takes 20 a layer.
    """
    pool = copied(TO_BF16, 100, (495_552, 1, 576), "c10::Float8_e4m3fn", "c10::BFloat16")
    product = Work(GEMM, 30, "aten::mm", [[1, 6144], [6144, 2048]], ["c10::BFloat16"] * 2, (64, 1, 1))
    small = copied(TO_BF16, 4, (1024, 1024), "float", "c10::BFloat16")
    layer = [pool, product, Work(FILL, 15), Work(ATTENTION, 20)]
    diagnosis = diagnosed(eager([[*layer * 78, small, small]] * 4))
    assert [found.rule for found in diagnosis.findings] == [
        "kv-pool-cast",
        "gemm-below-roofline",
        "fill-in-step",
        "redundant-cast",
    ]
    good = 2 * (6144 * 2048 + 6144 + 2048) / 4300e3 / 0.8 + 3
    steps = [78 * us + 8 for us in (30 + 15 + 20, good + 15 + 20, good + 20)]
    rungs = [(rung.fixed, rung.step_us) for rung in diagnosis.ladder]
    assert [fixed for fixed, _ in rungs] == ["kv-pool-cast", "gemm-below-roofline", "fill-in-step"]
    assert [us for _, us in rungs] == pytest.approx(steps, rel=0.01)
    said = [units.time(us) for us in (diagnosis.steps[0].duration_us.median, *(us for _, us in rungs))]
    ladder = (
        f"One after another (decode): {said[0]}, without kv-pool-cast {said[1]}, without gemm-below-roofline too"
        f" {said[2]}, without fill-in-step too {said[3]}."
    )
    for report in (Format.TERMINAL, Format.MARKDOWN):
        drawing = StringIO()
        draw(diagnosis, report, drawing)
        text = " ".join(drawing.getvalue().replace("\\", "").split())
        assert ladder in text
        assert "Also seen: redundant-cast (8.0 µs a step, 0.1%)." in text
        assert "4. " not in text.partition("Findings")[2].partition("One after another")[0]
