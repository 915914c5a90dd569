"""A case: traces, how they are diagnosed, and what is true of them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from stepscope import diagnose, hardware
from stepscope.document import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from stepscope.document import Diagnosis, Finding
    from stepscope.hardware import Gpu
    from tests.kineto import Kineto

    Built = Kineto | Sequence[Kineto]


class Origin(StrEnum):
    """Where a case comes from."""

    LAB = "recorded by the laboratory"
    SERVER = "recorded of servers and steps beside the repository"
    PUBLIC = "recorded by others"
    PUBLISHED = "built from a published report"
    BUILT = "built from a cause or a look-alike"

    @property
    def is_real(self) -> bool:
        """Whether its traces were recorded."""
        return self not in {Origin.PUBLISHED, Origin.BUILT}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Case:
    """Traces of one run with their label: what is neither in `must` nor in `true_too` must be quiet."""

    name: str
    origin: Origin
    traces: tuple[Path, ...] | Callable[[], Built]
    must: Mapping[str, str] = field(default_factory=dict)
    """Rules that must speak, and why."""
    true_too: Mapping[str, str] = field(default_factory=dict)
    """Rules that may speak, and why they are right."""
    slight: frozenset[str] = frozenset()
    """Rules of `must` whose cause costs less than 2% of the step: a finding of info is enough."""
    model: str | Mapping[str, object] | None = None
    """A name, a path or a config."""
    tp: int | None = None
    context: int | None = None
    gpu: str | None = None
    capture: Path | None = None
    measured: tuple[str, Gpu] | None = None
    """A GPU of which rates were measured, as `stepscope calibrate` keeps them."""

    @property
    def is_there(self) -> bool:
        """Whether its traces are at hand: those beside the repository may not be."""
        return callable(self.traces) or all(path.exists() for path in self.traces)

    def diagnosis(self) -> Diagnosis:
        """Diagnose it."""
        with tempfile.TemporaryDirectory() as folder, _measured(self.measured, Path(folder)):
            model = self.model
            if model is not None and not isinstance(model, str):
                model = str(Path(folder) / "config.json")
                Path(model).write_text(json.dumps(self.model), encoding="utf-8")
            told: dict[str, Any] = {"model": model, "tp": self.tp, "context": self.context, "gpu": self.gpu}
            if not callable(self.traces):
                return diagnose(self.traces, capture_trace=self.capture, **told)
            built = self.traces()
            ranks = built if isinstance(built, Sequence) else [built]
            return diagnose([rank.save(Path(folder) / f"rank{n}.json") for n, rank in enumerate(ranks)], **told)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was said about a case."""

    case: Case
    findings: tuple[Finding, ...]

    @property
    def loud(self) -> frozenset[str]:
        """Rules with a finding above info."""
        return frozenset(found.rule for found in self.findings if found.severity is not Severity.INFO)

    @property
    def missed(self) -> frozenset[str]:
        """Rules that are silent where they must speak."""
        told = frozenset(found.rule for found in self.findings)
        return frozenset(self.case.must) - self.loud - (self.case.slight & told)

    @property
    def false_alarms(self) -> frozenset[str]:
        """Rules that speak without cause."""
        return self.loud - self.case.must.keys() - self.case.true_too.keys()


@cache
def verdict(case: Case) -> Verdict:
    """Diagnose a case, once."""
    return Verdict(case, tuple(case.diagnosis().findings))


@contextmanager
def _measured(kept: tuple[str, Gpu] | None, folder: Path) -> Iterator[None]:
    """Whoever runs this may have calibrated a GPU; a case knows of its own alone."""
    with mock.patch.dict(os.environ, XDG_CONFIG_HOME=str(folder)):
        if kept is not None:
            hardware.keep(*kept)
        yield
