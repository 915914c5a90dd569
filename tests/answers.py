"""What tests ask of a diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.document import Severity

if TYPE_CHECKING:
    from stepscope.document import Diagnosis, Finding


def finding(diagnosis: Diagnosis, rule: str) -> Finding:
    """Return the only finding of a rule."""
    (found,) = (finding for finding in diagnosis.findings if finding.rule == rule)
    return found


def rules(diagnosis: Diagnosis) -> list[str]:
    """Return the rules that found something, in order."""
    return [finding.rule for finding in diagnosis.findings]


def loud(diagnosis: Diagnosis) -> list[str]:
    """Return the rules that found something of more than the least severity."""
    return [finding.rule for finding in diagnosis.findings if finding.severity is not Severity.INFO]
