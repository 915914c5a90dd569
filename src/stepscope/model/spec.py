"""What a model is made of, read from the fields of a Hugging Face `config.json`."""

from __future__ import annotations

from importlib import resources

import msgspec

from stepscope.errors import UsageError


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture-of-experts model with multi-head latent attention (MLA), as its `config.json` describes it.

    Widths are numbers of elements; the names are those of the file.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    intermediate_size: int
    first_k_dense_replace: int
    """The first layers, which have a dense MLP instead of experts."""
    vocab_size: int
    num_nextn_predict_layers: int = 0
    """Multi-token-prediction layers, not counted in `num_hidden_layers`."""

    @property
    def moe_layers(self) -> int:
        """Number of layers with experts."""
        return self.num_hidden_layers - self.first_k_dense_replace


def preset_names() -> list[str]:
    """Return the names that `load_preset` knows."""
    return sorted(entry.name.removesuffix(".json") for entry in _presets().iterdir() if entry.name.endswith(".json"))


def load_preset(name: str) -> ModelSpec:
    """Return a model by its name.

    Raises:
        UsageError: there is no preset of that name.
    """
    if name not in preset_names():
        raise UsageError(f"--model {name}: unknown model; known are {', '.join(preset_names())}")
    return msgspec.json.decode((_presets() / f"{name}.json").read_bytes(), type=ModelSpec)


def _presets() -> resources.abc.Traversable:
    return resources.files("stepscope.model") / "presets"
