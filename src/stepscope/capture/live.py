"""From a live server to checked traces: the only place that chains preflight, traffic, profile and collect."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec.structs import replace as changed

from stepscope.capture.client import Access, Client
from stepscope.capture.collect import Watch, check_room, full_disk, gather
from stepscope.capture.gate import Reading, check, missing
from stepscope.capture.host import is_here
from stepscope.capture.profile import alone, profiling
from stepscope.capture.server import Recording
from stepscope.capture.sglang import Sglang
from stepscope.capture.traffic import Load, Phase
from stepscope.capture.traffic import Traffic as Requests
from stepscope.capture.vllm import Vllm
from stepscope.document import Capture, TraceKind, Traffic, encodable
from stepscope.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any, Unpack

    from stepscope.capture.collect import Found
    from stepscope.capture.server import Server, Told
    from stepscope.document import Served, ServerFacts

_T = TypeVar("_T")
_MEASURED = 20
"""Steps that are measured without the profiler, at least."""
_ROOM = 128
"""New tokens that a decoding request needs at least beyond its prompt: to settle, to be measured, to be recorded."""
_MOST_NEW_TOKENS = 4096
_LATE_S = 10.0
"""Longest time by which tokens of a busy machine are behind the steps, or before them."""
_SPARE = 16
"""Tokens that servers keep back of a request's limit."""
_USUAL_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """What to capture, from which server."""

    kind: Literal["sglang", "vllm"]
    access: Access
    folder: Path
    """For the traces and what belongs to them."""
    phase: Phase = "decode"
    batch: int = 1
    context: int | None = None
    """Tokens of a prompt; None: 1,024, or what fits."""
    steps: int = 5
    stacks: bool = False
    """Of SGLang; vLLM was told when it was started."""
    trace_folder: Path | None = None
    """Where the server's traces can be seen from here."""
    server_folder: str | None = None
    """The same folder as SGLang names it; None: by the same name."""
    timeout_s: float = 300.0
    """Of each stage."""


def capture(
    plan: Plan,
    *,
    eager: Access | None = None,
    sources: Sequence[Path] = (),
    says: Callable[[str], None] = lambda _: None,
    **reading: Unpack[Reading],
) -> Capture:
    """Take traces from a server under load, and hold them against the quality gate.

    Args:
        plan: what to capture.
        eager: a second server of the same model that runs without graphs: its traces tell what the first one's graphs
            replay.
        sources: folders with the recorded source files.
        says: told each stage as it begins.
        reading: `listener` and `cache`, as `stepscope.diagnose` takes them.

    Raises:
        UsageError: a folder or address is none, or the load does not fit the server.
        DeviceError: a server does not do what it should; it is not left recording.
        KeyboardInterrupt: interrupted, also by SIGTERM.
    """
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--folder {plan.folder}: cannot be made ({error.strerror})") from error
    first, second = _run(_passes(plan, eager, says))
    says("reading the traces")
    if second is None:
        return check(first, sources=sources, **reading)
    second = check(second, sources=sources, **reading)
    whole = [one for one in second.traces if one.kind is TraceKind.WORKER and one.whole]
    twin = min(whole, key=lambda one: (one.rank is None, one.rank or 0, one.path), default=None)
    first = check(first, capture_trace=Path(twin.path) if twin else None, sources=sources, **reading)
    return changed(first, eager=changed(second, diagnosis=None))


async def _passes(plan: Plan, eager: Access | None, says: Callable[[str], None]) -> tuple[Capture, Capture | None]:
    if eager is None:
        return await _capture(plan, says), None
    twin = replace(plan, access=eager, folder=plan.folder / "eager", stacks=True)
    await _check_twins(plan, twin)
    first = await _capture(plan, says)
    twin.folder.mkdir(exist_ok=True)
    return first, await _capture(replace(twin, context=first.traffic.context), says)


async def _check_twins(plan: Plan, twin: Plan) -> None:
    """Refuse two servers whose traces would not fit, before anything is recorded."""
    facts = []
    for one in (plan, twin):
        async with Client(one.access) as client:
            facts.append((await _server(one, client).describe()).facts)
    graphed, eager = facts
    if graphed.model != eager.model:
        raise UsageError(f"--two-pass {eager.url} serves {eager.model}, and {graphed.url} {graphed.model}")
    if graphed.url == eager.url:
        raise UsageError(f"--two-pass {eager.url}: is the same server; it takes a second one, without graphs")
    if eager.graphs:
        option = "--disable-cuda-graph" if plan.kind == "sglang" else "--enforce-eager"
        raise DeviceError(f"--two-pass {eager.url}: replays graphs too; start it with {option}")


def _server(plan: Plan, client: Client) -> Server:
    return Sglang(client) if plan.kind == "sglang" else Vllm(client)


def _run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end; the first signal cancels the work, so that it cleans up, and later ones wait for that."""

    async def until_signalled() -> _T:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            if not task.cancelling():
                task.cancel()

        with suppress(NotImplementedError, RuntimeError, ValueError):  # not on Windows, nor in another thread
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, cancel)
        try:
            return await task
        finally:
            with suppress(NotImplementedError, RuntimeError, ValueError):
                for number in (signal.SIGINT, signal.SIGTERM):
                    loop.remove_signal_handler(number)

    try:
        return asyncio.run(until_signalled())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _capture(plan: Plan, says: Callable[[str], None]) -> Capture:
    async with Client(plan.access) as client:
        server = _server(plan, client)
        with alone(client.host, client.port):
            says(f"asking {client.shown} what it is")
            told = await server.describe()
            info = plan.folder / "server-info.json"
            info.write_bytes(told.server_info)
            load = _load(plan, told.facts)
            folder = _trace_folder(plan, client, server, told)
            check_room(folder)
            check_room(plan.folder)
            return await _record(plan, server, told, load, folder, info, says)


async def _record(  # noqa: PLR0913, PLR0917 -- what the stages before found
    plan: Plan, server: Server, told: Told, load: Load, folder: Path, info: Path, says: Callable[[str], None]
) -> Capture:
    requests = Requests(server, load)
    async with requests.held():
        says(f"{load.phase}, {load.batch} × {load.context:,} tokens: waiting until step times settle")
        settled = await requests.settle(plan.timeout_s)
        says("measuring without the profiler")
        begin, end = await requests.advance(max(_MEASURED, plan.steps), plan.timeout_s)
        unprofiled = requests.served(begin, end)
        if unprofiled.first_token_us is None:
            unprofiled = changed(unprofiled, first_token_us=requests.first_tokens())
        watch = Watch(folder, server)
        server_folder = plan.server_folder or os.path.abspath(folder)  # noqa: ASYNC240, PTH100 -- reads no disk
        recording = Recording(server_folder, plan.steps + server.guard_steps, plan.stacks)
        try:
            async with profiling(server, recording, plan.timeout_s, says) as profiler:
                says(f"recording {plan.steps} steps")
                begin, end = await requests.advance(plan.steps, plan.timeout_s)
                says(f"waiting for the traces in {folder}")
                found = None
                if server.front_end_records:
                    if server.stops_itself:
                        await requests.beside(watch.begun(min(_LATE_S, plan.timeout_s)))
                elif server.stops_itself:
                    found = await requests.beside(watch.wait(told.facts.ranks, plan.timeout_s))
                    if found.complete:
                        profiler.ended()
                if profiler.runs:
                    await requests.beside(profiler.stop())
                    found = None
        except DeviceError as error:
            full = full_disk(folder)
            raise error if full is None else DeviceError(f"{error}; {full}") from error
    if found is None:
        found = await watch.wait(told.facts.ranks, plan.timeout_s)
    profiled = (requests.served(begin, end), requests.live_tokens(begin, end))
    traffic = _traffic(load, settled, unprofiled, *profiled)
    return _captured(plan, told, info, traffic, folder, found)


def _load(plan: Plan, facts: ServerFacts) -> Load:
    """Return the load as it fits the server.

    Raises:
        UsageError: it does not.
    """
    streams = plan.batch + (plan.phase == "mixed")
    limits = [facts.context_length] if facts.context_length is not None else []
    if facts.pool_slots is not None:
        limits.append(facts.pool_slots * (facts.dp or 1) // streams)
    needed = 1 if plan.phase == "prefill" else _ROOM + 2 * plan.steps
    if not limits:
        return Load(plan.phase, plan.batch, plan.context or _USUAL_CONTEXT, needed + _USUAL_CONTEXT)
    longest = min(limits) - _SPARE - needed
    context = plan.context or min(_USUAL_CONTEXT, longest)
    if not 1 <= context <= longest:
        most = f"give --context {longest} or less" if longest > 0 else "give a smaller --batch"
        what = (
            f"{streams} requests of {context:,} tokens and {needed} new ones" if longest > 0 else f"{streams} requests"
        )
        limit = (
            f"a request may have {facts.context_length} tokens" if facts.context_length else "requests have no limit"
        )
        pool = f", the pool {facts.pool_slots:,}" if facts.pool_slots is not None else ""
        raise UsageError(f"{what} do not fit the server ({limit}{pool}): {most}")
    return Load(plan.phase, plan.batch, context, min(min(limits) - _SPARE - context, _MOST_NEW_TOKENS))


def _trace_folder(plan: Plan, client: Client, server: Server, told: Told) -> Path:
    """Return where the server's traces can be seen from here.

    Raises:
        UsageError: nobody tells, or it cannot be seen.
    """
    if plan.trace_folder is not None:
        if not plan.trace_folder.is_dir():
            raise UsageError(f"--trace-dir {plan.trace_folder}: no such folder")
        return plan.trace_folder
    if not is_here(client.host):
        raise UsageError(
            f"{client.shown} is another machine: give --trace-dir, the folder of its traces as it is mounted here"
        )
    if isinstance(server, Sglang):
        return plan.folder
    if told.trace_folder is None:
        raise UsageError(
            f"{server.name} does not tell where it writes traces: give --trace-dir, its torch_profiler_dir"
        )
    if not told.trace_folder.parent.is_dir():
        raise UsageError(
            f"{told.trace_folder}, where {server.name} writes traces, cannot be seen from here: give --trace-dir"
        )
    return told.trace_folder


def _traffic(load: Load, settled: bool, unprofiled: Served, profiled: Served, live: int | None) -> Traffic:  # noqa: FBT001
    before, during = (
        one.first_token_us if load.phase == "prefill" else one.between_tokens_us for one in (unprofiled, profiled)
    )
    return Traffic(
        phase=load.phase,
        batch=load.batch,
        context=load.context,
        live_tokens=live,
        settled=settled,
        unprofiled=unprofiled,
        profiled=profiled if during is not None else None,
        profiler_overhead=during.median / before.median - 1 if before is not None and during is not None else None,
    )


def _captured(plan: Plan, told: Told, info: Path, traffic: Traffic, folder: Path, found: Found) -> Capture:  # noqa: PLR0913, PLR0917
    if not found.of(TraceKind.WORKER):
        why = full_disk(folder) or f"is {folder} where the server writes, on a disk that it shares with this machine?"
        raise DeviceError(f"no rank's trace appeared in {folder} within {plan.timeout_s:g} s; {why}")
    traces = gather(found.files, plan.folder)
    problems = list(missing(found, full_disk(folder)))
    notes = [] if traffic.settled else ["step times had not settled when recording began"]
    if traffic.phase != "prefill" and traffic.unprofiled.between_tokens_us is None:
        notes.append("tokens came in bursts (the machine is busy), so the times between them are not told")
    if traffic.phase == "decode" and traffic.profiled is not None and traffic.profiled.requests:
        notes.append("requests ended while the profiler ran, so prefill of new ones is in the trace")
    return Capture(
        server=told.facts,
        folder=encodable(str(plan.folder)),
        server_info=encodable(str(info)),
        will_not_record=list(told.unrecorded),
        traffic=traffic,
        traces=traces,
        notes=notes,
        problems=problems,
        diagnose="",
    )
