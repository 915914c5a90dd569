"""What holds of every diagnosis, whatever the steps ran: drawn from work that several rules look at."""

from __future__ import annotations

import json
from io import StringIO
from math import isfinite
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decode_steps import Work, copied, eager, graphed
from tests.examples.fill_in_step import FILL
from tests.examples.gemm_below_roofline import H200, experts, matmul
from tests.examples.slow_sampling import HEAD, sorted_logits
from tests.kernel_names import ADD, ATTENTION, COPY_BF16, NORM, TO_BF16
from tests.published_collectives import ALL_REDUCE
from tests.stages import diagnosed

from stepscope.report import Format, draw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kineto import Kineto

    from stepscope.document import Finding

BF16, FP8 = "c10::BFloat16", "c10::Float8_e4m3fn"
KINDS = (
    copied(TO_BF16, 1, (495_552, 1, 576), FP8, BF16),
    copied(COPY_BF16, 1, (8, 6144), BF16, BF16),
    copied(COPY_BF16, 1, (0, 6144), BF16, BF16),
    Work(TO_BF16, 1, grid=(557_496, 1, 1)),
    Work(FILL, 1, "aten::fill_", [[8, 6144]], [BF16]),
    Work(ADD, 1, "aten::add", [[8, 6144], [8, 6144]], [BF16, BF16]),
    matmul(1),
    matmul(1, rows=0),
    experts(1),
    experts(1, tokens=7),
    HEAD,
    *sorted_logits(16)[:2],
    Work(NORM, 1),
    Work(ATTENTION, 1),
    Work(ALL_REDUCE, 1),
    Work("unheard_of", 1),
)
SEVERITIES = ((0.3, "critical"), (0.1, "major"), (0.02, "minor"), (0.0, "info"))


@st.composite
def traces(draw: st.DrawFn) -> Kineto:
    """Draw up to six steps that repeat a layer up to 20 times: some start later in it, some kernels take longer."""
    layer = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5))
    work = layer * draw(st.integers(1, 20))
    us = st.sampled_from([0, 1, 3, 40, 900])
    each = {kind.kernel: draw(us) for kind in layer}
    steps = [
        [kind._replace(us=draw(us) if draw(st.integers(0, 19)) == 0 else each[kind.kernel]) for kind in step]
        for step in (work[draw(st.integers(0, 1)) :] or work for _ in range(draw(st.integers(1, 6))))
    ]
    trace = draw(st.sampled_from([eager, graphed]))(steps, annotation=f"step[DECODE bs={draw(st.integers(0, 64))}]")
    trace.header["deviceProperties"] = [H200]
    return trace


@settings(max_examples=60, deadline=None, derandomize=True)
@given(traces(), st.booleans())
def test_every_diagnosis(trace: Kineto, with_model: bool) -> None:  # noqa: FBT001 -- drawn
    diagnosis = diagnosed(trace, model="glm-5" if with_model else None, tp=8 if with_model else None)
    stream = StringIO()
    draw(diagnosis, Format.JSON, stream)
    assert all(isfinite(number) and number >= 0 for number in numbers(json.loads(stream.getvalue())))
    order = [(found.what_if is None, -weight(found)) for found in diagnosis.findings]
    assert order == sorted(order)
    for found in diagnosis.findings:
        assert_holds(found)


def assert_holds(found: Finding) -> None:
    times = [group.time_us_per_step for group in found.evidence.groups]
    assert times == sorted(times, reverse=True)
    severity = next(name for least, name in SEVERITIES if weight(found) >= least)
    if found.what_if is None:  # of its share, at most major
        assert found.severity == ("major" if severity == "critical" else severity)
        return
    assert found.severity == severity
    assert found.what_if.gain_fraction <= 1
    assert found.what_if.gain_fraction_others_fixed <= 1
    for predicted in (found.what_if.step_us, found.what_if.gpu_span_us):
        assert predicted.low <= predicted.expected <= predicted.high


def weight(found: Finding) -> float:
    """Return what a finding is judged by: the larger gain, or the share where none is predicted."""
    if found.what_if is None:
        return found.share_of_step
    return max(found.what_if.gain_fraction, found.what_if.gain_fraction_others_fixed)


def numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float):
        yield value
