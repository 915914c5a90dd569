"""Rules about work that need not be done, on the laboratory's recordings, number by number."""

from __future__ import annotations

import pytest

from tests.test_lab_traces import diagnosis, finding, truth

CASES = {
    "unfused-elementwise": "unfused-norms-1x1024-pool495552",
    "slow-sampling": "slow-sampling-16x1024-pool495552",
    "padding": "padding-3x1024-pool495552",
}
HEAD = "lm-head-all-tokens-1x1024+1024-pool495552"


@pytest.mark.parametrize(("rule", "case"), CASES.items())
def test_it_is_the_largest_and_its_step_without_it_is_that_of_the_healthy_twin(rule: str, case: str) -> None:
    for joined in {False, "capture" in truth(case)["recordings"]["graph"]["traces"]}:
        assert diagnosis(case, "graph", "steps", joined=joined).findings[0].rule == rule
        predicted = finding(case, "graph", rule, joined=joined).what_if.step_us.expected
        twin = diagnosis(truth(case)["twin"], "graph", "steps").steps[0].duration_us.median
        assert predicted == pytest.approx(twin, rel=0.10)


@pytest.mark.parametrize("kind", ["steps", "stacks"])
def test_the_head_of_all_tokens_is_told_by_its_shape_and_by_its_time(kind: str) -> None:
    (found,) = (each for each in diagnosis(HEAD, "eager", kind).findings if each.rule == "lm-head-all-tokens")
    assert found.confidence == ("high" if kind == "stacks" else "low")
    assert found.evidence.input_shape == [1024, 6144]
    # one row takes 65 µs in the healthy twin; 1,024 rows took 306 to 307
    today = diagnosis(HEAD, "eager", kind).steps[0].duration_us.median
    assert today - found.what_if.step_us.expected == pytest.approx(307 - 65, abs=20)
    assert "lm-head-all-tokens" not in {each.rule for each in diagnosis(truth(HEAD)["twin"], "eager", "steps").findings}
