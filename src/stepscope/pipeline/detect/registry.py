"""Finds the rules: every module in `rules/` that is not private is one."""

from __future__ import annotations

import pkgutil
import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.pipeline.detect import rules as rules_package

if TYPE_CHECKING:
    from stepscope.pipeline.detect.rule import Rule


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return all rules by id, those that run last at the end.

    Raises:
        UsageError: Python runs without docstrings, which the rules' explanations are.
    """
    if sys.flags.optimize > 1:
        raise UsageError("the rules are told by docstrings, which Python leaves out with -OO: run it without")
    names = sorted(module.name for module in pkgutil.iter_modules(rules_package.__path__))
    rules = [import_module(f"{rules_package.__name__}.{name}").RULE for name in names]
    return tuple(sorted(rules, key=lambda rule: (rule.runs_last, rule.id)))


def rule(rule_id: str) -> Rule:
    """Return a rule by its id.

    Raises:
        UsageError: there is none of that id.
    """
    for known in all_rules():
        if known.id == rule_id:
            return known
    raise UsageError(f"{rule_id}: no such rule; known are {', '.join(sorted(r.id for r in all_rules()))}")
