"""Every case of the catalogue: what must be found is found, and nothing else, save for what is known to be wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from stepscope.pipeline.detect.registry import all_rules
from tests.catalogue import CASES, lab, recorded
from tests.catalogue.case import Case, verdict
from tests.catalogue.known import KNOWN
from tests.catalogue.score import precision, recall, score

RULES = [rule.id for rule in all_rules()]


def known_of(case: Case) -> set[str]:
    return {rule for name, rule in KNOWN if name == case.name}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_must_be_found_is_found_and_nothing_else(case: Case) -> None:
    if not case.is_there:
        pytest.skip("the real traces are not beside the repository")
    found = verdict(case)
    assert found.missed == known_of(case) & case.must.keys()
    assert found.false_alarms == known_of(case) - case.must.keys()


def test_each_rule_is_as_right_as_is_known() -> None:
    """Precision and recall, from the number of cases and what is known to be wrong with them."""
    verdicts = [verdict(case) for case in CASES if case.is_there]
    for rule in RULES:
        found = score(rule, verdicts)
        labels = {of.case.name: rule in of.case.must for of in found.positives + found.negatives}
        wrong = [labels[name] for name, of in KNOWN if of == rule]
        missed, alarms, positives = wrong.count(True), wrong.count(False), sum(labels.values())
        assert positives >= 2
        assert len(labels) - positives >= 100
        assert (len(found.missed), len(found.false_alarms)) == (missed, alarms)
        assert recall(found.found, positives) == (positives - missed) / positives
        assert precision(found.found, alarms) == (positives - missed) / (positives - missed + alarms)


def test_labels_are_of_rules_and_do_not_contradict_each_other() -> None:
    assert [name for name, count in Counter(case.name for case in CASES).items() if count > 1] == []
    for case in CASES:
        assert {*case.must, *case.true_too} <= set(RULES)
        assert case.must.keys().isdisjoint(case.true_too)
        assert case.slight <= case.must.keys()
        assert all([*case.must.values(), *case.true_too.values()])
    by_name = {case.name: case for case in CASES}
    assert [(name, rule) for name, rule in KNOWN if name not in by_name or rule not in RULES] == []
    assert [(name, rule) for name, rule in KNOWN if rule in by_name[name].true_too] == []


@pytest.mark.skipif(not recorded.SHARED.is_dir(), reason="the real traces are not beside the repository")
def test_every_recorded_trace_is_a_case() -> None:
    used = {path for case in CASES if not callable(case.traces) for path in (*case.traces, case.capture)}
    traces = {*recorded.SHARED.rglob("*.json.gz"), *lab.TRACES.rglob("*.json.gz")}
    ranks = set(lab.TRACES.glob("ranks-*/capture/*"))
    assert traces - used - ranks == {recorded.SHARED / recorded.REFUSED}
