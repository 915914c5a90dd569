"""Costs at several batch sizes: what is fixed, and what grows with the batch."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.answers import finding
from tests.decode_steps import STEP, Work, copied, eager
from tests.kernel_names import ADD, TO_BF16
from tests.stages import diagnosed

from stepscope import diagnose
from stepscope.report import Format, draw

if TYPE_CHECKING:
    from tests.kineto import Kineto

    from stepscope.document import Diagnosis

LAB = Path(__file__).parents[2] / "traces"
LAYERS = 78


def pool_casts(*steps: tuple[int, float, int]) -> Kineto:
    """Return decode steps of a batch size, in which so many casts of the whole pool take so long each."""
    cast = copied(TO_BF16, 0, (495_552, 1, 576), "c10::Float8_e4m3fn", "c10::BFloat16")
    trace = eager([[*[cast._replace(us=us)] * casts, *[Work(ADD, 10.0 * size)] * 20] for size, us, casts in steps])
    marks = [event for event in trace.events if event["name"] == STEP]
    for mark, (size, _, _) in zip(marks, steps, strict=True):
        mark["name"] = f"step[DECODE bs={size}]"
    return trace


def at(diagnosis: Diagnosis) -> dict[int, float]:
    return {row.batch_size: row.time_us_per_step for row in finding(diagnosis, "kv-pool-cast").evidence.by_batch}


def drawn(diagnosis: Diagnosis) -> str:
    text = StringIO()
    draw(diagnosis, Format.TERMINAL, text)
    return " ".join(text.getvalue().split())


def test_what_is_the_same_at_each_batch_size_of_a_trace_is_a_fixed_cost() -> None:
    diagnosis = diagnosed(pool_casts(*[(1, 850, LAYERS)] * 4, *[(16, 860, LAYERS)] * 3))
    assert at(diagnosis) == pytest.approx({1: 850 * LAYERS, 16: 860 * LAYERS})
    assert "by batch batch 1 66.30 ms, batch 16 67.08 ms: a fixed cost" in drawn(diagnosis)


def test_what_grows_is_told_with_its_times() -> None:
    diagnosis = diagnosed(pool_casts(*[(1, 850, LAYERS)] * 4, *[(16, 1700, LAYERS)] * 3))
    text = drawn(diagnosis)
    assert "by batch batch 1 66.30 ms, batch 16 132.60 ms" in text
    assert "a fixed cost" not in text


def test_steps_that_run_fewer_of_these_kernels_are_not_compared() -> None:
    assert at(diagnosed(pool_casts(*[(1, 850, LAYERS)] * 4, *[(16, 850, LAYERS // 2)] * 3))) == {}


def test_of_one_batch_size_nothing_is_said() -> None:
    diagnosis = diagnosed(pool_casts(*[(1, 850, LAYERS)] * 4))
    assert at(diagnosis) == {}
    assert "by batch" not in drawn(diagnosis)


def test_traces_of_several_batch_sizes_are_told_together(tmp_path: Path) -> None:
    paths = [
        pool_casts(*[(size, us, LAYERS)] * 4).save(tmp_path / f"of-{size}.json")
        for size, us in ((1, 850), (4, 855), (16, 852))
    ]
    found = [each for each in diagnose(paths, model="glm-5", tp=8).findings if each.rule == "kv-pool-cast"]
    assert len(found) == 3
    for each in found:
        assert [row.batch_size for row in each.evidence.by_batch] == [1, 4, 16]
        assert [row.time_us_per_step for row in each.evidence.by_batch] == pytest.approx(
            [850 * LAYERS, 855 * LAYERS, 852 * LAYERS]
        )


def test_the_laboratorys_pool_casts_cost_the_same_at_batch_1_and_16() -> None:
    """16 casts of 871 µs, whatever the batch and the context; a pool of 131,072 slots is other work."""
    cases = ("1x1024-pool495552", "16x4096-pool495552", "1x1024-pool131072")
    paths = [LAB / f"full-pool-cast-{case}" / "graph.json.gz" for case in cases]
    diagnosis = diagnose(paths, model=str(LAB / "config.json"), tp=8)
    found = {each.trace: each.evidence.by_batch for each in diagnosis.findings if each.rule == "kv-pool-cast"}
    assert [row.batch_size for row in found[0]] == [row.batch_size for row in found[1]] == [1, 16]
    assert [row.time_us_per_step for row in found[0]] == pytest.approx([16 * 871] * 2, rel=0.01)
    assert found[2] == []
