"""The model's own facts: its layers, the tensors on one rank, and which of them a shape is."""

from stepscope.model.caches import CacheTensor, index_cache, kv_caches, rank_caches
from stepscope.model.catalogue import LINEAR, Component, Weight, mtp_weights, rank_weights
from stepscope.model.config import load_model, preset_names
from stepscope.model.deployment import Deployment, Served, weight_formats
from stepscope.model.families import read_config
from stepscope.model.formats import Stored, WeightFormat, find_format, format_names
from stepscope.model.kv_pool import KVPoolLayout, kv_pool_layout
from stepscope.model.match import How, Match, match_elements, match_shape
from stepscope.model.parallel import Parallel
from stepscope.model.parameters import Parameters, count_parameters
from stepscope.model.spec import Experts, Gqa, Layer, Mla, ModelSpec, SparseIndex

__all__ = [
    "LINEAR",
    "CacheTensor",
    "Component",
    "Deployment",
    "Experts",
    "Gqa",
    "How",
    "KVPoolLayout",
    "Layer",
    "Match",
    "Mla",
    "ModelSpec",
    "Parallel",
    "Parameters",
    "Served",
    "SparseIndex",
    "Stored",
    "Weight",
    "WeightFormat",
    "count_parameters",
    "find_format",
    "format_names",
    "index_cache",
    "kv_caches",
    "kv_pool_layout",
    "load_model",
    "match_elements",
    "match_shape",
    "mtp_weights",
    "preset_names",
    "rank_caches",
    "rank_weights",
    "read_config",
    "weight_formats",
]
