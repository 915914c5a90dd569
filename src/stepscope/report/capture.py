"""What a capture brought, as `stepscope capture` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepscope import units
from stepscope.document import TraceKind
from stepscope.report import Format
from stepscope.report import draw as draw_diagnosis
from stepscope.report.console import console_on
from stepscope.report.json import write
from stepscope.report.markdown import escaped
from stepscope.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from stepscope.document import Capture, CapturedTrace, Served, Spread, Traffic


def draw(captured: Capture, report_format: Format, stream: TextIO, *, diagnosis: bool) -> None:
    """Write a capture to a stream, with the diagnosis of its traces if that was asked for."""
    if report_format is Format.JSON:
        write(captured if diagnosis else replace(captured, diagnosis=None), stream)
        return
    if report_format is Format.MARKDOWN:
        stream.write("# stepscope capture\n\n")
        stream.writelines(f"- {label}: {escaped(text)}\n" for label, text in _rows(captured))
    else:
        with console_on(stream) as console:
            for label, text in _rows(captured):
                console.print(f"{label:12} {printable(text)}")
    if diagnosis and captured.diagnosis is not None:
        stream.write("\n")
        draw_diagnosis(captured.diagnosis, report_format, stream)


def _rows(captured: Capture) -> Iterator[tuple[str, str]]:
    yield "server", _server(captured)
    if captured.server.not_told:
        yield "not told", ", ".join(captured.server.not_told)
    for gap in captured.will_not_record:
        yield "not recorded", gap.message
        if gap.restart is not None:
            yield "restart", gap.restart
    yield from _traffic(captured.traffic)
    yield from (("trace", _trace(trace)) for trace in captured.traces)
    yield from (("note", note) for note in captured.notes)
    for problem in captured.problems:
        yield "PROBLEM", f"{problem.message}. To change that: {problem.change}"
    if captured.eager is not None:
        yield from ((f"eager: {label}", text) for label, text in _rows(captured.eager))
    else:
        yield "diagnose", captured.diagnose


def _traffic(traffic: Traffic) -> Iterator[tuple[str, str]]:
    load = f"{traffic.phase}, {traffic.batch} at once, prompts of {units.count(traffic.context)} tokens"
    live = f", {units.count(traffic.live_tokens)} live while recording" if traffic.live_tokens else ""
    yield "load", f"{load}{live}"
    yield "unprofiled", _served(traffic.unprofiled)
    if traffic.profiled is not None:
        cost = traffic.profiler_overhead
        slower = "" if cost is None else f"; steps {units.share(abs(cost))} {'longer' if cost >= 0 else 'shorter'}"
        yield "profiled", f"{_served(traffic.profiled)}{slower}"


def _trace(trace: CapturedTrace) -> str:
    rank = "" if trace.rank is None else f", rank {trace.rank}"
    kind = "" if trace.kind is TraceKind.WORKER else f", {trace.kind}"
    return f"{trace.path} ({units.size(trace.bytes)}{rank}{kind}{'' if trace.whole else ', UNFINISHED'})"


def _server(captured: Capture) -> str:
    told = captured.server
    graphs = None if told.graphs is None else "with graphs" if told.graphs else "without graphs"
    parts = [
        f"{told.server} {told.version or ''}".rstrip() + f" at {told.url}",
        told.model,
        None if told.tp is None else f"TP {told.tp}, DP {told.dp}, EP {told.ep}",
        None if told.kv_cache_dtype is None else f"KV {told.kv_cache_dtype}",
        None if told.pool_slots is None else f"{units.count(told.pool_slots)} slots",
        None if told.page_size is None else f"pages of {told.page_size}",
        told.attention_backend,
        graphs,
    ]
    return "; ".join(part for part in parts if part)


def _served(served: Served) -> str:
    parts = []
    if served.between_tokens_us is not None:
        parts.append(f"{_times(served.between_tokens_us)} a token")
    if served.first_token_us is not None:
        parts.append(f"{_times(served.first_token_us)} to the first")
    parts.append(f"{units.count(round(served.tokens_per_s, 1))} tokens/s")
    return ", ".join(parts)


def _times(spread: Spread) -> str:
    if spread.min == spread.max:
        return units.time(spread.median)
    return f"{units.time(spread.median)} ({units.time(spread.min)} to {units.time(spread.max)})"
