"""What collectives carry: the operation, the bytes of the whole, the ranks of the group."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stepscope.kernel_name import LOOKED_AT
from stepscope.pipeline.cost.ops import call_of
from stepscope.pipeline.cost.rank import ACTIVATION_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.model import Deployment
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.link import Linked
    from stepscope.pipeline.steps import Step

ALL_TO_ALL = "all-to-all"
"""Each rank sends a part of its own to each; nothing is measured to compare it with."""
_KINDS = (
    ("reduce-scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("all-gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("all-reduce", re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE)),
    (ALL_TO_ALL, re.compile(r"all_?to_?all", re.IGNORECASE)),
)
_ITEM = re.compile(r"_(?P<bits>bf16|f16|half|f32|float|f8|u8|i8)", re.IGNORECASE)
_ITEM_BYTES = {"bf16": 2, "f16": 2, "half": 2, "f32": 4, "float": 4, "f8": 1, "u8": 1, "i8": 1}
"""How NCCL's kernels name the type of their elements."""


_SEND_RECV = "SendRecv"
"""NCCL's kernel from one rank to another: between stages of a pipeline who waits is not early, but has no work yet. An
all-to-all runs in it too, in which each rank sends to each; that torch tells, or the op."""
_ALL_TO_ALL = r"(?i)all_?to_?all"


class Message(NamedTuple):
    """What each call of a collective carries."""

    collective: str
    bytes: int
    """Of the whole that is added up, gathered or scattered."""
    ranks: int | None
    """Of the group; None: not known."""
    recorded: bool
    """Whether the trace tells the bytes; else the model does: a layer's output, for all tokens of the step."""


def collectives(groups: Iterable[WorkGroup], linked: Linked) -> list[WorkGroup]:
    """Return the work that all ranks of a group do together."""
    return _split(groups, linked)[0]


def sends(groups: Iterable[WorkGroup], linked: Linked) -> list[WorkGroup]:
    """Return what NCCL sends from one rank to another, or of which nothing tells that it is an all-to-all."""
    return _split(groups, linked)[1]


def _split(groups: Iterable[WorkGroup], linked: Linked) -> tuple[list[WorkGroup], list[WorkGroup]]:
    of_all: list[WorkGroup] = []
    of_two: list[WorkGroup] = []
    for group in groups:
        if group.kernel_class != "collective":
            continue
        if _SEND_RECV not in group.kernel[:LOOKED_AT] or re.search(_ALL_TO_ALL, group.op or ""):
            of_all.append(group)
            continue
        told = linked.kernels["collective"].cast(pl.String).str.contains(_ALL_TO_ALL).fill_null(value=False).to_numpy()
        if told[group.rows].any():
            of_all.append(group.only(told))
        if not told[group.rows].all():
            of_two.append(group.only(~told))
    return of_all, of_two


def message_of(group: WorkGroup, linked: Linked, deployment: Deployment, step: Step) -> Message | None:
    """Return what a group of collectives carries; None where that is not known, or it is another operation."""
    kernel = group.kernel[:LOOKED_AT]
    kind = next((name for name, pattern in _KINDS if pattern.search(kernel)), None)
    if kind is None and _SEND_RECV in kernel:  # of `collectives`
        kind = ALL_TO_ALL
    if kind is None:
        return None
    ranks = _ranks(group, linked, deployment)
    mine = _recorded_bytes(group, linked)
    if mine:
        whole = mine * ranks if kind == "all-gather" and ranks else mine
        return None if kind == "all-gather" and ranks is None else Message(kind, whole, ranks, recorded=True)
    spec, tokens = deployment.spec, step.tokens or step.batch_size
    if kind != "all-reduce" or spec is None or not tokens or group.calls_per_step < len(spec.layers):
        return None
    return Message(kind, spec.hidden_size * tokens * ACTIVATION_BYTES, ranks, recorded=False)


def _ranks(group: WorkGroup, linked: Linked, deployment: Deployment) -> int | None:
    told = linked.kernels["group_size"].gather(group.rows).max()
    if isinstance(told, int):
        return told
    parallel = deployment.parallel
    return parallel.tp if parallel and parallel.attention_dp == 1 and parallel.tp > 1 else None


def _recorded_bytes(group: WorkGroup, linked: Linked) -> int | None:
    """Return the bytes that a rank gives to a call; of several sizes the largest."""
    told = linked.kernels["message_bytes"].gather(group.rows).max()
    if isinstance(told, int):
        return told
    call = call_of(group)
    if call is None:
        return None
    if call.tensors:
        return call.bytes(call.tensors[0])
    item = _ITEM.search(group.kernel[:LOOKED_AT])
    shapes = next(iter(call.lists.values()), ())
    return _ITEM_BYTES[item["bits"].lower()] * sum(map(prod, shapes)) if item and shapes else None
