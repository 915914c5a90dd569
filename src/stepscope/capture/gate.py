"""The quality gate: whether what came back can be believed, and what to change where it cannot."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from msgspec.structs import replace

import stepscope
from stepscope.capture.collect import head_of
from stepscope.document import CaptureProblem, TraceKind
from stepscope.errors import NotATraceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Unpack

    from stepscope.capture.collect import Found
    from stepscope.document import Capture, Diagnosis

_FEWER = "capture again with fewer --steps, or without stacks"
_ONE_FILE = "capture again; if several ranks wrote to one file, give each a folder of its own"
_CHANGES = {
    "no-gpu-events": "end other profilers of that GPU (Nsight, DCGM), and look for CUPTI in the server's log",
    "gpu-rows-missing": _FEWER,
    "replay-in-part": _FEWER,
    "unrecorded-work": _FEWER,
    "overrunning-durations": _FEWER,
    "cut-file": "capture again with fewer --steps and a longer --timeout",
    "damaged-compression": _ONE_FILE,
    "damaged-events": _ONE_FILE,
}
"""What to do about each warning that makes a trace incomplete."""


class Reading(TypedDict, total=False):
    """How traces are read, as `stepscope.diagnose` takes it."""

    listener: Any
    cache: Any


def missing(found: Found, full: str | None) -> Iterator[CaptureProblem]:
    """Say what did not come, or not whole."""
    if found.expected is not None and found.ranks < found.expected:
        yield CaptureProblem(
            code="ranks-missing",
            message=f"the traces of {found.ranks} of {found.expected} ranks came",
            change=full or "let all ranks write to one folder that is seen from here, and raise --timeout",
        )
    broken = [one.path.name for one in found.files if not one.whole]
    if broken:
        yield CaptureProblem(
            code="unfinished-files",
            message=f"{len(broken)} of {len(found.files)} files end too early: {', '.join(sorted(broken)[:4])}",
            change=full or "raise --timeout, or capture fewer --steps",
        )


def check(
    captured: Capture, *, capture_trace: Path | None = None, sources: Sequence[Path] = (), **reading: Unpack[Reading]
) -> Capture:
    """Diagnose what was captured, and add what that says about the traces.

    Args:
        captured: what came back.
        capture_trace: an eager twin's trace.
        sources: folders with the recorded source files.
        reading: `listener` and `cache`, as `stepscope.diagnose` takes them.
    """
    paths = [Path(one.path) for one in captured.traces if one.kind is TraceKind.WORKER and one.whole]
    options: dict[str, Any] = {
        "server_info": captured.server_info,
        "context": captured.traffic.live_tokens,
        "capture_trace": capture_trace,
        "sources": sources,
    }
    command = ["stepscope", "diagnose", *map(str, paths), "--server-info", captured.server_info]
    command += ["--context", str(captured.traffic.live_tokens)] if captured.traffic.live_tokens else []
    command += ["--capture-trace", str(capture_trace)] if capture_trace else []
    captured = replace(captured, diagnose=shlex.join(command))
    if not paths:
        return captured
    try:
        diagnosis = stepscope.diagnose(paths, **options, **reading)
    except NotATraceError as error:
        change = "see the server's log for what its profiler says"
        problem = CaptureProblem(code="no-trace", message=str(error), change=change)
        return replace(captured, problems=[*captured.problems, problem])
    on_cpu = all(head_of(path).without_gpu for path in paths)
    problems = list(_problems(diagnosis, on_cpu=on_cpu))
    notes = ["the server computes on the CPU, so its traces hold nothing of a GPU"] if on_cpu else []
    return replace(
        captured,
        problems=[*captured.problems, *problems],
        notes=[*captured.notes, *notes],
        diagnosis=diagnosis,
    )


def _problems(diagnosis: Diagnosis, *, on_cpu: bool) -> Iterator[CaptureProblem]:
    """Return why traces are incomplete, each reason once."""
    reasons: dict[tuple[str, str], int] = {}
    for trace in diagnosis.traces:
        for warning in trace.warnings:
            if warning.code in _CHANGES and not (on_cpu and warning.code == "no-gpu-events"):
                reason = (warning.code, warning.message)
                reasons[reason] = reasons.get(reason, 0) + 1
    for (code, message), count in reasons.items():
        of = f" ({count} of {len(diagnosis.traces)} traces)" if len(diagnosis.traces) > 1 else ""
        yield CaptureProblem(code=code, message=f"{message}{of}", change=_CHANGES[code])
