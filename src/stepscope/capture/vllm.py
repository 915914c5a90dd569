"""vLLM's protocol: profiler routes that are there only if a profiler was configured when it was started."""

from __future__ import annotations

import re
import shlex
from contextlib import asynccontextmanager
from pathlib import Path
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

_WORKER = re.compile(r"(?:.*_)?rank(\d{1,9})\b.*\.pt\.trace\.json(?:\.gz)?")
_ANY = re.compile(r".+\.pt\.trace\.json(?:\.gz)?")
_FRONT_END = ".async_llm."
_CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_WITH_CONFIG = (0, 13)
"""From this version on the profiler is configured by an option, before by environment variables."""
_METHOD_NOT_ALLOWED = 405


class _Body(msgspec.Struct):
    properties: dict[str, Any] = {}


class _Components(msgspec.Struct):
    schemas: dict[str, _Body] = {}


class _Api(msgspec.Struct):
    """What the server says about its routes; some are started without that."""

    components: _Components = msgspec.field(default_factory=_Components)


_api = msgspec.json.Decoder(_Api)


class Vllm:
    """A vLLM server."""

    name = "vLLM"
    front_end_records = True
    guard_steps = 0

    def __init__(self, client: Client) -> None:
        self._client = client
        self._model = ""
        self.stops_itself = False
        """Its workers do, where it says that it can be told after how many steps: not every version can."""

    async def describe(self) -> Told:
        """Return what vLLM tells: its version, model and cache; in developer mode its configuration too.

        Raises:
            DeviceError: it is no vLLM, or records nothing as it was started.
        """
        models = await self._json("v1/models")
        served = models.get("data") if models else None
        if not isinstance(served, list) or not served or not isinstance(served[0], dict):
            raise DeviceError(f"{self._client.shown}: /v1/models lists no model, so it is no vLLM server")
        self._model = str(served[0].get("id"))
        version = str((await self._json("version") or {}).get("version") or "") or None
        process = host.listening(self._client.port, ("vllm",)) if host.is_here(self._client.host) else None
        config = await self._config()
        info = self._server_info(served[0], config, await self._cache())
        text = config or ""
        eager = re.search(r"\benforce_eager=(True|False)", text)
        facts = facts_of(
            self.name,
            self._client.shown,
            info,
            version=version,
            attention_backend=None,
            graphs=None if eager is None else eager[1] == "False",
            context_length=served[0].get("max_model_len"),
        )
        profiler = _profiler(process)
        restart = _Restart(facts.model or self._model, version, process)
        unrecorded = list(_unrecorded(facts.graphs, profiler, restart))
        if await self._client.status("start_profile") != _METHOD_NOT_ALLOWED:
            why = "vLLM was started without a profiler and can record nothing"
            raise DeviceError(f"{self._client.shown}: {why}; restart it with: {restart.line(stacks=False)}")
        self.stops_itself = await self._takes_steps()
        folder = profiler.get("torch_profiler_dir")
        return Told(facts, info, unrecorded, Path(folder) if isinstance(folder, str) and folder else None)

    @asynccontextmanager
    async def generate(self, prompt: Sequence[int], new_tokens: int) -> AsyncIterator[AsyncIterator[int]]:
        """Send a prompt of token ids."""
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": new_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        async with self._client.events("v1/completions", body) as events:
            yield _tokens(events)

    async def start_profile(self, recording: Recording, timeout_s: float) -> None:
        """Begin to record; what is recorded was said when the server was started."""
        bound = {"max_iterations": recording.steps} if self.stops_itself else None
        await self._client.post("start_profile", bound, timeout_s)

    async def stop_profile(self, timeout_s: float) -> None:
        """End the recording."""
        await self._client.post("stop_profile", None, timeout_s)

    def trace_name(self, name: str) -> TraceName | None:
        """Return whose trace a file is; before version 0.12 names tell no rank."""
        if not _ANY.fullmatch(name):
            return None
        if _FRONT_END in name:
            return TraceName(TraceKind.FRONT_END, None)
        found = _WORKER.fullmatch(name)
        if not found:
            return TraceName(TraceKind.WORKER, name)
        return TraceName(TraceKind.WORKER, name[: found.end(1)], int(found[1]))

    async def _json(self, path: str) -> dict[str, Any] | None:
        content = await self._client.get(path)
        try:
            return None if content is None else msgspec.json.decode(content, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise DeviceError(f"{self._client.shown}: /{path} answers with no JSON object, so it is no vLLM") from error

    async def _takes_steps(self) -> bool:
        """Whether it can be told after how many steps a recording is to end."""
        try:
            api = _Api() if (content := await self._client.get("openapi.json")) is None else _api.decode(content)
        except msgspec.DecodeError:
            return False
        return "max_iterations" in api.components.schemas.get("StartProfileRequest", _Body()).properties

    async def _config(self) -> str | None:
        """Return the configuration as vLLM prints it, which only its developer mode tells."""
        config = (await self._json("server_info") or {}).get("vllm_config")
        return config if isinstance(config, str) else None

    async def _cache(self) -> dict[str, str | int]:
        """Return what the metrics tell about the cache."""
        found = _CACHE.search((await self._client.get("metrics") or b"").decode(errors="replace"))
        labels = dict(_LABEL.findall(found[1])) if found else {}
        cache: dict[str, str | int] = {}
        if labels.get("cache_dtype", "None") != "None":
            cache["cache_dtype"] = labels["cache_dtype"]
        cache |= {key: int(labels[key]) for key in ("block_size", "num_gpu_blocks") if labels.get(key, "").isdigit()}
        return {key: value for key, value in cache.items() if value != 0}

    @staticmethod
    def _server_info(model: Mapping[str, Any], config: str | None, cache: Mapping[str, str | int]) -> bytes:
        if config is not None:
            kv_dtype = re.search(r"\bkv_cache_dtype=([\w.]+)", config)
            told = {"cache_dtype": kv_dtype[1]} | dict(cache) if kv_dtype else dict(cache)
            return msgspec.json.encode({"vllm_config": config, "cache_config": told})
        path = model.get("root") or model.get("id")
        return msgspec.json.encode({"model_config": {"model": path}, "parallel_config": None, "cache_config": cache})


async def _tokens(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[int]:
    """Yield the new tokens so far; where usage is not told, an event is one token."""
    seen = 0
    async for event in events:
        usage, choices = event.get("usage"), event.get("choices")
        told = usage.get("completion_tokens") if isinstance(usage, dict) else None
        seen = told if isinstance(told, int) else seen + bool(choices)
        yield seen


class _Restart:
    """The line that starts the server again, so that it records what is wanted."""

    def __init__(self, model: str, version: str | None, process: host.Process | None) -> None:
        self._line = f"vllm serve {shlex.quote(model)} <its other options>"
        if process is not None:
            self._line = process.line(without=("--profiler-config",))
        numbers = re.match(r"(\d+)\.(\d+)", version or "")
        self._by_option = numbers is None or (int(numbers[1]), int(numbers[2])) >= _WITH_CONFIG

    def line(self, *, stacks: bool, eager: bool = False) -> str:
        """Return the command; traces go to a folder that the user chooses."""
        line = f"{self._line} --enforce-eager" if eager and "--enforce-eager" not in self._line else self._line
        if not self._by_option:
            return (
                "VLLM_TORCH_PROFILER_DIR=/tmp/traces VLLM_TORCH_PROFILER_RECORD_SHAPES=1"
                f" VLLM_TORCH_PROFILER_WITH_STACK={stacks:d} {line}"
            )
        config = {
            "profiler": "torch",
            "torch_profiler_dir": "/tmp/traces",  # noqa: S108 -- an example for the user's command line
            "torch_profiler_record_shapes": True,
            "torch_profiler_with_stack": stacks,
            # /stop_profile waits for a table, and for a trace of the process that answers HTTP: nobody needs them here.
            "torch_profiler_dump_cuda_time_total": False,
            "ignore_frontend": True,
        }
        return f"{line} --profiler-config {shlex.quote(msgspec.json.encode(config).decode())}"


def _profiler(process: host.Process | None) -> dict[str, Any]:
    """Return the profiler's configuration by its keys of today; empty where the process is not seen."""
    if process is None:
        return {}
    found: dict[str, Any] = {}
    told = process.option("--profiler-config")
    if told is not None:
        try:
            found = msgspec.json.decode(told, type=dict[str, Any])
        except msgspec.DecodeError:
            found = {}
    for word, after in zip(process.command, [*process.command[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option.startswith("--profiler-config."):
            found[option.removeprefix("--profiler-config.").replace("-", "_")] = value if equals else after
    variables = {
        "VLLM_TORCH_PROFILER_DIR": "torch_profiler_dir",
        "VLLM_TORCH_PROFILER_RECORD_SHAPES": "torch_profiler_record_shapes",
        "VLLM_TORCH_PROFILER_WITH_STACK": "torch_profiler_with_stack",
    }
    for variable, key in variables.items():
        if variable in process.environment:
            found.setdefault(key, process.environment[variable])
    return found


def _unrecorded(graphs: bool | None, profiler: Mapping[str, Any], restart: _Restart) -> Iterator[Unrecorded]:  # noqa: FBT001
    if graphs:
        yield Unrecorded(
            code="graphs",
            message="kernels that CUDA graphs replay have no op, no shape and no stack; a second server without graphs"
            " tells them (--two-pass URL)",
            restart=restart.line(stacks=True, eager=True),
        )
    if not profiler:
        yield Unrecorded(
            code="profiler-settings",
            message="vLLM does not tell over HTTP whether it records shapes (by default not) and stacks (by default)",
            restart=restart.line(stacks=False),
        )
        return
    if not _is_on(profiler.get("torch_profiler_record_shapes", False)):
        yield Unrecorded(
            code="no-shapes",
            message="shapes of tensors are not recorded, so that no copy can be traced to its tensor",
            restart=restart.line(stacks=False),
        )
    if not _is_on(profiler.get("torch_profiler_with_stack", True)):
        yield Unrecorded(
            code="no-stacks",
            message="Python stacks are not recorded, so that no line of code can be named",
            restart=restart.line(stacks=True),
        )


def _is_on(setting: object) -> bool:
    return setting is True or str(setting).lower() in {"1", "true"}
