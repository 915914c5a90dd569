"""Fixed and batch-proportional costs of steps in which both are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.decode_steps import BETWEEN_GRAPHS_US, Work, graphed

from stepscope import floor
from stepscope.errors import UsageError
from stepscope.pipeline.cost.floor import MeasuredSteps, amortise

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stepscope.document import Amortisation


def traces(folder: Path, batches: Sequence[int]) -> list[Path]:
    """A GEMM of 400 µs and a cast of 100 µs whatever the batch; attention of 5 µs and 3 µs of sampling a request."""
    paths = []
    for batch in batches:
        work = [
            Work("nvjet_a", 400.0),
            Work("float8_copy_kernel", 100.0),
            Work("BatchDecodeKernel", 5.0 * batch),
            Work("argmax_kernel", 3.0 * batch),
        ]
        trace = graphed([work] * 5, annotation=f"step[DECODE bs={batch}]")
        paths.append(trace.save(folder / f"batch-{batch}.json"))
    return paths


def fitted(paths: list[Path]) -> Amortisation:
    found = floor(model="glm-5", gpu="h200", tp=8, traces=paths).amortisation
    assert found is not None
    return found


def test_what_was_built_in_is_found(tmp_path: Path) -> None:
    found = fitted(traces(tmp_path, [1, 4, 32]))
    fixed = 500 + BETWEEN_GRAPHS_US
    assert (found.step.fixed_us, found.step.per_request_us) == pytest.approx((fixed, 8))
    assert (found.step.residual_us, found.step.fixed_error_us) == pytest.approx((0, 0), abs=1e-6)
    parts = {part.name: (part.fixed_us, part.per_request_us) for part in found.parts}
    expected = {
        "gemm": (400, 0),
        "cast": (100, 0),
        "attention": (0, 5),
        "sampling": (0, 3),
        "idle": (BETWEEN_GRAPHS_US, 0),
    }
    assert parts.keys() == expected.keys()
    for name, costs in expected.items():
        assert parts[name] == pytest.approx(costs, abs=1e-6)
    assert [point.batch_size for point in found.points] == [1, 4, 32]
    assert [point.duration_us for point in found.points] == pytest.approx([fixed + 8 * batch for batch in (1, 4, 32)])
    assert found.proportional_share == pytest.approx([8 * batch / (fixed + 8 * batch) for batch in (1, 4, 32)])


def test_two_points_lie_on_any_line_so_no_error_is_told(tmp_path: Path) -> None:
    found = fitted(traces(tmp_path, [2, 8]))
    assert (found.step.fixed_us, found.step.per_request_us) == pytest.approx((500 + BETWEEN_GRAPHS_US, 8))
    assert {part.residual_us for part in [found.step, *found.parts]} == {None}
    assert {part.fixed_error_us for part in [found.step, *found.parts]} == {None}


def measured(batch: int | None, us: float) -> MeasuredSteps:
    return MeasuredSteps("t.json", batch, 3, us, {"gemm": us - 1}, is_complete=True)


def test_residual_and_error_of_points_about_a_line() -> None:
    """10, 20 and 36 µs at 1, 2 and 3: slope 13, fixed −4; residuals 1, −2, 1, so s² = 6, error² = 6 (1/3 + 4/2)."""
    found = amortise([measured(1, 10), measured(2, 20), measured(3, 36)])
    assert (found.step.fixed_us, found.step.per_request_us) == pytest.approx((-4, 13))
    assert found.step.residual_us == pytest.approx(6**0.5)
    assert found.step.fixed_error_us == pytest.approx(14**0.5)
    assert found.proportional_share == [None] * 3  # a step cannot have a negative part


def test_the_parts_add_up_to_the_step() -> None:
    found = amortise([measured(1, 10), measured(2, 20), measured(3, 36)])
    assert sum(part.fixed_us for part in found.parts) == pytest.approx(found.step.fixed_us)
    assert sum(part.per_request_us for part in found.parts) == pytest.approx(found.step.per_request_us)


def test_the_step_of_the_load_is_compared_whichever_trace_it_is_in(tmp_path: Path) -> None:
    paths = traces(tmp_path, [1, 4, 32])
    found = floor(model="glm-5", gpu="h200", tp=8, traces=paths, batch=4)
    assert found.measured_us == pytest.approx(500 + BETWEEN_GRAPHS_US + 8 * 4)
    assert floor(model="glm-5", gpu="h200", tp=8, traces=paths).case.batch == 1


def test_one_batch_size_tells_no_line() -> None:
    with pytest.raises(UsageError, match="batch size 2"):
        amortise([measured(2, 10), measured(2, 20)])


def test_an_unknown_batch_size_tells_no_line() -> None:
    with pytest.raises(UsageError, match="does not tell its batch size"):
        amortise([measured(2, 10), measured(None, 20)])
