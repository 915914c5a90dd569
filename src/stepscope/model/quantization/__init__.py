"""Quantisation configs: what a checkpoint says of itself → the format of each kind of layer, and the KV cache's type.

`quantization_config` in `config.json`, or ModelOpt's `hf_quant_config.json` beside it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import numpy as np

from stepscope.errors import UsageError
from stepscope.model.catalogue import Component
from stepscope.model.formats import (
    BF16,
    FP8,
    FP8_CHANNEL,
    FP8_TENSOR,
    MXFP4,
    NVFP4,
    NVFP4_WEIGHT_ONLY,
    WeightFormat,
    fp8_block,
    int4,
)
from stepscope.model.json_file import convert
from stepscope.model.quantization.modules import linear_modules, matched

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.model.spec import ModelSpec

_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
_Group = Annotated[int, msgspec.Meta(ge=-1, le=1 << 20)]
_Bits = Annotated[int, msgspec.Meta(ge=1, le=64)]

FP8_KV = "Float8_e4m3fn"


class _Numbers(msgspec.Struct):
    """How compressed-tensors describes the numbers of a tensor."""

    num_bits: _Bits
    type: str = "int"
    strategy: str | None = None
    group_size: _Group | None = None
    block_structure: tuple[_Size, _Size] | None = None
    symmetric: bool = True


class _ConfigGroup(msgspec.Struct):
    targets: list[str] = []
    weights: _Numbers | None = None
    input_activations: dict[str, Any] | None = None


class _QuantisedLayer(msgspec.Struct):
    quant_algo: str | None = None


class _Config(msgspec.Struct):
    """The fields of all methods that tell how weights are stored."""

    quant_method: str = ""
    bits: _Bits | None = None
    group_size: _Group | None = None
    weight_block_size: tuple[_Size, _Size] | None = None
    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    kv_cache_scheme: _Numbers | None = None
    quantized_layers: dict[str, _QuantisedLayer] | None = None
    config_groups: dict[str, _ConfigGroup] | None = None
    dynamic: dict[str, Any] | None = None
    ignore: list[str] | None = None
    ignored_layers: list[str] | None = None
    exclude_modules: list[str] | None = None
    modules_to_not_convert: list[str] | None = None

    def excluded(self) -> Iterator[str]:
        """Yield the patterns of the modules that stay as they are."""
        for patterns in (self.ignore, self.ignored_layers, self.exclude_modules, self.modules_to_not_convert):
            yield from patterns or ()
        for key in self.dynamic or {}:  # GPTQModel's: "-:" and a regular expression leave modules out
            if key.startswith("-:"):
                yield f"re:{key.removeprefix('-:')}"


class _Scheme(NamedTuple):
    """A format and the modules that are stored in it."""

    format: WeightFormat | None
    """None: it is not known."""
    told: str
    """What the config calls it."""
    targets: Sequence[str] | None = None
    """Patterns of modules; None: every linear module that nothing else names."""


class Quantization(NamedTuple):
    """What a checkpoint's quantisation config tells."""

    formats: Mapping[Component, WeightFormat] | None
    """Format by kind of layer, of what is not BF16; None: not known."""
    kv_dtype: str | None
    """Type that its KV cache is meant for; None: it does not say."""
    notes: tuple[str, ...]
    """What is not known or not uniform, a sentence each."""


def read_quantization(
    spec: ModelSpec, config: Mapping[str, Any], sidecar: Mapping[str, Any] | None = None
) -> Quantization | None:
    """Return what a checkpoint says of its weights; None: it says nothing, so they are as they were trained.

    Args:
        spec: the model.
        config: its `config.json`.
        sidecar: the `hf_quant_config.json` beside it, which wins.

    Raises:
        UsageError: a field is of the wrong type.
    """
    if sidecar is not None and sidecar.get("quantization") is not None:
        found = convert(sidecar["quantization"], _Config, "hf_quant_config.json")
        found.quant_method = "modelopt"
    else:
        raw = config.get("quantization_config")
        if raw is None:
            return None
        found = convert(raw, _Config, "quantization_config")
    formats, notes = _formats(spec, found)
    kv_dtype, kv_notes = _kv_dtype(found)
    return Quantization(formats, kv_dtype, (*notes, *kv_notes))


def _formats(spec: ModelSpec, config: _Config) -> tuple[Mapping[Component, WeightFormat] | None, list[str]]:
    schemes = list(_schemes(config))
    notes = [
        f"the checkpoint's quantisation {told!r} is not known: what is stored so is counted as BF16"
        for told in dict.fromkeys(scheme.told for scheme in schemes if scheme.format is None)
    ]
    if schemes and all(scheme.format is None for scheme in schemes):
        return None, notes
    modules = linear_modules(spec)
    names = [BF16.name, *(scheme.format.name if scheme.format else BF16.name for scheme in schemes)]
    by_name = {scheme.format.name: scheme.format for scheme in schemes if scheme.format}
    chosen = np.zeros(len(modules), dtype=np.int64)  # 0: as trained; n: the scheme n - 1
    # what names modules wins over what means all: it is written last
    for number, scheme in sorted(enumerate(schemes, 1), key=lambda item: item[1].targets is not None):
        if scheme.targets is None:
            chosen[:] = number
            continue
        hits, unclear = matched(modules, scheme.targets)
        notes += [f"a pattern of the quantisation config cannot be understood: {pattern}" for pattern in unclear]
        chosen[hits] = number
    hits, unclear = matched(modules, list(config.excluded()))
    notes += [f"a pattern of the quantisation config cannot be understood: {pattern}" for pattern in unclear]
    chosen[hits] = 0
    if config.quant_method == "mxfp4":  # transformers converts experts only, whatever else is excluded
        chosen[[module.component is not Component.EXPERTS for module in modules]] = 0
    formats = {}
    for component in dict.fromkeys(module.component for module in modules):
        rows = [row for row, module in enumerate(modules) if module.component is component]
        counted = Counter(names[number] for number in chosen[rows])
        (name, count), *others = counted.most_common()
        if others:
            rest = ", ".join(f"{number:,} {other}" for other, number in others)
            notes.append(f"{component}: {count:,} of {len(rows):,} modules are {name}, which stands for all ({rest})")
        if name in by_name:
            formats[component] = by_name[name]
    return formats, notes


def _schemes(config: _Config) -> Iterator[_Scheme]:
    method = config.quant_method
    if config.config_groups is not None and not method.startswith("modelopt"):
        for group in config.config_groups.values():
            if group.weights is not None:
                everything = any(target[:1].isupper() for target in group.targets)  # a class, such as Linear
                found = _of_numbers(group.weights, has_inputs=group.input_activations is not None)
                yield _Scheme(found, _told(group.weights), None if everything else group.targets)
    elif config.quantized_layers is not None:
        by_algorithm: dict[str, list[str]] = {}
        for name, layer in config.quantized_layers.items():
            if layer.quant_algo is not None:
                by_algorithm.setdefault(layer.quant_algo, []).append(name)
        for algorithm, names in by_algorithm.items():
            yield _Scheme(_MODELOPT.get(algorithm.upper()), algorithm, names)
    elif method.startswith("modelopt"):
        if config.quant_algo is not None:
            yield _Scheme(_MODELOPT.get(config.quant_algo.upper()), config.quant_algo)
    else:
        yield _Scheme(_of_method(config), method)


_MODELOPT: Mapping[str, WeightFormat] = {
    "FP8": FP8_TENSOR,
    "FP8_PB_WO": FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8_CHANNEL,
    "NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "W4A16_NVFP4": NVFP4_WEIGHT_ONLY,
}
"""ModelOpt's algorithms (`quant_algo`)."""


def _of_method(config: _Config) -> WeightFormat | None:
    group = _group(int4.GROUP if config.group_size is None else config.group_size)
    match config.quant_method:
        case "fp8":
            return fp8_block(*config.weight_block_size) if config.weight_block_size else FP8_TENSOR
        case "fbgemm_fp8":
            return FP8_CHANNEL
        case "mxfp4":
            return MXFP4
        case "awq" if config.bits == 4:
            return int4.awq(group)
        case "gptq" if config.bits == 4:
            return int4.gptq(group)
        case _:
            return None


def _of_numbers(numbers: _Numbers, *, has_inputs: bool) -> WeightFormat | None:
    """Return the format of compressed-tensors' weights; narrow inputs decide what is multiplied."""
    match numbers.type, numbers.num_bits, numbers.strategy:
        case "float", 8, "block":
            return fp8_block(*(numbers.block_structure or (128, 128)))
        case "float", 8, "channel" | "tensor":
            return FP8_CHANNEL if numbers.strategy == "channel" else FP8_TENSOR
        case "float", 4, "tensor_group" if numbers.group_size == 16:
            return NVFP4 if has_inputs else NVFP4_WEIGHT_ONLY
        case "float", 4, "group" if numbers.group_size == 32:
            return MXFP4
        case "int", 4, "group" | "channel" if numbers.symmetric and not has_inputs:
            return int4.packed(_group(numbers.group_size))
        case _:
            return None


def _told(numbers: _Numbers) -> str:
    return f"{numbers.type}{numbers.num_bits} by {numbers.strategy}"


def _group(size: int | None) -> int | None:
    if size == 0:
        raise UsageError("quantization_config: a group_size of 0 has no meaning")
    return None if size is None or size == -1 else size


def _kv_dtype(config: _Config) -> tuple[str | None, list[str]]:
    scheme, algorithm = config.kv_cache_scheme, config.kv_cache_quant_algo
    if scheme is not None and algorithm is None:
        algorithm = "FP8" if (scheme.type, scheme.num_bits) == ("float", 8) else _told(scheme)
    if algorithm is None:
        return None, []
    if algorithm.upper() == "FP8":
        return FP8_KV, []
    return None, [f"the checkpoint's type of the KV cache, {algorithm!r}, is not known"]
