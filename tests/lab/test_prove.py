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
