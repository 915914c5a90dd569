"""What servers tell of themselves: SGLang's `/get_server_info` or `/server_info`, vLLM's `/server_info` or log line.

The tokens in use are in none of them (SGLang: `/get_load`), and would be of another moment than the trace.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from stepscope.errors import UsageError
from stepscope.model.json_file import decode, read_bytes
from stepscope.model.parallel import Parallel

_Ranks = Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
_Slots = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
_Page = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
_Text = Annotated[str, msgspec.Meta(max_length=4096)]

DTYPES = {
    "bf16": "BFloat16",
    "bfloat16": "BFloat16",
    "fp16": "Half",
    "float16": "Half",
    "half": "Half",
    "fp8": "Float8_e4m3fn",
    "fp8_e4m3": "Float8_e4m3fn",
    "fp8_e5m2": "Float8_e5m2",
    "fp8_ds_mla": "Float8_e4m3fn",
}
"""What servers and configs call types, and what torch calls them."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """How a server runs a model. None: it does not tell."""

    server: str
    model_path: str | None
    """A folder, or a name on a hub."""
    parallel: Parallel | None
    kv_cache_dtype: str | None
    """As the server calls it; `auto` follows the checkpoint."""
    dtype: str | None
    """Of activations, as the server calls it."""
    quantization: str | None
    """The method that it was asked for or found in the checkpoint."""
    pool_slots: int | None
    """Tokens that the KV pool of one rank holds."""
    page_size: int | None
    notes: tuple[str, ...]
    """What must be known besides, a sentence each."""


class _MemoryUsage(msgspec.Struct):
    token_capacity: _Slots | None = None


class _InternalState(msgspec.Struct):
    memory_usage: _MemoryUsage | None = None
    max_total_num_tokens: _Slots | None = None


class _Sglang(msgspec.Struct):
    model_path: _Text
    tp_size: _Ranks = 1
    dp_size: _Ranks = 1
    ep_size: _Ranks = 1
    pp_size: _Ranks = 1
    enable_dp_attention: bool = False
    enable_dp_lm_head: bool = False
    moe_dense_tp_size: _Ranks | None = None
    moe_a2a_backend: _Text | None = None
    kv_cache_dtype: _Text | None = None
    dtype: _Text | None = None
    quantization: _Text | None = None
    max_total_num_tokens: _Slots | None = None
    page_size: _Page | None = None
    internal_states: list[_InternalState] = []


class _VllmModel(msgspec.Struct):
    model: _Text | None = None
    dtype: _Text | None = None
    quantization: _Text | None = None


class _VllmParallel(msgspec.Struct):
    tensor_parallel_size: _Ranks = 1
    data_parallel_size: _Ranks = 1
    pipeline_parallel_size: _Ranks = 1
    enable_expert_parallel: bool | None = None


class _VllmCache(msgspec.Struct):
    cache_dtype: _Text | None = None
    block_size: _Page | None = None
    num_gpu_blocks: _Slots | None = None


class _Vllm(msgspec.Struct):
    model_config: _VllmModel
    parallel_config: _VllmParallel | None = msgspec.field(default_factory=_VllmParallel)
    """None: vLLM tells it over HTTP in its developer mode only."""
    cache_config: _VllmCache = msgspec.field(default_factory=_VllmCache)


class _VllmAnswer(msgspec.Struct):
    vllm_config: str | _Vllm
    cache_config: _VllmCache | None = None
    """What its metrics tell of the cache, beside a text that leaves it out."""


def read_server_info(path: str | Path) -> ServerInfo:
    """Return what a server's answer tells; vLLM's configuration also as the line of text that its log has.

    Raises:
        UsageError: the file cannot be read, is no such answer, or a field is of the wrong type or size.
    """
    what = f"--server-info {path}"
    content = read_bytes(Path(path), what)
    if b"tensor_parallel_size=" in content and not content.lstrip().startswith(b"{"):
        return _of_vllm(_vllm_text(content.decode(errors="replace"), what))
    fields = decode(content, dict[str, Any], what)
    try:
        if "vllm_config" in fields:
            answer = decode(content, _VllmAnswer, what)
            if isinstance(answer.vllm_config, _Vllm):
                return _of_vllm(answer.vllm_config)
            told = _vllm_text(answer.vllm_config, what)
            return _of_vllm(told if answer.cache_config is None else replace(told, cache_config=answer.cache_config))
        if "model_config" in fields and "parallel_config" in fields:
            return _of_vllm(decode(content, _Vllm, what))
        if "model_path" in fields:
            return _of_sglang(decode(content, _Sglang, what))
    except UsageError as error:
        raise error if str(error).startswith(what) else UsageError(f"{what}: {error}") from error
    raise UsageError(f"{what}: is no answer of SGLang's /get_server_info or vLLM's /server_info")


def _of_sglang(told: _Sglang) -> ServerInfo:
    notes = []
    attention_dp = told.dp_size if told.enable_dp_attention else 1
    if told.dp_size > attention_dp:
        notes.append(f"{told.dp_size} replicas, each of {told.tp_size} ranks: the figures are one replica's")
    slots, disagreement = _sglang_slots(told)
    dense_dp = 1 if told.moe_dense_tp_size is None else max(told.tp_size // told.moe_dense_tp_size, 1)
    parallel = Parallel(
        tp=told.tp_size,
        attention_dp=attention_dp,
        ep=told.ep_size,
        pp=told.pp_size,
        dense_dp=dense_dp,
        shared_dp=told.tp_size if told.moe_a2a_backend == "deepep" else 1,  # its tokens never leave their rank
        lm_head_dp=attention_dp if told.enable_dp_lm_head else 1,
    )
    return ServerInfo(
        server="SGLang",
        model_path=told.model_path,
        parallel=parallel,
        kv_cache_dtype=told.kv_cache_dtype,
        dtype=told.dtype,
        quantization=told.quantization,
        pool_slots=slots,
        page_size=told.page_size,
        notes=(*notes, *disagreement),
    )


def _sglang_slots(told: _Sglang) -> tuple[int | None, list[str]]:
    """Return the slots of a rank's pool: of the scheduler that answered, else of all ranks if they agree."""
    if told.max_total_num_tokens is not None:
        return told.max_total_num_tokens, []
    ranks = {
        slots
        for state in told.internal_states
        if (slots := state.max_total_num_tokens or (state.memory_usage and state.memory_usage.token_capacity))
    }
    if len(ranks) > 1:
        return None, [f"the ranks' pools differ ({min(ranks):,} to {max(ranks):,} slots): none is taken for all"]
    return next(iter(ranks), None), []


def _vllm_ranks(spread: _VllmParallel) -> tuple[Parallel, list[str]]:
    """Count vLLM's ranks as SGLang does: its `dp` groups attend apart and share the experts (of a dense model, none).

    There each group holds dense MLPs, shared experts and the LM head for itself.
    """
    groups, ranks = spread.data_parallel_size, spread.tensor_parallel_size * spread.data_parallel_size
    notes = []
    if spread.enable_expert_parallel is None and ranks > 1:
        notes.append("vLLM's text does not tell whether experts are shared out (--enable-expert-parallel); give --ep")
    parallel = Parallel(
        tp=ranks,
        attention_dp=groups,
        ep=ranks if spread.enable_expert_parallel else 1,
        pp=spread.pipeline_parallel_size,
        dense_dp=groups,
        shared_dp=groups,
        lm_head_dp=groups,
    )
    return parallel, notes


def _of_vllm(told: _Vllm) -> ServerInfo:
    cache, blocks = told.cache_config, told.cache_config.num_gpu_blocks
    parallel, notes = (None, []) if told.parallel_config is None else _vllm_ranks(told.parallel_config)
    return ServerInfo(
        server="vLLM",
        model_path=told.model_config.model,
        parallel=parallel,
        kv_cache_dtype=cache.cache_dtype,
        dtype=(told.model_config.dtype or "").removeprefix("torch.") or None,
        quantization=told.model_config.quantization,
        pool_slots=blocks * cache.block_size if blocks and cache.block_size else None,
        page_size=cache.block_size,
        notes=tuple(notes),
    )


def _vllm_text(text: str, what: str) -> _Vllm:
    """Read the configuration as vLLM prints it: `model='…', …, tensor_parallel_size=8, …`."""

    def told(key: str, value: str) -> str | None:
        found = re.search(rf"(?<![\w.]){key}=(?:{value})", text)
        return None if found is None or found[1] == "None" else found[1]

    def ranks(key: str) -> int:
        return int(told(key, r"(\d{1,9})(?!\d)") or 1)

    model = told("model", r"['\"]([^'\"]{1,4096})['\"]")
    if model is None or told("tensor_parallel_size", r"(\d{1,9})(?!\d)") is None:
        raise UsageError(f"{what}: is no configuration of vLLM")
    word = r"['\"]?([\w.\-]{1,99})"
    fields = {
        "model_config": {"model": model, "dtype": told("dtype", word), "quantization": told("quantization", word)},
        "parallel_config": {
            f"{kind}_parallel_size": ranks(f"{kind}_parallel_size") for kind in ("tensor", "data", "pipeline")
        },
        "cache_config": {"cache_dtype": told("kv_cache_dtype", word)},
    }
    try:
        return msgspec.convert(fields, _Vllm)
    except msgspec.ValidationError as error:
        raise UsageError(f"{what}: {error}") from error
