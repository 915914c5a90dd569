"""What SGLang's and vLLM's servers tell of themselves, in the shape in which they answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from stepscope.errors import ExitCode, UsageError
from stepscope.model.json_file import MOST_BYTES
from stepscope.model.parallel import Parallel
from stepscope.model.server_info import ServerInfo, read_server_info

if TYPE_CHECKING:
    from pathlib import Path

SGLANG = {
    "model_path": "zai-org/GLM-5-FP8",
    "tokenizer_path": "zai-org/GLM-5-FP8",
    "tp_size": 8,
    "dp_size": 1,
    "ep_size": 1,
    "pp_size": 1,
    "enable_dp_attention": False,
    "enable_dp_lm_head": False,
    "moe_dense_tp_size": None,
    "moe_a2a_backend": "none",
    "kv_cache_dtype": "fp8_e4m3",
    "dtype": "auto",
    "quantization": None,
    "attention_backend": "flashinfer",
    "disable_cuda_graph": False,
    "max_total_num_tokens": 495552,
    "page_size": 1,
    "internal_states": [{"last_gen_throughput": 10.5, "memory_usage": {"kvcache": 21.3, "token_capacity": 495552}}],
    "version": "0.5.14",
}

VLLM_TEXT = (
    "model='deepseek-ai/DeepSeek-V3', speculative_config=SpeculativeConfig(method='mtp', model='other',"
    " draft_tensor_parallel_size=1), tokenizer='deepseek-ai/DeepSeek-V3', dtype=torch.bfloat16, max_seq_len=16384,"
    " load_format=auto, tensor_parallel_size=4, pipeline_parallel_size=1, data_parallel_size=2,"
    " quantization=fp8, enforce_eager=False, kv_cache_dtype=auto, device_config=cuda"
)

VLLM_JSON = {
    "vllm_config": {
        "model_config": {"model": "deepseek-ai/DeepSeek-V3", "dtype": "torch.bfloat16", "quantization": "fp8"},
        "parallel_config": {
            "tensor_parallel_size": 1,
            "data_parallel_size": 8,
            "pipeline_parallel_size": 1,
            "enable_expert_parallel": True,
        },
        "cache_config": {"cache_dtype": "fp8", "block_size": 64, "num_gpu_blocks": 7743},
    },
    "vllm_env": {"VLLM_USE_V1": True},
}


@pytest.fixture(name="read")
def read_fixture(tmp_path: Path) -> Any:
    def read(told: Any) -> ServerInfo:
        path = tmp_path / "info.json"
        path.write_bytes(told if isinstance(told, bytes) else json.dumps(told).encode())
        return read_server_info(path)

    return read


def test_sglang(read: Any) -> None:
    assert read(SGLANG) == ServerInfo(
        server="SGLang",
        model_path="zai-org/GLM-5-FP8",
        parallel=Parallel(8),
        kv_cache_dtype="fp8_e4m3",
        dtype="auto",
        quantization=None,
        pool_slots=495_552,
        page_size=1,
        notes=(),
    )


def test_sglangs_attention_data_parallelism(read: Any) -> None:
    """Of 16 ranks, 4 groups attend to their own requests with 4 ranks each; the experts lie on all 16."""
    found = read(
        SGLANG
        | {"tp_size": 16, "dp_size": 4, "ep_size": 16, "enable_dp_attention": True, "enable_dp_lm_head": True}
        | {"moe_dense_tp_size": 1, "moe_a2a_backend": "deepep"}
    ).parallel
    assert (found.tp, found.attention_tp, found.ep, found.expert_tp) == (16, 4, 16, 1)
    assert (found.dense_tp, found.shared_tp, found.lm_head_tp) == (1, 1, 4)


def test_without_attention_data_parallelism_dp_are_replicas(read: Any) -> None:
    found = read(SGLANG | {"tp_size": 4, "dp_size": 2})
    assert found.parallel == Parallel(4)
    assert found.notes == ("2 replicas, each of 4 ranks: the figures are one replica's",)


@pytest.mark.parametrize(
    ("states", "slots", "noted"),
    [
        ([{"memory_usage": {"token_capacity": 1000}}, {"memory_usage": {"token_capacity": 1000}}], 1000, 0),
        ([{"max_total_num_tokens": 1000}], 1000, 0),
        ([{"memory_usage": {"token_capacity": 1000}}, {"memory_usage": {"token_capacity": 999}}], None, 1),
        ([{"last_gen_throughput": 0.0}], None, 0),
        ([], None, 0),
    ],
)
def test_slots_from_the_ranks(read: Any, states: list[Any], slots: int | None, noted: int) -> None:
    """Versions without the scheduler's own figure."""
    told = {key: value for key, value in SGLANG.items() if key != "max_total_num_tokens"}
    found = read(told | {"internal_states": states})
    assert (found.pool_slots, len(found.notes)) == (slots, noted)


def test_vllm_as_json(read: Any) -> None:
    """Eight groups of one rank attend apart and hold all but the experts for themselves."""
    found = read(VLLM_JSON)
    assert (found.server, found.model_path, found.dtype) == ("vLLM", "deepseek-ai/DeepSeek-V3", "bfloat16")
    spread = found.parallel
    assert (spread.tp, spread.attention_tp, spread.ep, spread.expert_tp) == (8, 1, 8, 1)
    assert (spread.dense_tp, spread.shared_tp, spread.lm_head_tp) == (1, 1, 1)
    assert (found.pool_slots, found.page_size, found.kv_cache_dtype) == (7743 * 64, 64, "fp8")
    assert read(VLLM_JSON["vllm_config"]) == found


@pytest.mark.parametrize(
    "told",
    [
        {"vllm_config": VLLM_TEXT},
        VLLM_TEXT.encode(),
        f"INFO 11-30 12:00:00 [core.py:93] Initializing a V1 LLM engine (v0.13) with config: {VLLM_TEXT}\n".encode(),
    ],
)
def test_vllm_as_text(read: Any, told: Any) -> None:
    """Four ranks in each of two groups; the drafter's own settings are not the server's."""
    found = read(told)
    assert (found.model_path, found.quantization, found.kv_cache_dtype) == ("deepseek-ai/DeepSeek-V3", "fp8", "auto")
    assert found.dtype == "bfloat16"
    spread = found.parallel
    assert (spread.tp, spread.attention_dp, spread.attention_tp, spread.ep) == (8, 2, 4, 1)
    assert (found.pool_slots, found.page_size) == (None, None)
    assert len(found.notes) == 1
    assert "--ep" in found.notes[0]


def test_a_quantisation_of_none_is_none(read: Any) -> None:
    text = VLLM_TEXT.replace("quantization=fp8", "quantization=None")
    assert read({"vllm_config": text}).quantization is None


HOSTILE: dict[str, Any] = {
    "empty": b"",
    "no JSON": b"tp_size: 8",
    "a list": [SGLANG],
    "deep brackets": b'{"model_path":' * 100_000,
    "bytes": bytes(range(256)),
    "something else": {"schemaVersion": 1, "traceEvents": []},
    "no ranks": SGLANG | {"tp_size": 0},
    "negative ranks": SGLANG | {"tp_size": -8},
    "ranks as text": SGLANG | {"tp_size": "8"},
    "ranks as truth": SGLANG | {"tp_size": True},
    "more ranks than there are": SGLANG | {"tp_size": 10**9},
    "a number without end": SGLANG | {"max_total_num_tokens": 10**60},
    "slots as text": SGLANG | {"max_total_num_tokens": "495552"},
    "a path as a number": SGLANG | {"model_path": 5},
    "no path": SGLANG | {"model_path": None},
    "a path too long": SGLANG | {"model_path": "x" * 5000},
    "states that are none": SGLANG | {"internal_states": [1]},
    "groups that do not divide": SGLANG | {"dp_size": 3, "enable_dp_attention": True},
    "experts that do not divide": SGLANG | {"ep_size": 3},
    "another text": {"vllm_config": "hello"},
    "a config as a number": {"vllm_config": 3},
    "ranks of vLLM": {"vllm_config": VLLM_TEXT.replace("tensor_parallel_size=4", "tensor_parallel_size=0")},
    "many ranks of vLLM": VLLM_TEXT.replace("tensor_parallel_size=4", "tensor_parallel_size=" + "9" * 5000).encode(),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_anything_else_is_wrong_usage(read: Any, what: str) -> None:
    with pytest.raises(UsageError, match=r"^--server-info ") as caught:
        read(HOSTILE[what])
    assert caught.value.exit_code is ExitCode.WRONG_USAGE
    assert len(str(caught.value)) < 1000


def test_a_file_without_end_is_not_read_to_it(read: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="larger than 16 MiB"):
        read(b" " * (MOST_BYTES + 1))
    for path in (tmp_path, tmp_path / "missing", "x" * 5000, "a\0b"):
        with pytest.raises(UsageError, match="cannot be read"):
            read_server_info(path)
