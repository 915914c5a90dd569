"""Hugging Face configs: `config.json` → `ModelSpec`, one reader a family of architectures."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.errors import UsageError
from stepscope.model.json_file import read_object
from stepscope.model.spec import Experts, Layer, Mla, ModelSpec, SparseIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Config = Mapping[str, Any]


def preset_names() -> list[str]:
    """Return the names that `load_model` knows."""
    return sorted(entry.name.removesuffix(".json") for entry in _presets().iterdir() if entry.name.endswith(".json"))


def load_model(name: str) -> ModelSpec:
    """Return a model by its preset's name, or from a `config.json` or the folder that holds it.

    Raises:
        UsageError: there is neither such a preset nor such a file, or the file is no config of a known kind.
    """
    config = load_config(name)
    try:
        return read_config(config)
    except UsageError as error:
        raise UsageError(f"--model {name}: {error}") from error


def load_config(name: str) -> Config:
    """Return the config that `load_model` reads.

    Raises:
        UsageError: there is neither such a preset nor such a file, or the file holds no JSON object.
    """
    if name in preset_names():
        config: Config = msgspec.json.decode((_presets() / f"{name}.json").read_bytes())
        return config
    path = config_path(name)
    if path is None:
        raise UsageError(f"--model {name}: neither a config.json nor a known model ({', '.join(preset_names())})")
    return read_object(path, f"--model {name}")


def config_path(name: str) -> Path | None:
    """Return the file that a path or a folder names; None: there is none.

    Raises:
        UsageError: it cannot be looked at.
    """
    path = Path(name)
    try:
        path = path / "config.json" if path.is_dir() else path
        return path if path.is_file() else None
    except (OSError, ValueError) as error:
        raise UsageError(f"--model {name}: cannot be read ({error})") from error


def read_config(config: Config) -> ModelSpec:
    """Return the model that a config describes.

    Raises:
        UsageError: a field is missing or of the wrong type, or the architecture is none that is modelled.
    """
    reader = _READERS.get(config.get("model_type", ""))
    if reader is None:
        raise UsageError(f"model_type {config.get('model_type')!r} is not known")
    return reader(config)


def _latent(config: Config) -> ModelSpec:
    """DeepSeek-V2, V3 and V3.2, Kimi-K2, GLM-5: latent attention, leading dense layers, then experts."""
    inner = _int(config, "moe_intermediate_size")
    shared = config.get("n_shared_experts") or 0
    first_dense = config.get("first_k_dense_replace") or 0
    return ModelSpec(
        architecture=config["architectures"][0],
        hidden_size=_int(config, "hidden_size"),
        vocab_size=_int(config, "vocab_size"),
        num_attention_heads=_int(config, "num_attention_heads"),
        attention=Mla(
            q_lora_rank=config.get("q_lora_rank"),
            kv_lora_rank=_int(config, "kv_lora_rank"),
            qk_nope_head_dim=_int(config, "qk_nope_head_dim"),
            qk_rope_head_dim=_int(config, "qk_rope_head_dim"),
            v_head_dim=_int(config, "v_head_dim"),
        ),
        layers=tuple(Layer(has_experts=i >= first_dense) for i in range(_int(config, "num_hidden_layers"))),
        intermediate_size=_int(config, "intermediate_size"),
        experts=Experts(
            routed=_int(config, "n_routed_experts"),
            per_token=_int(config, "num_experts_per_tok"),
            intermediate_size=inner,
            shared=shared,
            shared_intermediate_size=shared * inner,
        ),
        sparse_index=_sparse_index(config),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        mtp_layers=config.get("num_nextn_predict_layers") or 0,
    )


def _sparse_index(config: Config) -> SparseIndex | None:
    if not config.get("index_topk"):
        return None
    return SparseIndex(
        num_heads=_int(config, "index_n_heads"),
        head_dim=_int(config, "index_head_dim"),
        topk=_int(config, "index_topk"),
    )


_READERS: Mapping[str, Callable[[Config], ModelSpec]] = {
    "deepseek_v2": _latent,
    "deepseek_v3": _latent,
    "deepseek_v32": _latent,
    "glm_moe_dsa": _latent,
    "kimi_k2": _latent,
}


def _int(config: Config, field: str) -> int:
    value = config.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"the config's {field} is {value!r}, not a whole number")
    return value


def _presets() -> resources.abc.Traversable:
    return resources.files("stepscope.model") / "presets"
