"""A kernel on FP8, FP4 or packed integers is slower than a good kernel on the same in 16 bits would be.

## What it looks like
A quantised linear layer, expert or attention kernel that takes longer than twice to four times its bytes would at the
memory's rate, or than its operations would at the 16-bit one. Its name often tells a kernel of an older GPU: Marlin,
which dequantises as it multiplies; FA2 on a cache of another type than the queries; `sm80` or `wmma` on a newer one.

## Why it happens
Fewer bits save bytes only. A kernel that converts them to 16 bits before it multiplies does more than a 16-bit one, and
where operations bound it, in prefill or at large batches, that shows. On a new architecture the native kernel may not
be there yet, and the fallback is one of the last.

## What looks the same and is harmless
The same kernel in decode, where bytes bound it and it wins: phases are judged apart, and a server that decodes most of
the time may well keep it. A kernel far below the roofline of its own bits that still beats 16 bits
(`gemm-below-roofline`). Small calls, whose latency decides.

## Control
Run the same phase with 16-bit weights, or with a 16-bit KV cache, at the same sizes, and compare this kernel's time.

## Fixes
- configuration: Choose a backend that multiplies in the stored type on this GPU (SGLang: `--fp8-gemm-backend`,
  `--moe-runner-backend`; vLLM: its log names the one it took and those it could have). Needs a version that has a
  native kernel for this GPU.
- configuration: Choose an attention backend that multiplies in the cache's type on this GPU (SGLang, vLLM:
  `--attention-backend`). Needs a version that has a native kernel for this GPU.
- configuration: Keep the KV cache in 16 bits. Needs twice the memory a token.
- configuration: Serve prefill apart from decode, with 16-bit or natively multiplied weights. Needs memory for such
  weights.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stepscope import units
from stepscope.kernel_name import LOOKED_AT
from stepscope.pipeline.detect.casts import covered_us_per_step
from stepscope.pipeline.detect.excess import excess_of
from stepscope.pipeline.detect.explanation import fixes_of
from stepscope.pipeline.detect.multiplications import Judge
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.placement import Placement
from stepscope.pipeline.detect.rule import CANNOT_BE_TOLD, Case, Cause, Excluded, Rule, Unchecked
from stepscope.pipeline.detect.training import is_training

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.document import Fix
    from stepscope.pipeline.attribute import WorkGroup
    from stepscope.pipeline.detect.excess import Excess
    from stepscope.pipeline.detect.multiplications import Multiplication

BACKEND, ATTENTION_BACKEND, CACHE_IN_16_BITS, PREFILL_APART = fixes_of(__doc__)
MIN_SHARE = 0.01
"""What the excess must take of the GPU's time in a step."""
MIN_US = 0.9
"""What needs less at the GPU's rates takes 3 to 6 µs in any kernel, in 16 bits as well."""
MIN_ATTENTION_US = 30.0
"""Shorter attention is bound by how it is split and merged, in 16 bits as well (18.7 µs of an H200 for one request of
1,000 tokens, which its bytes need 0.3 for)."""
NOTABLE_SHARE = 0.1
"""Quantised kernels of unknown sizes that take less of the GPU's time are not worth a question."""
MULTIPLY = {"gemm", "moe-gemm"}

_QUANTISED = re.compile(
    r"marlin|machete|awq|gptq|wna16|w4a16|w8a8|e4m3|fp8|float8|mxfp[48]|nvfp4|fp4|int4|q[2-8]_[k01]|bitsandbytes",
    re.IGNORECASE,
)

ASSUMPTION = (
    "each call takes what a good 16-bit kernel does: its bytes or operations in 16 bits at the rate that such kernels"
    " reach, and 3 µs a kernel; at best what its own bits need"
)
NONE_KNOWN = "no multiplication in fewer bits than 16 is known"
SIZES_NOT_KNOWN = f"{CANNOT_BE_TOLD}: not all sizes of the multiplications in fewer bits than 16 are known"
SIZES_UNKNOWN = Unchecked(
    "whether quantised multiplications are slower in this phase than in 16 bits: their sizes are not known",
    "record with record_shapes=True; of a graph also an eager run, as --capture-trace",
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Excluded | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find multiplications and attention in fewer bits that are slower than in 16."""
    judge = Judge.of(case, Placement.of(case))
    if judge is None or is_training(case.linked):
        return
    judged = list(judge.multiplications(MULTIPLY | {"attention"}))
    slower = [each for each in judged if _is_slower(each)]
    in_16_bits = [each.in_16_bits_us for each in slower if each.in_16_bits_us is not None]
    excess = excess_of(judge, slower, in_16_bits)
    if excess is not None and excess.us_per_step >= MIN_SHARE * case.busy_us:
        yield _cause(case, excess)
        return
    known = {id(group) for each in judged for group in each.worked.kernels}
    unknown = [group for group in case.groups if id(group) not in known and _is_quantised(group)]
    unknown_us = covered_us_per_step(case, unknown) if unknown else 0.0
    if case.phase != "decode" and unknown_us >= NOTABLE_SHARE * case.busy_us > 0:
        yield SIZES_UNKNOWN
    else:
        in_fewer = [each for each in judged if each.in_16_bits_us is not None]
        us = unknown_us + sum(each.us * each.worked.per_step for each in in_fewer)
        reason = "calls in fewer bits whose sizes are known take no longer than in 16" if in_fewer else NONE_KNOWN
        yield Excluded(us, case.measured.share(us), SIZES_NOT_KNOWN if unknown_us else reason)


def _is_slower(found: Multiplication) -> bool:
    if found.floor_us < MIN_US or not found.is_slower_than_in_16_bits:
        return False
    return found.main.kernel_class in MULTIPLY or (found.in_16_bits_us or 0.0) >= MIN_ATTENTION_US


def _is_quantised(group: WorkGroup) -> bool:
    return group.kernel_class in MULTIPLY and bool(_QUANTISED.search(group.kernel[:LOOKED_AT]))


def _cause(case: Case, excess: Excess) -> Cause:
    largest, calls = excess.largest, excess.largest.worked.per_step
    what = largest.tensor or (largest.main.op if largest.main.kernel_class in MULTIPLY else "attention")
    return Cause(
        title=f"{units.count(calls)} call{'' if calls == 1 else 's'} in fewer bits a step{f' ({what})' if what else ''}"
        f" of {units.time(largest.us)}, where in 16 bits a good kernel takes {units.time(excess.good_us[0])}",
        confidence=excess.confidence,
        notes=list(excess.notes()),
        time_us_per_step=excess.us_per_step,
        evidence=excess.evidence(case),
        change=excess.change(case),
        change_at_best=excess.change_at_best(case),
        assumption=ASSUMPTION,
        origin=Origin.of(case, largest.worked.kernels),
        fixes=_fixes(case, largest),
    )


def _fixes(case: Case, largest: Multiplication) -> Sequence[Fix]:
    if largest.main.kernel_class not in MULTIPLY:
        return ATTENTION_BACKEND, CACHE_IN_16_BITS
    return (BACKEND, PREFILL_APART) if case.phase == "prefill" else (BACKEND,)


RULE = Rule(
    "low-precision-slower",
    __doc__,
    check,
    needs=("GPU kernels", "input shapes, of this trace or a --capture-trace", "a GPU whose rates are known"),
    classes=("gemm", "moe-gemm", "attention"),
)
