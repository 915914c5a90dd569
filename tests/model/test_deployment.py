"""What the command line, a checkpoint and a server tell together, and which of them wins."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.model.test_server_info import SGLANG, VLLM_JSON

from stepscope.errors import ExitCode, UsageError
from stepscope.model import Component, Deployment, Parallel, load_model, preset_names, rank_weights
from stepscope.model.checkpoint import find_preset
from stepscope.model.config import load_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NVFP4_EXPERTS = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["*self_attn*", "*shared_expert*"]}}


@pytest.fixture(name="server")
def server_fixture(tmp_path: Path) -> Callable[..., Path]:
    """Write a server's answer, SGLang's with some fields changed."""

    def save(**fields: Any) -> Path:
        path = tmp_path / "info.json"
        path.write_text(json.dumps(SGLANG | fields))
        return path

    return save


@pytest.fixture(name="checkpoint")
def checkpoint_fixture(tmp_path: Path) -> Callable[..., Path]:
    """Write a folder with GLM-5's config, with fields added, and the file that ModelOpt puts beside it."""

    def save(sidecar: Any = None, **fields: Any) -> Path:
        folder = tmp_path / "checkpoint"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**load_config("glm-5"), **fields}))
        if sidecar is not None:
            (folder / "hf_quant_config.json").write_text(json.dumps(sidecar))
        return folder

    return save


def shapes(deployment: Deployment) -> dict[str, tuple[int, ...]]:
    return {weight.name: weight.shape for weight in deployment.weights}


class TestParallel:
    @pytest.mark.parametrize(
        ("ep", "dp", "w13", "o_proj"),
        [
            (None, None, (256, 512, 6144), (6144, 2048)),
            (8, None, (32, 4096, 6144), (6144, 2048)),
            (4, None, (64, 2048, 6144), (6144, 2048)),
            (8, 8, (32, 4096, 6144), (6144, 16384)),
            (None, 2, (256, 512, 6144), (6144, 4096)),
        ],
    )
    def test_groups_change_the_weights(
        self, ep: int | None, dp: int | None, w13: tuple[int, ...], o_proj: tuple[int, ...]
    ) -> None:
        """GLM-5 on 8 ranks: 256 experts of 2 x 2048 x 6144; 64 heads of 256; shared expert 2048; vocabulary 154,880."""
        found = shapes(Deployment.of("glm-5", 8, None, ep=ep, dp=dp))
        assert (found["w13"], found["o_proj"]) == (w13, o_proj)
        assert (found["shared_w13"], found["lm_head"]) == ((512, 6144), (19360, 6144))
        assert found["embedding"] == (154880 * (dp or 1) // 8, 6144)

    def test_vllms_groups_hold_all_but_the_experts_for_themselves(self) -> None:
        """DeepSeek-V3, eight groups of one rank: 128 heads of 128; dense 18432, shared 2048; 256 experts over all."""
        spread = Parallel(8, attention_dp=8, ep=8, dense_dp=8, shared_dp=8, lm_head_dp=8)
        found = {weight.name: weight.shape for weight in rank_weights(load_model("deepseek-v3"), spread)}
        assert found["o_proj"] == (7168, 16384)
        assert found["dense_w13"] == (2 * 18432, 7168)
        assert found["shared_w13"] == (2 * 2048, 7168)
        assert found["w13"] == (32, 4096, 7168)
        assert found["lm_head"] == found["embedding"] == (129280, 7168)

    @pytest.mark.parametrize(("option", "value"), [("ep", 3), ("dp", 3), ("ep", 16), ("dp", 16)])
    def test_groups_that_do_not_divide_the_ranks_are_wrong_usage(self, option: str, value: int) -> None:
        with pytest.raises(UsageError, match=f"--{option} {value}: the 8 ranks of --tp do not divide") as caught:
            Deployment.of("glm-5", 8, None, **{option: value})  # type: ignore[arg-type]
        assert caught.value.exit_code is ExitCode.WRONG_USAGE

    @pytest.mark.parametrize("options", [{"tp": 8}, {"ep": 8}, {"dp": 8}])
    def test_ranks_without_a_model_are_wrong_usage(self, options: dict[str, int]) -> None:
        tp = options.pop("tp", None)
        with pytest.raises(UsageError, match="says nothing without --model"):
            Deployment.of(None, tp, None, **options)  # type: ignore[arg-type]

    def test_groups_without_ranks_are_wrong_usage(self) -> None:
        with pytest.raises(UsageError, match="--ep 8: says nothing without --tp"):
            Deployment.of("glm-5", None, None, ep=8)


class TestServer:
    def test_it_tells_everything(self, server: Any) -> None:
        found = Deployment.of(None, None, 1024, server_info=server())
        assert (found.name, found.source, found.spec) == ("glm-5", "server info", load_model("glm-5"))
        assert (found.parallel, found.context) == (Parallel(8), 1024)
        assert (found.kv_dtype, found.pool_slots, found.page_size) == ("Float8_e4m3fn", 495_552, 1)
        assert (found.formats, found.format_names, found.notes) == (None, None, ())
        assert shapes(found)["w13"] == (256, 512, 6144)

    def test_the_command_line_wins_and_what_contradicts_is_said(self, server: Any) -> None:
        found = Deployment.of("deepseek-v3", 4, None, ep=2, dp=2, kv_dtype="bf16", server_info=server())
        assert (found.name, found.source, found.kv_dtype) == ("deepseek-v3", "preset", "BFloat16")
        assert found.parallel == Parallel(4, attention_dp=2, ep=2)
        assert found.notes == (
            "--model deepseek-v3 is used, though the server runs zai-org/GLM-5-FP8",
            "--tp 4 is used, though the server tells 8",
            "--ep 2 is used, though the server tells 1",
            "--dp 2 is used, though the server tells 1",
        )

    def test_what_agrees_is_not_said(self, server: Any) -> None:
        assert Deployment.of("glm-5", 8, None, ep=1, dp=1, server_info=server()).notes == ()

    def test_a_model_that_is_not_known_is_said(self, server: Any) -> None:
        found = Deployment.of(None, 8, None, server_info=server(model_path="acme/Secret-7T"))
        assert (found.name, found.source, found.spec, found.weights) == ("acme/Secret-7T", "server info", None, ())
        assert found.parallel == Parallel(8)
        assert "acme/Secret-7T, is not known here: give --model" in found.notes[0]

    def test_a_model_of_another_kind_is_said_too(self, server: Any, tmp_path: Path) -> None:
        path = tmp_path / "config.json"
        path.write_text('{"model_type": "mamba_of_tomorrow", "architectures": ["Tomorrow"]}')
        found = Deployment.of(None, None, None, server_info=server(model_path=str(tmp_path)))
        assert found.spec is None
        assert "cannot be used" in found.notes[0]

    def test_a_folder_is_read(self, server: Any, checkpoint: Any) -> None:
        folder = checkpoint(NVFP4_EXPERTS, num_hidden_layers=10)
        found = Deployment.of(None, None, None, server_info=server(model_path=str(folder)))
        assert found.spec is not None
        assert (found.name, len(found.spec.layers)) == (str(folder), 10)
        assert found.format_names is not None
        assert found.format_names["experts"] == "nvfp4"

    def test_ranks_of_another_number_drop_the_servers_groups(self, server: Any) -> None:
        info = server(tp_size=16, dp_size=16, ep_size=16, enable_dp_attention=True, moe_dense_tp_size=1)
        assert Deployment.of(None, 8, None, server_info=info).parallel == Parallel(8)

    def test_pipeline_stages_are_said(self, server: Any) -> None:
        assert "2 pipeline stages" in Deployment.of(None, None, None, server_info=server(pp_size=2)).notes[0]

    def test_vllm(self, tmp_path: Path) -> None:
        path = tmp_path / "info.json"
        path.write_text(json.dumps(VLLM_JSON))
        found = Deployment.of(None, None, None, server_info=path)
        assert (found.name, found.kv_dtype, found.pool_slots) == ("deepseek-v3", "Float8_e4m3fn", 495_552)
        assert found.format_names is not None
        assert set(found.format_names.values()) == {"fp8"}
        assert shapes(found)["w13"] == (32, 4096, 7168)


class TestFormats:
    def test_of_a_checkpoint(self, checkpoint: Any) -> None:
        """75 layers of 256 experts; w13 of a rank of eight at 4.5 bits and two float32 scales an expert."""
        found = Deployment.of(str(checkpoint(NVFP4_EXPERTS, torch_dtype="bfloat16")), 8, None)
        assert found.format_names == {
            "attention": "bf16",
            "sparse index": "bf16",
            "dense MLP": "nvfp4",
            "experts": "nvfp4",
            "shared expert": "bf16",
        }
        w13 = next(weight for weight in found.weights if weight.name == "w13")
        assert w13.bytes == 805_306_368 * 9 // 16 + 256 * 8
        assert found.source is not None
        assert found.source.endswith("checkpoint/config.json")

    def test_the_command_line_wins_over_a_checkpoint(self, checkpoint: Any) -> None:
        found = Deployment.of(str(checkpoint(NVFP4_EXPERTS)), 8, None, weights="gguf:Q4_K")
        assert found.format_names is not None
        assert found.format_names["experts"] == "gguf:Q4_K"

    def test_a_checkpoint_that_says_nothing_is_as_it_was_trained(self, checkpoint: Any) -> None:
        found = Deployment.of(str(checkpoint(torch_dtype="float16")), 8, None)
        assert set(found.format_names or {}) == {"attention", "sparse index", "dense MLP", "experts", "shared expert"}
        assert set((found.format_names or {}).values()) == {"fp16"}

    def test_a_preset_says_nothing_of_how_it_is_stored(self) -> None:
        assert Deployment.of("glm-5", 8, None).format_names is None

    @pytest.mark.parametrize(
        ("method", "experts", "attention"),
        [
            ("modelopt_fp4", "nvfp4", "bf16"),
            ("fp8", "fp8", "fp8"),
            ("awq_marlin", "int4-awq", "bf16"),
            ("gptq", "int4-gptq", "bf16"),
        ],
    )
    def test_a_server_names_the_method(self, server: Any, method: str, experts: str, attention: str) -> None:
        found = Deployment.of(None, None, None, server_info=server(quantization=method))
        assert found.format_names is not None
        assert (found.format_names["experts"], found.format_names["attention"]) == (experts, attention)
        assert len(found.notes) == 1

    @pytest.mark.parametrize("method", ["compressed-tensors", "w4afp8", "bitsandbytes"])
    def test_a_method_that_leaves_the_format_open_is_said(self, server: Any, method: str) -> None:
        found = Deployment.of(None, None, None, server_info=server(quantization=method))
        assert found.formats is None
        assert f"{method!r}, does not tell the format" in found.notes[0]

    def test_fp8_made_by_the_server(self, server: Any, checkpoint: Any) -> None:
        info = server(model_path=str(checkpoint()), quantization="fp8")
        found = Deployment.of(None, None, None, server_info=info)
        assert set((found.format_names or {}).values()) == {"fp8-channel"}

    @pytest.mark.parametrize(("experts", "weights"), [("fp8", {"fp8"}), ("mxfp4", {"bf16", "mxfp4"})])
    def test_of_the_command_line(self, experts: str, weights: set[str]) -> None:
        found = Deployment.of("glm-5", 8, None, weights=experts)
        assert found.format_names is not None
        assert (found.format_names["experts"], set(found.format_names.values())) == (experts, weights)
        router = next(weight for weight in found.weights if weight.component is Component.ROUTER)
        assert router.format.name == "bf16"


class TestKvDtype:
    @pytest.mark.parametrize(
        ("told", "dtype", "notes"),
        [
            ({"kv_cache_dtype": "fp8_e4m3"}, "Float8_e4m3fn", 0),
            ({"kv_cache_dtype": "fp8_e5m2"}, "Float8_e5m2", 0),
            ({"kv_cache_dtype": "bfloat16"}, "BFloat16", 0),
            ({"kv_cache_dtype": "auto", "dtype": "float16"}, "Half", 0),
            ({"kv_cache_dtype": "auto", "dtype": "auto"}, None, 0),  # a preset does not tell what it was trained in
            ({"kv_cache_dtype": "fp4_e2m1"}, None, 1),
            ({"kv_cache_dtype": None}, None, 0),
        ],
    )
    def test_of_a_server(self, server: Any, told: dict[str, Any], dtype: str | None, notes: int) -> None:
        found = Deployment.of(None, None, None, server_info=server(**told))
        assert (found.kv_dtype, len(found.notes)) == (dtype, notes)

    def test_auto_follows_the_checkpoint(self, server: Any, checkpoint: Any) -> None:
        folder = str(checkpoint({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}))
        found = Deployment.of(None, None, None, server_info=server(model_path=folder, kv_cache_dtype="auto"))
        assert found.kv_dtype == "Float8_e4m3fn"
        assert found.notes == ("the KV cache's type is the one that the checkpoint is meant for",)

    def test_auto_is_what_the_model_was_trained_in(self, server: Any, checkpoint: Any) -> None:
        folder = str(checkpoint(torch_dtype="bfloat16"))
        found = Deployment.of(None, None, None, server_info=server(model_path=folder, kv_cache_dtype="auto"))
        assert found.kv_dtype == "BFloat16"


def test_rows_of_the_pool_are_its_slots_and_a_page_at_most(server: Any) -> None:
    """SGLang's tensor has one page more, which padding writes to: [495553, 1, 576] for 495,552 slots of page 1."""
    assert Deployment.of(None, None, None, server_info=server()).pool_rows == range(495_552, 495_554)
    assert Deployment.of(None, None, None, server_info=server(page_size=64)).pool_rows == range(495_552, 495_617)
    assert Deployment.of("glm-5", 8, None).pool_rows is None


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("zai-org/GLM-5", "glm-5"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
        ("DEEPSEEK-AI/deepseek-v3", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", None),
        ("DeepSeek-V3", None),
        ("", None),
    ],
)
def test_names_on_the_hub(name: str, preset: str | None) -> None:
    assert find_preset(name) == preset
    assert preset is None or preset in preset_names()


@pytest.mark.parametrize("content", ["[1]", "{", '{"quantization": {"quant_algo": 4}}', '{"quantization": "NVFP4"}'])
def test_a_damaged_file_beside_the_config_is_wrong_usage(checkpoint: Any, content: str) -> None:
    folder = checkpoint()
    (folder / "hf_quant_config.json").write_text(content)
    with pytest.raises(UsageError, match=r"hf_quant_config\.json"):
        Deployment.of(str(folder), 8, None)
