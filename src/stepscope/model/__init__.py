"""The model's own facts: its layers, the tensors on one rank, and which of them a shape is."""

from stepscope.model.catalogue import LINEAR, Component, Weight, match_elements, match_weight, rank_weights
from stepscope.model.config import load_model, preset_names, read_config
from stepscope.model.deployment import Deployment, weight_formats
from stepscope.model.formats import Stored, WeightFormat, find_format, format_names
from stepscope.model.kv_pool import KVPoolLayout, kv_pool_layout
from stepscope.model.parallel import Parallel
from stepscope.model.parameters import Parameters, count_parameters
from stepscope.model.spec import Experts, Gqa, Layer, Mla, ModelSpec, SparseIndex

__all__ = [
    "LINEAR",
    "Component",
    "Deployment",
    "Experts",
    "Gqa",
    "KVPoolLayout",
    "Layer",
    "Mla",
    "ModelSpec",
    "Parallel",
    "Parameters",
    "SparseIndex",
    "Stored",
    "Weight",
    "WeightFormat",
    "count_parameters",
    "find_format",
    "format_names",
    "kv_pool_layout",
    "load_model",
    "match_elements",
    "match_weight",
    "preset_names",
    "rank_weights",
    "read_config",
    "weight_formats",
]
