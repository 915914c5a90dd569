"""A matrix multiplication takes far longer than its bytes or its operations need: too few blocks, or a poor split.

## What it looks like
A linear layer at a few rows that reads its weight at a small part of the memory's rate, though weights of the same
model are read several times as fast. Often the grid has about as many blocks as the GPU has multiprocessors, or fewer;
or the kernel that adds up a split K takes longer than the multiplication.

## Why it happens
A block reads with a few loads in flight, and many blocks must run on each multiprocessor to hide the memory's latency.
Tiles that suit a large batch leave a small one with few blocks. Heuristics choose tile and split for shapes they were
tuned on, and another shape, or another GPU, gets what is left.

## What looks the same and is harmless
Small weights: a kernel takes about 3 µs besides its bytes, so that what would take 0.5 µs at the memory's rate cannot
be told from healthy. Persistent kernels, which have as many blocks as there are multiprocessors by design. Kernels that
share the GPU with others. A warning that a default MoE config is used: it often costs nothing (vllm#44688, 23.52 µs
against 23.49). Experts of a batch: which of them were hit is not recorded, so only a single token's are judged.

## Control
Time this multiplication alone, on the same shape and type, with another kernel (torch.compile's max-autotune, a
vendor's GEMV, another tile), its weight not in the L2 cache. If none is faster, it is as fast as it gets.

## Fixes
- configuration: Tune the kernel for this shape, or choose another backend for it (SGLang: `--moe-runner-backend`, and
  `tuning_fused_moe_triton.py`; vLLM: `benchmark_moe.py --tune` with `VLLM_TUNED_CONFIG_FOLDER`; torch.compile:
  `mode=max-autotune`; ROCm: `PYTORCH_TUNABLEOP_ENABLED=1`).
- code: Give it more to read at a time: more blocks (narrower tiles, or K split over them where adding up is cheap), or
  longer pieces of K and more stages; pad sizes to a multiple of 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepscope import units
from stepscope.pipeline.cost import Bound
from stepscope.pipeline.detect.device import multiprocessors
from stepscope.pipeline.detect.excess import Excess, excess_of
from stepscope.pipeline.detect.multiplications import Judge, blocks, is_determined
from stepscope.pipeline.detect.origin import Origin
from stepscope.pipeline.detect.placement import Placement
from stepscope.pipeline.detect.rule import CANNOT_BE_TOLD, Case, Cause, Excluded, Rule, Unchecked
from stepscope.pipeline.detect.slow_signs import slow_signs
from stepscope.pipeline.detect.training import is_training

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.pipeline.detect.multiplications import Multiplication

CLASSES = ("gemm", "moe-gemm")
MIN_RATIO = {Bound.MEMORY: 1.4, Bound.COMPUTE: 2.0}
"""Of what a good kernel takes. Healthy GEMMs at hand take up to 1.25 times as long where bytes bound them; where
operations do, up to 1.72 times, on a GPU whose rate was not measured."""
SMALL_US, MIN_RATIO_OF_SMALL = 0.9, 1.5
"""Calls that need less than this at the GPU's rates vary more: healthy ones take up to 1.32 times as long."""
MIN_US = 0.5
"""What needs less takes 2 to 6 µs in any kernel: its latency decides, and it is healthy."""
MIN_SHARE = 0.01
"""What the excess must take of the GPU's time in a step."""

ASSUMPTION = (
    "each call takes what its bytes or operations take at the rate that good kernels reach, and 3 µs a kernel; at best"
    " at the GPU's whole rate"
)


def check(case: Case, found: Mapping[str, Cause]) -> Iterator[Cause | Excluded | Unchecked]:  # noqa: ARG001 -- a rule's signature
    """Find multiplications by weights that take far longer than a good kernel."""
    judge = Judge.of(case, Placement.of(case))
    if is_training(case.linked):
        return
    judged = [each for each in judge.multiplications(CLASSES) if is_determined(each)] if judge else []
    slow = [each for each in judged if _is_slow(each)]
    excess = excess_of(judge, slow, [each.good_us for each in slow]) if judge else None
    if excess is not None and excess.us_per_step >= MIN_SHARE * case.busy_us:
        yield _cause(case, excess)
    elif all_us := sum(group.time_us_per_step for group in case.groups if group.kernel_class in CLASSES):
        yield Excluded(all_us, case.measured.share(all_us), _why_not(judge, judged, all_us))


def _why_not(judge: Judge | None, judged: Sequence[Multiplication], all_us: float) -> str:
    """Say how near a good kernel's time the multiplications come whose sizes are known, or that it cannot be told."""
    if judge is None:
        return f"{CANNOT_BE_TOLD}: the rates of this GPU are not known"
    known_us = sum(each.worked.per_step * each.us for each in judged)
    if not known_us:
        return f"{CANNOT_BE_TOLD}: the sizes of multiplications by weights are not known"
    slowest = max((each.us / each.good_us for each in judged if each.floor_us >= MIN_US), default=1.0)
    share, times = units.share(min(known_us / all_us, 1.0)), max(slowest, 1.0)
    return f"sizes are known of {share} of it; there no call takes more than {times:.1f} times what a good kernel does"


def _is_slow(found: Multiplication) -> bool:
    """Tell whether it is slow, but not as a whole slower than in 16 bits, which another rule says more about."""
    ratio = MIN_RATIO.get(found.bound)
    if ratio is None or found.floor_us < MIN_US or not is_determined(found) or found.is_slower_than_in_16_bits:
        return False
    return found.us >= (max(ratio, MIN_RATIO_OF_SMALL) if found.floor_us < SMALL_US else ratio) * found.good_us


def _cause(case: Case, excess: Excess) -> Cause:
    largest = excess.largest
    calls, what = largest.worked.per_step, largest.tensor or largest.main.op
    noun = f"multiplication{'' if calls == 1 else 's'}"
    sign, *more = [*slow_signs(case.linked.trace, largest), ""]
    return Cause(
        title=f"{units.count(calls)} {noun} a step{f' ({what})' if what else ''} of {units.time(largest.us)}, where a"
        f" good kernel takes {units.time(largest.good_us)}{f': {sign}' if sign else ''}",
        confidence=excess.confidence,
        notes=[*excess.notes(), *(f"{other[0].upper()}{other[1:]}." for other in more if other)],
        time_us_per_step=excess.us_per_step,
        evidence=replace(
            excess.evidence(case), blocks=blocks(largest), multiprocessors=multiprocessors(case.linked.trace)
        ),
        change=excess.change(case),
        change_at_best=excess.change_at_best(case),
        assumption=ASSUMPTION,
        origin=Origin.of(case, largest.worked.kernels),
    )


RULE = Rule(
    "gemm-below-roofline",
    __doc__,
    check,
    needs=("GPU kernels", "input shapes, of this trace or a --capture-trace", "a GPU whose rates are known"),
    is_general=True,
    classes=CLASSES,
)
