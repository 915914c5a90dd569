"""How a model is served: the facts that a trace does not hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from stepscope.errors import UsageError
from stepscope.model.catalogue import LINEAR, Component, Weight, rank_weights
from stepscope.model.checkpoint import Checkpoint, find_preset, open_checkpoint
from stepscope.model.config import config_path
from stepscope.model.formats import BF16, FP8_CHANNEL, FP16, WeightFormat, find_format
from stepscope.model.kv_pool import PUBLISHED_MLA, KVPoolLayout, kv_pool_layout
from stepscope.model.parallel import Parallel
from stepscope.model.server_info import DTYPES, ServerInfo, read_server_info
from stepscope.model.spec import Mla, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

_SERVERS_METHODS = {
    "modelopt_fp4": "nvfp4",
    "modelopt_fp8": "fp8-tensor",
    "awq": "int4-awq",
    "awq_marlin": "int4-awq",
    "gptq": "int4-gptq",
    "gptq_marlin": "int4-gptq",
    "mxfp4": "mxfp4",
    "fp8": "fp8",
}
"""What servers call a method that leaves one format open, and that format."""


class Served(TypedDict, total=False):
    """How a model is served, as a user tells it: keyword arguments of every function that asks for a model."""

    model: str | None
    """A preset's name, or a Hugging Face `config.json` or its folder; tells which tensor a shape is."""
    server_info: str | Path | None
    """A file with what the server tells of itself, for what the other options do not."""
    tp: int | None
    """Ranks of the tensor-parallel group."""
    ep: int | None
    """Ranks, of those, that the experts are shared out over."""
    dp: int | None
    """Groups of those ranks that attend to requests of their own (attention data parallelism)."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on one rank, and the load it serves. None: not told."""

    name: str | None
    source: str | None
    """Where the model's facts are from: `preset`, the path of its `config.json`, or `server info`."""
    spec: ModelSpec | None
    parallel: Parallel | None
    context: int | None
    """Live tokens of a request."""
    weights: tuple[Weight, ...]
    """On one rank; empty where the ranks or the model are not told."""
    kv_pool: KVPoolLayout | None
    """Of latent attention, also where no model is told; None: the model keeps keys and values by head."""
    formats: Mapping[Component, WeightFormat] | None
    """By kind of layer, of what is not BF16."""
    kv_dtype: str | None
    """As torch writes it."""
    pool_slots: int | None
    """Tokens that a rank's pool holds."""
    page_size: int | None
    notes: tuple[str, ...]
    """What was assumed, is not known or contradicts, a sentence each."""

    @classmethod
    def of(  # noqa: PLR0913 -- what the command line tells, by name
        cls,
        model: str | None = None,
        tp: int | None = None,
        context: int | None = None,
        *,
        ep: int | None = None,
        dp: int | None = None,
        weights: str | None = None,
        kv_dtype: str | None = None,
        server_info: str | Path | None = None,
    ) -> Self:
        """Build a deployment from what the command line tells, and a server where that does not.

        `Served` documents `model`, `server_info` and the ranks; without ranks no weight is known, only the pool.
        `context` is live tokens of a request, `weights` a format's name, as `weight_formats` takes it, and `kv_dtype`
        the type of the KV cache, as servers call it.

        Raises:
            UsageError: there is no such model or file, the model does not divide by the ranks, or an option says
                nothing without another.
        """
        told = None if server_info is None else read_server_info(server_info)
        for option, value in (("--tp", tp), ("--ep", ep), ("--dp", dp), ("--context", context)):
            if value is not None and value < 1:
                raise UsageError(f"{option} {value}: must be at least 1")
        for option, value in (("--tp", tp), ("--ep", ep), ("--dp", dp)):
            if value is not None and model is None and told is None:
                raise UsageError(f"{option} {value}: says nothing without --model")
        checkpoint, notes = _checkpoint(model, told)
        parallel, more = _parallel(tp, ep, dp, told)
        notes += more
        stored: Mapping[Component, WeightFormat] | None = None
        if checkpoint is not None:
            notes += checkpoint.spec.notes
            stored, more = _formats(checkpoint, weights, told)
            notes += more
        kv, more = _kv_dtype(kv_dtype, checkpoint, told)
        spec = checkpoint.spec if checkpoint else None
        return cls(
            name=checkpoint.name if checkpoint else told.model_path if told else None,
            source="server info" if model is None and told else checkpoint and checkpoint.source,
            spec=spec,
            parallel=parallel,
            context=context,
            weights=rank_weights(spec, parallel, stored) if spec and parallel else (),
            kv_pool=_kv_pool(spec),
            formats=stored,
            kv_dtype=kv,
            pool_slots=told.pool_slots if told else None,
            page_size=told.page_size if told else None,
            notes=(*notes, *more, *(told.notes if told else ())),
        )

    @property
    def format_names(self) -> dict[str, str] | None:
        """The format of each kind of linear layer that the model has; None where not known."""
        if self.spec is None or self.formats is None:
            return None
        has = {weight.component for weight in rank_weights(self.spec, Parallel())}
        return {str(part): self.formats.get(part, BF16).name for part in LINEAR if part in has}

    @property
    def main_format(self) -> WeightFormat:
        """The format of the routed experts, or of the attention of a dense model: that of most weights."""
        part = Component.EXPERTS if self.spec and self.spec.experts else Component.ATTENTION
        return (self.formats or {}).get(part, BF16)

    @property
    def pool_rows(self) -> range | None:
        """Rows that a layer's pool tensor can have: its slots, and in SGLang a page more, which padding writes to."""
        if self.pool_slots is None:
            return None
        return range(self.pool_slots, self.pool_slots + (self.page_size or 1) + 1)


def weight_formats(spec: ModelSpec, name: str) -> dict[Component, WeightFormat]:
    """Return the format of each kind of layer, from the one that the command line names.

    It is the format of the routed experts, or of every linear layer of a dense model; the rest stays BF16, except that
    with FP8 it is FP8 too. Norms, the router, the embedding and the LM head are never converted.

    Raises:
        UsageError: there is no such format.
    """
    named = find_format(name)
    if spec.experts is not None and not name.startswith("fp8"):
        return {Component.EXPERTS: named}
    return dict.fromkeys(LINEAR, named)


def _kv_pool(spec: ModelSpec | None) -> KVPoolLayout | None:
    if spec is None:
        return PUBLISHED_MLA
    return kv_pool_layout(spec.attention) if isinstance(spec.attention, Mla) else None


class _Found(NamedTuple):
    checkpoint: Checkpoint | None
    notes: list[str]


def _checkpoint(model: str | None, told: ServerInfo | None) -> _Found:
    """Return the model of the command line, else the server's, if that is known here."""
    path = told.model_path if told else None
    if path is None:
        return _Found(open_checkpoint(model) if model is not None else None, [])
    try:
        name = path if config_path(path) else find_preset(path)
    except UsageError:
        name = None
    if model is not None:
        chosen = open_checkpoint(model)
        differs = name is not None and _spec_of(name) not in (None, chosen.spec)
        notes = [f"--model {model} is used, though the server runs {path}"] if differs else []
        return _Found(chosen, notes)
    if name is None:
        return _Found(None, [f"the server's model, {path}, is not known here: give --model, also a config.json"])
    try:
        return _Found(open_checkpoint(name), [])
    except UsageError as error:
        return _Found(None, [f"the server's model, {path}, cannot be used ({error})"])


def _spec_of(name: str) -> ModelSpec | None:
    """Return a model, or None where it cannot be read."""
    try:
        return open_checkpoint(name).spec
    except UsageError:
        return None


def _parallel(
    tp: int | None, ep: int | None, dp: int | None, told: ServerInfo | None
) -> tuple[Parallel | None, list[str]]:
    known = told.parallel if told else None
    notes = [
        f"{option} {value} is used, though the server tells {server}"
        for option, value, server in (
            ("--tp", tp, known and known.tp),
            ("--ep", ep, known and known.ep),
            ("--dp", dp, known and known.attention_dp),
        )
        if value is not None and server is not None and value != server
    ]
    if known is not None and known.pp > 1:
        notes.append(f"{known.pp} pipeline stages: a rank holds the layers of one, the weights are counted of all")
    if tp is None and known is None:
        for option, value in (("--ep", ep), ("--dp", dp)):
            if value is not None:
                raise UsageError(f"{option} {value}: says nothing without --tp")
        return None, notes
    if known is None or tp not in {None, known.tp}:  # groups of other ranks say nothing of these
        known = Parallel(1 if tp is None else tp, pp=known.pp if known else 1)
    return replace(known, ep=ep or known.ep, attention_dp=dp or known.attention_dp), notes


def _formats(
    checkpoint: Checkpoint, weights: str | None, told: ServerInfo | None
) -> tuple[Mapping[Component, WeightFormat] | None, list[str]]:
    """Return the formats that the command line tells, else the checkpoint, else the server."""
    spec, found = checkpoint.spec, checkpoint.quantization
    if weights is not None:
        return weight_formats(spec, weights), []
    dtype = _dtype(checkpoint, told)
    plain = dict.fromkeys(Component, FP16) if dtype == "Half" else {}
    if found is not None:
        return (None if found.formats is None else {**plain, **found.formats}), list(found.notes)
    method = told.quantization if told else None
    from_config = checkpoint.source != "preset"
    if method is None:
        return (plain if from_config else None), []  # a preset's checkpoints differ in what they store
    if method == "fp8" and from_config:
        return {**plain, **dict.fromkeys(LINEAR, FP8_CHANNEL)}, ["the server makes FP8 of the weights, by channel"]
    if method not in _SERVERS_METHODS:
        return None, [f"the server's quantisation, {method!r}, does not tell the format: weights are counted as BF16"]
    return {**plain, **weight_formats(spec, _SERVERS_METHODS[method])}, [
        f"which layers {method!r} means is taken from how published models use it; a config.json tells"
    ]


def _dtype(checkpoint: Checkpoint | None, told: ServerInfo | None) -> str | None:
    """Return the type of activations, as torch writes it."""
    served = told.dtype if told else None
    if served in {None, "auto"}:
        served = checkpoint.dtype if checkpoint else None
    return DTYPES.get(served.lower()) if served else None


def _kv_dtype(
    option: str | None, checkpoint: Checkpoint | None, told: ServerInfo | None
) -> tuple[str | None, list[str]]:
    """Return the type of the KV cache that the command line tells, else the server, else the checkpoint."""
    if option is not None:
        if option not in DTYPES:
            raise UsageError(f"--kv-dtype {option}: no such type; known are {', '.join(DTYPES)}")
        return DTYPES[option], []
    served = told.kv_cache_dtype if told else None
    if served not in {None, "auto"}:
        known = DTYPES.get(str(served).lower())
        return known, [] if known else [f"the server's type of the KV cache, {served!r}, is not known"]
    found = checkpoint.quantization if checkpoint else None
    if found is not None and found.kv_dtype is not None:
        return found.kv_dtype, ["the KV cache's type is the one that the checkpoint is meant for"]
    return (_dtype(checkpoint, told) if served == "auto" else None), []
