"""What multiplications take beyond what they would if a better kernel did them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope import units
from stepscope.document import Confidence, Evidence, Group
from stepscope.pipeline.cost import Bound
from stepscope.pipeline.detect.device import generation
from stepscope.pipeline.detect.evidence import MOST_GROUPS
from stepscope.pipeline.detect.multiplications import made_for
from stepscope.pipeline.whatif import Change

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.pipeline.detect.multiplications import Judge, Multiplication
    from stepscope.pipeline.detect.rule import Case


@dataclass(frozen=True, slots=True)
class Excess:
    """Multiplications that take too long, and what they would take."""

    judge: Judge
    slow: Sequence[Multiplication]
    """Those with the longest kernels of a step first."""
    good_us: Sequence[float]
    """What a call would take."""

    @property
    def largest(self) -> Multiplication:
        """The one whose main kernel takes the most time in a step."""
        return self.slow[0]

    @property
    def us_per_step(self) -> float:
        """The excess of a step in µs."""
        return sum(_excess_us(each, good) for each, good in zip(self.slow, self.good_us, strict=True))

    @property
    def confidence(self) -> Confidence:
        """Whether shapes were recorded in this trace and rates measured; or one of it inferred; or neither."""
        kernels = self.judge.case.linked.kernels[self.largest.main.rows]
        unsure = bool(kernels["donor_op"].is_not_null().any()) + (not self.is_measured) + (self.largest.main.op is None)
        return (Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW)[min(unsure, 2)]

    @property
    def is_measured(self) -> bool:
        """Whether the rate was measured that bounds the largest."""
        largest = self.largest
        return self.judge.ceilings.is_measured(largest.bound, largest.work.multiply_dtype)

    def change(self, case: Case) -> Change:
        """Return the change after which each call takes what a good kernel takes."""
        return self._change(case, self.good_us)

    def change_at_best(self, case: Case) -> Change:
        """Return the change after which each call takes the least time of its work."""
        return self._change(case, [each.floor_us for each in self.slow])

    def _change(self, case: Case, then_us: Sequence[float]) -> Change:
        recorded = case.linked.kernels["duration_ns"].to_numpy()
        lasting = recorded.astype(np.float64)
        for each, us in zip(self.slow, then_us, strict=True):
            for group in each.worked.kernels:  # each kernel has its part of the excess
                part = self.judge.own_us[group.rows] * max(1 - us / each.us, 0.0) * 1e3
                lasting[group.rows] = np.maximum(recorded[group.rows] - part, 0.0)
        touched: NDArray[np.bool_] = lasting < recorded
        return Change.lasting(touched, lasting, recorded)

    def evidence(self, case: Case) -> Evidence:
        """Return what was seen; the single fields are of the largest."""
        largest, gpu = self.largest, case.gpu
        call_us, work, gemm = largest.us, largest.work, largest.gemm
        by_bytes = largest.bound is not Bound.COMPUTE
        rate = work.bytes / call_us / 1e3
        peak, measured = (gpu.memory_gb_per_s, gpu.memory_measured_gb_per_s) if gpu and by_bytes else (None, None)
        kernels = [(group, each) for each in self.slow for group in each.worked.kernels]
        return Evidence(
            op=largest.main.op,
            kernel=largest.main.kernel,
            calls_per_step=largest.worked.per_step,
            us_per_call=call_us,
            input_shape=list(gemm.weight_shape) if gemm else None,
            bytes_per_call=round(work.bytes),
            bytes_per_step=round(sum(each.work.bytes * each.worked.per_step for each in self.slow)),
            achieved_gb_per_s=rate if by_bytes else None,
            bandwidth_fraction=rate / peak.value if peak else None,
            bandwidth_fraction_measured=rate / measured.value if measured else None,
            achieved_tflops=None if by_bytes else work.flops / call_us / 1e6,
            floor_us_per_step=sum(each.floor_us * each.worked.per_step for each in self.slow),
            tensor=largest.tensor,
            groups=[
                Group(
                    kernel=group.kernel,
                    tensor=each.tensor,
                    shape=next(iter(group.input_shapes or ()), None),
                    calls_per_step=group.calls_per_step,
                    time_us_per_step=group.time_us_per_step,
                )
                for group, each in sorted(kernels, key=lambda pair: -pair[0].time_us_per_step)[:MOST_GROUPS]
            ],
        )

    def notes(self) -> Iterator[str]:
        """Yield what was compared with what, and whether the kernel was made for an older GPU."""
        largest, ceilings = self.largest, self.judge.ceilings
        floor, part = units.time(largest.floor_us), units.share(largest.floor_us / largest.us)
        if largest.bound is Bound.COMPUTE:
            dtype = ceilings.multiplied_as(largest.work.multiply_dtype)
            need = f"{units.operations(largest.work.flops)} at {units.arithmetic(ceilings.tflops[dtype])}"
        else:
            need = f"{units.size(largest.work.bytes)} at {units.rate(ceilings.gb_per_s)}"
        told = "" if self.is_measured else ", the datasheet's rate"
        gemm = largest.gemm
        what = f"[{gemm.m:,}, {gemm.k:,}] × [{gemm.k:,}, {gemm.n:,}]" if gemm else "A call"
        yield f"{what}: {need}{told} take {floor}; it reaches {part}."
        made, here = made_for(largest.main.kernel), generation(self.judge.case.linked.trace)
        if made is not None and here is not None and made < here:
            yield f"Its name tells a kernel made for GPUs of compute capability {made}; this one has {here}."


def excess_of(judge: Judge, slow: Sequence[Multiplication], good_us: Sequence[float]) -> Excess | None:
    """Return the excess of some multiplications, the longest first, over what each call would take; None of none."""
    return Excess(judge, slow, good_us) if slow else None


def _excess_us(found: Multiplication, good_us: float) -> float:
    return (found.us - good_us) * found.worked.per_step
