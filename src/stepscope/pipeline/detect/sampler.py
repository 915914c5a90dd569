"""The kernels of a sampler, those that sort the whole vocabulary, and how much they sort."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from stepscope.dtypes import item_bytes
from stepscope.pipeline.cost import Ceilings, Work
from stepscope.pipeline.detect.lm_head import lm_head_weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.document import Evidence
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.detect.rule import Case

MIN_VOCABULARY = 4097
"""What is not longer is sorted by one block of torch's, and is no vocabulary."""
SAMPLER = {"reduction", "sampling", "gather", "elementwise", "cast"} | {
    "copy",
    "fill",
    "memset",
    "memcpy",
    "unclassified",
}
"""Classes of what a sampler is made of; collectives that gather the logits are not its own."""
_WIDE_SORT = re.compile(
    r"DeviceRadixSort|Device\w*Segmented\w*Sort|segmented_?sort|sort_postprocess|rocprim\S*sort", re.IGNORECASE
)
"""Sorts of rows that are too long for one block."""
_SELECTS = {"aten::topk"}
"""What sorts only what it has selected."""
_LOGITS = "Float"


class Logits(NamedTuple):
    """What is sorted."""

    rows: int
    vocabulary: int | None
    from_shape: bool
    """Whether its shape was recorded."""


def sorts_widely(group: WorkGroup) -> bool:
    """Tell whether kernels sort rows as long as a vocabulary."""
    if group.op in _SELECTS or not _WIDE_SORT.search(group.kernel):
        return False
    return not group.input_shapes or not group.input_shapes[0] or group.input_shapes[0][-1] >= MIN_VOCABULARY


def sorted_logits(case: Case, sorting: Sequence[WorkGroup], *, gathered: bool) -> Logits | None:
    """Return the size of what is sorted: as recorded, else the batch and the vocabulary, whole once it is gathered."""
    for group in sorting:
        if group.input_shapes and len(group.input_shapes[0]) > 1:
            *leading, width = group.input_shapes[0]
            return Logits(prod(leading), width, from_shape=True)
    if case.step.batch_size is None:
        return None
    spec, weight = case.deployment.spec, lm_head_weight(case)
    vocabulary = spec.vocab_size if spec and (gathered or weight is None) else weight.shape[0] if weight else None
    return Logits(case.step.batch_size, vocabulary, from_shape=False)


def with_logits(case: Case, evidence: Evidence, logits: Logits) -> Evidence:
    """Add the size of the logits, and the least time in which they are read."""
    if logits.vocabulary is None:
        return replace(evidence, tensor="logits")
    size = logits.rows * logits.vocabulary * item_bytes(_LOGITS)
    ceilings = Ceilings.of(case.gpu)
    return replace(
        evidence,
        input_shape=[logits.rows, logits.vocabulary],
        source_dtype=_LOGITS,
        bytes_per_step=size,
        floor_us_per_step=ceilings.floor(Work(size))[0] if ceilings else None,
        tensor="logits",
    )
