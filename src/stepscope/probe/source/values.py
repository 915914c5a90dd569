"""What an expression of a backend can be, as far as casts of the KV pool and types given to `plan()` ask."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Kind(StrEnum):
    """Of which data a type is."""

    QUERY = "query"
    """The activations': what the model computes in."""
    POOL = "pool"
    """The KV pool's own."""
    FLOAT8 = "float8"
    OTHER = "other"
    """A type named in the source that is no float8, such as `torch.bfloat16`."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Dtype:
    """A type, and the expression that it was first read from."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Pool:
    """The whole KV pool of a layer, perhaps seen in another shape; `dtype` None: its own type."""

    dtype: Dtype | None = None


@dataclass(frozen=True, slots=True)
class Pools:
    """Several tensors that are each a whole pool: keys and values, or one a layer."""


@dataclass(frozen=True, slots=True)
class Several:
    """A tuple, or what a function returns as one."""

    parts: tuple[frozenset[Value], ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows picked from a pool: not the whole of it."""


@dataclass(frozen=True, slots=True)
class Query:
    """The queries of a step."""

    dtype: Dtype


@dataclass(frozen=True, slots=True)
class Self:
    """The object whose method it is."""


@dataclass(frozen=True, slots=True)
class SelfAttribute:
    """An attribute of it, not yet looked up."""

    name: str


@dataclass(frozen=True, slots=True)
class Name:
    """Something of which only the name is known, as dotted path."""

    path: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter that no call in sight gives a value."""

    name: str
    annotation: str | None = None
    """The class that it is said to be of."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of a class known by name."""

    cls: str


@dataclass(frozen=True, slots=True)
class Text:
    """A string constant."""

    value: str


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A method of a pool chosen when the program runs."""

    text: str


Value: TypeAlias = (
    Dtype | Pool | Pools | Several | Rows | Query | Self | SelfAttribute | Name | Parameter | Instance | Text | Dynamic
)
Values: TypeAlias = frozenset[Value]
NOTHING: Values = frozenset()


def elements(values: Values) -> Values:
    """Return what one of several can be."""
    found: set[Value] = set()
    for value in values:
        found |= {Pool()} if isinstance(value, Pools) else flat(value) if isinstance(value, Several) else {value}
    return frozenset(found)


def flat(several: Several) -> Values:
    """Return all that the parts of a tuple can be."""
    return frozenset(value for part in several.parts for value in part)


# The names below are those of SGLang's and vLLM's source, the same in all versions read for docs/probe.md.

POOL_GETTERS = {"get_key_buffer", "get_value_buffer"}
POOLS_GETTERS = {"get_kv_buffer"}
POOL_LISTS = {"kv_buffer", "k_buffer", "v_buffer"}
"""Attributes of a pool object: a tensor a layer."""
POOL_PARAMETERS = {"kv_cache", "kv_c_and_k_pe_cache"}
"""How vLLM hands a layer's whole cache to the methods of an implementation."""
QUERIES = {"q", "query", "q_nope", "q_pe", "q_rope", "ql_nope", "mqa_q"}
_RUNNERS = {"model_runner", "runner", "model_config"}
_POOL_OBJECTS = {"token_to_kv_pool", "kv_pool", "kv_cache", "pool"}
_POOL_DTYPES = {"kv_cache_dtype", "kv_cache_torch_dtype"}
_FLOAT8 = {"float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"}
_TORCH_DTYPES = {
    *("bfloat16", "float16", "half", "float32", "float", "float64", "double"),
    *("uint8", "int8", "int16", "int32", "int", "int64", "long", "bool"),
}


def attribute(path: str, name: str) -> Value:
    """Return what an attribute of something known only by name is: a type where the names say so."""
    text, last = f"{path}.{name}", path.rpartition(".")[2]
    if path == "torch" and name in _FLOAT8 | _TORCH_DTYPES:
        return Dtype(Kind.FLOAT8 if name in _FLOAT8 else Kind.OTHER, text)
    if name in _POOL_DTYPES and path != "self":
        return Dtype(Kind.POOL, text)
    if name == "dtype" and last in _RUNNERS | QUERIES:
        return Dtype(Kind.QUERY, text)
    if name == "dtype" and last in _POOL_OBJECTS:
        return Dtype(Kind.POOL, text)
    return Name(text)


def is_pool_object(path: str) -> bool:
    """Tell whether a dotted path names an object that holds pools."""
    return path.rpartition(".")[2] in _POOL_OBJECTS
