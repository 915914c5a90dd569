"""The model's own facts: its layers, the tensors on one rank, and which of them a shape is."""

from stepscope.model.catalogue import Weight, match_elements, match_weight, rank_weights
from stepscope.model.deployment import Deployment
from stepscope.model.kv_pool import KVPoolLayout, kv_pool_layout
from stepscope.model.spec import ModelSpec, load_preset, preset_names

__all__ = [
    "Deployment",
    "KVPoolLayout",
    "ModelSpec",
    "Weight",
    "kv_pool_layout",
    "load_preset",
    "match_elements",
    "match_weight",
    "preset_names",
    "rank_weights",
]
