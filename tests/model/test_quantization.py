"""What checkpoints say of their weights: configs as they are published, cut to what matters."""

from __future__ import annotations

import time
from typing import Any

import pytest

from stepscope.errors import ExitCode, UsageError
from stepscope.model import load_model
from stepscope.model.quantization import Quantization, read_quantization

LINEAR = {"attention", "sparse index", "dense MLP", "experts", "shared expert"}
GLM_5 = load_model("glm-5")


def read(config: dict[str, Any] | None, sidecar: dict[str, Any] | None = None) -> Quantization:
    found = read_quantization(GLM_5, {} if config is None else {"quantization_config": config}, sidecar)
    assert found is not None
    return found


def names(found: Quantization) -> dict[str, str]:
    assert found.formats is not None
    return {str(component): stored.name for component, stored in found.formats.items()}


def modelopt(**fields: Any) -> dict[str, Any]:
    return {"producer": {"name": "modelopt", "version": "0.40"}, "quantization": fields}


def test_nothing_said_is_nothing_known() -> None:
    assert read_quantization(GLM_5, {"model_type": "glm_moe_dsa"}) is None
    assert read_quantization(GLM_5, {"quantization_config": None}, {"producer": {}}) is None


def test_deepseeks_fp8() -> None:
    found = read(
        {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
    )
    assert names(found) == dict.fromkeys(LINEAR, "fp8")
    assert (found.kv_dtype, found.notes) == (None, ())


def test_fp8_without_blocks_has_one_scale() -> None:
    found = read({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]})
    assert names(found) == dict.fromkeys(LINEAR, "fp8-tensor")
    assert names(read({"quant_method": "fp8", "weight_block_size": [1, 128]}))["experts"] == "fp8-1x128"
    assert names(read({"quant_method": "fbgemm_fp8"}))["experts"] == "fp8-channel"


def test_modelopts_nvfp4_of_the_routed_experts_only() -> None:
    """As GLM-5.1-NVFP4: attention, dense MLPs and shared experts stay BF16."""
    found = read(
        None,
        modelopt(
            quant_algo="NVFP4",
            kv_cache_quant_algo="FP8",
            group_size=16,
            exclude_modules=[
                "lm_head",
                "model.embed_tokens",
                *(f"model.layers.{layer}.self_attn*" for layer in range(79)),
                *(f"model.layers.{layer}.mlp*" for layer in range(3)),
                "model.layers.*.mlp.gate",
                "*.mlp.shared_experts*",
                "model.layers.78*",
            ],
        ),
    )
    assert names(found) == {"experts": "nvfp4"}
    assert (found.kv_dtype, found.notes) == ("Float8_e4m3fn", ())


def test_the_file_beside_wins() -> None:
    found = read_quantization(GLM_5, {"quantization_config": {"quant_method": "awq"}}, modelopt(quant_algo="FP8"))
    assert found is not None
    assert names(found) == dict.fromkeys(LINEAR, "fp8-tensor")


def test_modelopt_in_config_json() -> None:
    """Its newer form: the groups there are for other readers, `quant_algo` and `ignore` say it all."""
    group = {"weights": {"num_bits": 4, "type": "float", "group_size": 16}, "targets": ["Linear"]}
    found = read(
        {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "config_groups": {"group_0": group},
            "ignore": ["model.layers.*.self_attn*"],
            "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        }
    )
    assert names(found) == dict.fromkeys(LINEAR - {"attention", "sparse index"}, "nvfp4")
    assert found.kv_dtype == "Float8_e4m3fn"


def test_modelopts_mixed_precision() -> None:
    layers = {f"model.layers.{layer}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16} for layer in range(3, 78)}
    layers |= {f"model.layers.{layer}.self_attn.o_proj": {"quant_algo": "FP8"} for layer in range(78)}
    found = read(None, modelopt(quant_algo="MIXED_PRECISION", quantized_layers=layers))
    assert names(found) == {"experts": "nvfp4"}
    # MLA has five projections: q_a, q_b, kv_a, kv_b, o; of 5 x 78 one in five is FP8
    assert found.notes == ("attention: 312 of 390 modules are bf16, which stands for all (78 fp8-tensor)",)


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [("FP8", "fp8-tensor"), ("fp8_pb_wo", "fp8"), ("FP8_PER_CHANNEL_PER_TOKEN", "fp8-channel")],
)
def test_modelopts_fp8(algorithm: str, name: str) -> None:
    assert names(read(None, modelopt(quant_algo=algorithm)))["attention"] == name


def test_a_kv_cache_alone() -> None:
    found = read(None, modelopt(quant_algo=None, kv_cache_quant_algo="FP8"))
    assert (found.formats, found.kv_dtype) == ({}, "Float8_e4m3fn")
    other = read(None, modelopt(quant_algo="FP8", kv_cache_quant_algo="INT8"))
    assert other.kv_dtype is None
    assert other.notes == ("the checkpoint's type of the KV cache, 'INT8', is not known",)


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"], **fields}


@pytest.mark.parametrize(
    ("weights", "inputs", "name"),
    [
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, {"num_bits": 8}, "fp8-channel"),
        ({"num_bits": 8, "type": "float", "strategy": "tensor"}, {"num_bits": 8}, "fp8-tensor"),
        ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}, {}, "fp8"),
        ({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, {"num_bits": 4}, "nvfp4"),
        ({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, None, "nvfp4-w4a16"),
        ({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}, None, "mxfp4"),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}, None, "int4-packed"),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}, None, "int4-packed-g32"),
        ({"num_bits": 4, "type": "int", "strategy": "channel", "group_size": -1}, None, "int4-packed-row"),
    ],
)
def test_compressed_tensors(weights: dict[str, Any], inputs: dict[str, Any] | None, name: str) -> None:
    assert names(read(compressed(weights, inputs))) == dict.fromkeys(LINEAR, name)


def test_compressed_tensors_with_expressions() -> None:
    """As Kimi-K2-Thinking: INT4 experts, everything else as trained."""
    config = compressed({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32})
    config["ignore"] = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|down)_proj.*"]
    assert names(read(config)) == {"experts": "int4-packed-g32"}


def test_groups_that_name_modules_win_over_the_one_for_all() -> None:
    config = compressed({"num_bits": 8, "type": "float", "strategy": "channel"}, {"num_bits": 8})
    nvfp4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    config["config_groups"] = {
        "experts": {"targets": ["re:.*mlp.experts.*"], "weights": nvfp4, "input_activations": {"num_bits": 4}},
        **config["config_groups"],
    }
    assert names(read(config)) == {**dict.fromkeys(LINEAR, "fp8-channel"), "experts": "nvfp4"}


def test_gpt_oss_mxfp4() -> None:
    found = read(
        {
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
        }
    )
    assert names(found) == {"experts": "mxfp4"}


def test_awq_and_gptq() -> None:
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
    assert names(read({**awq, "modules_to_not_convert": ["gate"]})) == dict.fromkeys(LINEAR, "int4-awq")
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    assert names(read(gptq)) == dict.fromkeys(LINEAR, "int4-gptq-g32")
    assert names(read({**gptq, "group_size": -1}))["experts"] == "int4-gptq-row"
    left_out = {"-:.*shared_expert": {}, "+:.*self_attn.*": {"bits": 8}}
    assert set(names(read({**gptq, "dynamic": left_out}))) == LINEAR - {"shared expert"}


def test_a_module_by_its_parts_not_by_letters() -> None:
    """`gate` is the router, not `gate_proj`; `self_attn` is all of attention, its index too."""
    config = {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["gate", "self_attn", "0"]}
    assert set(names(read(config))) == LINEAR - {"attention", "sparse index"}


def test_layers_that_differ_are_said() -> None:
    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    found = read({**config, "modules_to_not_convert": ["model.layers.0.mlp", "model.layers.77.mlp.experts"]})
    assert names(found) == dict.fromkeys(LINEAR, "fp8")
    assert found.notes == (
        "dense MLP: 6 of 9 modules are fp8, which stands for all (3 bf16)",
        "experts: 222 of 225 modules are fp8, which stands for all (3 bf16)",
    )


def test_mixtrals_names_of_experts() -> None:
    config = {"quant_method": "fp8", "ignored_layers": ["model.layers.*.block_sparse_moe.experts.*"]}
    assert set(names(read(config))) == LINEAR - {"experts"}


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"quant_method": "awq", "bits": 8},
        {"quant_method": "gptq", "bits": 3, "group_size": 128},
        {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"},
        {},
        compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, {"num_bits": 8}),
        compressed({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": False}),
    ],
)
def test_what_is_not_known_is_said_and_not_guessed(config: dict[str, Any]) -> None:
    found = read(config)
    assert found.formats is None
    assert len(found.notes) == 1
    assert "is not known" in found.notes[0]


@pytest.mark.parametrize(
    "config",
    [
        "fp8",
        [],
        {"quant_method": 8},
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "fp8", "weight_block_size": [128, 0]},
        {"quant_method": "fp8", "weight_block_size": [128, True]},
        {"quant_method": "awq", "bits": "4"},
        {"quant_method": "gptq", "bits": 4, "group_size": 0},
        {"quant_method": "gptq", "bits": 4, "group_size": -7},
        {"quant_method": "gptq", "bits": 4, "group_size": 10**30},
        {"quant_method": "fp8", "ignored_layers": "lm_head"},
        {"quant_method": "fp8", "ignored_layers": [["lm_head"]]},
        {"quant_method": "fp8", "ignored_layers": ["x" * 1001]},
        {"quant_method": "fp8", "ignored_layers": [f"*.{number}" for number in range(5001)]},
        {"quant_method": "fp8", "ignored_layers": [f"re:{number}" for number in range(201)]},
        {"quant_method": "fp8", "ignored_layers": [str(number) for number in range(100_001)]},
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {}}}},
        {"quant_method": "compressed-tensors", "config_groups": ["Linear"]},
    ],
)
def test_a_field_of_the_wrong_type_is_wrong_usage(config: Any) -> None:
    with pytest.raises(UsageError, match=r"quanti[sz]ation") as caught:
        read(config)
    assert caught.value.exit_code is ExitCode.WRONG_USAGE
    assert "\n" not in str(caught.value)


def test_an_expression_that_would_never_end_takes_no_time() -> None:
    started = time.perf_counter()
    found = read({"quant_method": "fp8", "ignored_layers": [r"re:((.+)+)+((.+)+)+!", r"re:(?=x)", "re:(", "*" * 1000]})
    assert time.perf_counter() - started < 5
    assert len(found.notes) == 2  # what is no expression, and what looks ahead
    assert all("cannot be understood" in note for note in found.notes)
    assert names(found) == {}  # a thousand stars mean everything
