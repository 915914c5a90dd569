"""All cases of which the truth is known, real and built, each with what must be found in it.

Labels come from facts: what was switched on, measured, reported or built in. They never come from what the rules say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.catalogue import built, lab, published, recorded

if TYPE_CHECKING:
    from tests.catalogue.case import Case

CASES: tuple[Case, ...] = (*lab.cases(), *recorded.cases(), *published.cases(), *built.cases())
