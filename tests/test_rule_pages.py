"""The pages of the rules are as the script writes them, one for each rule; the README lists them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scripts import rule_pages

from stepscope.pipeline.detect.registry import all_rules

if TYPE_CHECKING:
    import pytest


def test_the_pages_are_as_the_script_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    written = dict(rule_pages.pages())
    there = {path.name: path.read_text(encoding="utf-8") for path in rule_pages.PAGES.glob("*.md")}
    assert there.keys() == written.keys(), "run: python scripts/rule_pages.py"
    assert [name for name in written if there[name] != written[name]] == [], "run: python scripts/rule_pages.py"


def test_the_readme_lists_every_rule_with_its_title() -> None:
    readme = (rule_pages.REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [f"| [{rule.id}](docs/rules/{rule.id}.md) | {rule.title} |" for rule in all_rules()]
    assert [line for line in readme if "](docs/rules/" in line] == sorted(rows)
