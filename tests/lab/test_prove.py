"""The page that holds the rules against the truth."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from pathlib import Path

from stepscope.errors import NotATraceError
from stepscope.lab.prove import Proof, prove
from stepscope.pipeline.detect.registry import all_rules

if TYPE_CHECKING:
    from collections.abc import Collection

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(name="proof", scope="module")
def proof_fixture() -> Proof:
    return prove(REPOSITORY / "tests/traces", {rule.id for rule in all_rules()})


def misses_with(proof: Proof, rules: Collection[str]) -> list[str]:
    return list(Proof(proof.verdicts, rules).misses())


def test_the_page_is_as_the_command_writes_it(proof: Proof) -> None:
    page = (REPOSITORY / "docs/accuracy.md").read_text(encoding="utf-8")
    part = list(proof.markdown())
    assert page.splitlines()[: len(part)] == part, "run: python scripts/accuracy.py"


def test_a_rule_that_is_silent_is_a_miss(proof: Proof) -> None:
    (padded,) = (v for v in proof.verdicts if v.truth.slowdown == "padding" and v.mode == "graph")
    nothing: frozenset[str] = frozenset()
    silent = replace(padded, found=nothing, seen=nothing)
    assert list(Proof([silent], {"padding"}).misses()) == [f"`{padded.case}`, graph: `padding` is silent."]
    assert list(Proof([silent], ()).misses()) == []  # nobody wrote it
    assert misses_with(proof, {rule.id for rule in all_rules()}) == []


def test_a_finding_of_info_is_a_miss_unless_the_slowdown_costs_less_than_2_percent(proof: Proof) -> None:
    """Padding takes 4.48 of 8.08 ms in a graph; the LM head on all tokens 0.29 of 24.71 ms."""
    nothing: frozenset[str] = frozenset()
    missed = {
        slowdown: list(Proof([replace(verdict, found=nothing, seen=frozenset({rule}))], {rule}).misses())
        for verdict in proof.verdicts
        for slowdown, rule in [(verdict.truth.slowdown, verdict.truth.rule)]
        if rule and slowdown in {"padding", "lm-head-all-tokens"} and (slowdown, verdict.mode) != ("padding", "eager")
    }
    assert {slowdown: len(found) for slowdown, found in missed.items()} == {"padding": 1, "lm-head-all-tokens": 0}


def test_a_finding_without_cause_is_a_miss(proof: Proof) -> None:
    healthy = next(verdict for verdict in proof.verdicts if verdict.truth.slowdown is None and verdict.mode == "graph")
    wrong = replace(healthy, found=frozenset({"kv-pool-cast", "launch-bound"}))
    assert list(Proof([healthy], ()).misses()) == []
    assert list(Proof([wrong], ()).misses()) == [
        f"`{wrong.case}`, graph: `{rule}` fires without cause." for rule in ("kv-pool-cast", "launch-bound")
    ]


def test_a_folder_without_cases_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotATraceError, match="holds no case that the laboratory recorded"):
        prove(tmp_path, ())
