"""The linear modules of a model as checkpoints name them, and which of them a pattern means."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.errors import UsageError
from stepscope.model.catalogue import Component
from stepscope.model.spec import Mla

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.model.spec import ModelSpec

MOST_PATTERNS = 100_000
MOST_REGULAR = 200
"""Regular expressions are tried one by one; published configs have a handful."""
MOST_GLOBS = 5_000
_GLOBS_AT_ONCE = 100
_LONGEST = 1_000
_REGULAR = "re:"

_MLA = ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
_GQA = ("q_proj", "k_proj", "v_proj", "o_proj")
_INDEX = ("wq_b", "wk", "weights_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_MIXTRAL = ("w1", "w3", "w2")


class Module(NamedTuple):
    """A linear module of one layer."""

    component: Component
    names: tuple[str, ...]
    """What families of models call it."""


def linear_modules(spec: ModelSpec) -> list[Module]:
    """Return the linear modules of all layers; one of the routed experts stands for all."""
    return [module for layer in range(len(spec.layers)) for module in _of_layer(spec, layer)]


def _of_layer(spec: ModelSpec, layer: int) -> Iterator[Module]:
    prefix = f"model.layers.{layer}"
    attention = f"{prefix}.self_attn"
    if isinstance(spec.attention, Mla):
        direct = spec.attention.q_lora_rank is None
        yield from _each(Component.ATTENTION, attention, [*_MLA[:1], *_MLA[3:]] if direct else _MLA[1:])
    else:
        yield from _each(Component.ATTENTION, attention, _GQA)
    if spec.sparse_index is not None:
        yield from _each(Component.INDEX, f"{attention}.indexer", _INDEX)
    mlp = f"{prefix}.mlp"
    if not spec.layers[layer].has_experts:
        yield from _each(Component.DENSE_MLP, mlp, _MLP)
        return
    for name, other in zip(_MLP, _MIXTRAL, strict=True):
        mixtral = f"{prefix}.block_sparse_moe.experts.0.{other}"
        yield Module(Component.EXPERTS, (f"{mlp}.experts.0.{name}", mixtral))
    if spec.experts is not None and spec.experts.shared:
        for name in _MLP:
            names = f"{mlp}.shared_experts.{name}", f"{mlp}.shared_expert.{name}"
            yield Module(Component.SHARED_EXPERT, names)


def _each(component: Component, prefix: str, names: Sequence[str]) -> Iterator[Module]:
    yield from (Module(component, (f"{prefix}.{name}",)) for name in names)


def matched(modules: Sequence[Module], patterns: Sequence[str]) -> tuple[NDArray[np.bool_], list[str]]:
    """Tell which modules are meant by any of the patterns, and return the patterns that cannot be understood.

    A plain pattern means a module with these parts in its name, and all that is below it; with `*` or `?` it is a
    glob of a module's whole name or of one around it; after `re:` a regular expression that its name begins with.

    Raises:
        UsageError: there are more patterns, or longer ones, than any model needs.
    """
    distinct = [pattern.replace("language_model.", "").strip(".") for pattern in dict.fromkeys(patterns)]
    regular = [pattern.removeprefix(_REGULAR) for pattern in distinct if pattern.startswith(_REGULAR)]
    rest = [pattern for pattern in distinct if not pattern.startswith(_REGULAR)]
    globs = [pattern for pattern in rest if "*" in pattern or "?" in pattern]
    plain = {pattern for pattern in rest if pattern and not pattern.isdigit()} - {*globs}
    if len(distinct) > MOST_PATTERNS or len(globs) > MOST_GLOBS or len(regular) > MOST_REGULAR:
        raise UsageError(f"the quantisation config has more patterns of modules ({len(distinct):,}) than a model needs")
    if any(len(pattern) > _LONGEST for pattern in distinct):
        raise UsageError(f"the quantisation config has a pattern of more than {_LONGEST:,} characters")
    owner = np.array([row for row, module in enumerate(modules) for _ in module.names], dtype=np.int64)
    names = [name for module in modules for name in module.names]
    found = np.array([not plain.isdisjoint(_parts(name)) for name in names], dtype=np.bool_)
    expressions = [
        "|".join(f"(?:{_translated(glob)})" for glob in globs[start : start + _GLOBS_AT_ONCE])
        for start in range(0, len(globs), _GLOBS_AT_ONCE)
    ]
    unclear = []
    for expression in [*expressions, *regular]:
        hits = _begin_with(names, expression)
        if hits is None:
            unclear.append(_REGULAR + expression)
        else:
            found |= hits
    of_module = np.zeros(len(modules), dtype=np.bool_)
    np.logical_or.at(of_module, owner, found)
    return of_module, unclear


def _parts(name: str) -> Iterator[str]:
    """Yield every run of whole parts of a dotted name."""
    parts = name.split(".")
    for start in range(len(parts)):
        for end in range(start + 1, len(parts) + 1):
            yield ".".join(parts[start:end])


def _translated(glob: str) -> str:
    escaped = re.escape(glob).replace(r"\*", ".*").replace(r"\?", ".")
    return rf"{escaped}(?:\..*)?$"


def _begin_with(names: Sequence[str], expression: str) -> NDArray[np.bool_] | None:
    """Tell which names begin with an expression; None where it is not one.

    Polars' expressions take linear time whatever they are, so that a config cannot hang whoever reads it.
    """
    import polars as pl  # noqa: PLC0415 -- most configs do without

    try:
        hits = pl.Series(names, dtype=pl.String).str.contains(f"^(?:{expression})")
    except pl.exceptions.PolarsError:
        return None
    return hits.to_numpy()
