"""SGLang's protocol: a start with explicit arguments returns at once, and files come when the steps are done."""

from __future__ import annotations

import re
import shlex
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.capture import host
from stepscope.capture.facts import facts_of
from stepscope.capture.server import Told, TraceName
from stepscope.document import TraceKind, Unrecorded
from stepscope.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from stepscope.capture.client import Client
    from stepscope.capture.server import Recording
    from stepscope.document import ServerFacts

_STAGE = r"(?:-(?:EXTEND|DECODE|prefill|decode))?"
_WORKER = re.compile(rf".*?(TP-(\d+)(?:-DP-\d+)?(?:-PP-\d+)?(?:-EP-\d+)?){_STAGE}\.trace\.json(?:\.gz)?")
_MERGED = re.compile(r"(?:.*-)?merged-.*\.trace\.json(?:\.gz)?")


class Sglang:
    """An SGLang server."""

    name = "SGLang"
    stops_itself = True
    front_end_records = False
    guard_steps = 1  # whether the steps are done is asked before a step, not after it

    def __init__(self, client: Client) -> None:
        self._client = client

    async def describe(self) -> Told:
        """Return SGLang's arguments and pool.

        Raises:
            DeviceError: it is no SGLang.
        """
        content = await self._client.get("get_server_info")
        if content is None:
            content = await self._client.get("server_info")
        if content is None:
            raise DeviceError(f"{self._client.shown}: has no /get_server_info, so it is no SGLang server")
        try:
            answer = _without_secrets(msgspec.json.decode(content, type=dict[str, Any]))
        except msgspec.DecodeError as error:
            raise DeviceError(f"{self._client.shown}: /get_server_info answers with no JSON object") from error
        info, disabled = msgspec.json.encode(answer), answer.get("disable_cuda_graph")
        replicas = answer.get("dp_size", 1) if not answer.get("enable_dp_attention") else 1
        backend, version = answer.get("attention_backend"), answer.get("version")
        facts = facts_of(
            self.name,
            self._client.shown,
            info,
            version=version if isinstance(version, str) else None,
            attention_backend=backend if isinstance(backend, str) else None,
            graphs=None if not isinstance(disabled, bool) else not disabled,
            context_length=answer.get("context_length") or answer.get("max_req_input_len"),
            replicas=replicas if isinstance(replicas, int) else 1,
        )
        process = host.listening(self._client.port, ("sglang",)) if host.is_here(self._client.host) else None
        return Told(facts, info, list(_unrecorded(facts, process)), None)

    @asynccontextmanager
    async def generate(self, prompt: Sequence[int], new_tokens: int) -> AsyncIterator[AsyncIterator[int]]:
        """Send a prompt of token ids."""
        sampling = {"max_new_tokens": new_tokens, "ignore_eos": True, "temperature": 0}
        body = {"input_ids": list(prompt), "sampling_params": sampling, "stream": True}
        async with self._client.events("generate", body) as events:
            yield _tokens(events)

    async def start_profile(self, recording: Recording, timeout_s: float) -> None:
        """Begin to record; SGLang ends it by itself."""
        body = {
            "output_dir": recording.folder,
            "num_steps": recording.steps,
            "activities": ["CPU", "GPU"],
            "with_stack": recording.stacks,
            "record_shapes": True,
            "profile_by_stage": False,
        }
        await self._client.post("start_profile", body, timeout_s)

    async def stop_profile(self, timeout_s: float) -> None:
        """End the recording before its steps are done."""
        await self._client.post("stop_profile", None, timeout_s)

    def trace_name(self, name: str) -> TraceName | None:
        """Return whose trace a file is."""
        if _MERGED.fullmatch(name):
            return TraceName(TraceKind.MERGED, None)
        found = _WORKER.fullmatch(name)
        return TraceName(TraceKind.WORKER, found[1], int(found[2])) if found else None


async def _tokens(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[int]:
    """Yield the new tokens so far; where the count is not told, an event is one token."""
    seen = 0
    async for event in events:
        told = event.get("meta_info")
        count = told.get("completion_tokens") if isinstance(told, dict) else None
        seen = count if isinstance(count, int) else seen + 1
        yield seen


def _without_secrets(value: Any) -> Any:  # noqa: ANN401 -- JSON
    """SGLang tells its keys to everyone who may ask; they are not written down."""
    if isinstance(value, dict):
        return {
            key: "…" if isinstance(inner, str) and host.is_secret(key) else _without_secrets(inner)
            for key, inner in value.items()
        }
    return [_without_secrets(inner) for inner in value] if isinstance(value, list) else value


def _unrecorded(facts: ServerFacts, process: host.Process | None) -> Iterator[Unrecorded]:
    if facts.graphs is False:
        return
    line = f"python -m sglang.launch_server --model-path {shlex.quote(facts.model or 'MODEL')} <its other options>"
    if process is not None:
        line = process.line()
    message = (
        "kernels that CUDA graphs replay have no op, no shape and no stack; a second server without graphs tells them"
        " (--two-pass URL)"
    )
    yield Unrecorded(code="graphs", message=message, restart=f"{line} --disable-cuda-graph")
    variables: Mapping[str, str] = process.environment if process is not None else {}
    if variables.get("SGLANG_PROFILE_V2", "").lower() in {"1", "true", "yes"}:
        yield Unrecorded(
            code="profile-v2",
            message="SGLANG_PROFILE_V2 wants a recording by stage, which is refused without it",
            restart=f"SGLANG_PROFILE_V2=0 {line}",
        )
